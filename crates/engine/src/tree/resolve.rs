//! From a name in a directory to its copies on the branches.
//!
//! The first branch in order that has the name decides: a file there hides all others; a directory there is merged with the
//! directories on the branches after it. A branch that cannot be asked makes "not there" unknowable: then the answer is an
//! I/O error, never ENOENT.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_identity::number::{self, Identity, hash_name, mix};
use fsstack_pool::BranchIx;
use fsstack_sync::atomic::Ordering::SeqCst;
use fsstack_sys::Stat;
use fsstack_sys::xattr::On;
use smallvec::SmallVec;

use crate::answer::{Attr, Entry};
use crate::inode::clock::Moment;
use crate::inode::{Copies, CreateGuard, Inode};
use crate::pool::Pool;
use crate::settings::Degraded;
use crate::tree::Tree;
use crate::tree::changing_names::MetChange;
use crate::tree::clashes::ClashReport;
use crate::tree::tree_lock::{TreeLock, unless_stuck};
use crate::tree::walk::by_descriptor;

/// Rounds in which a name is asked for again beside changes of names, before it is asked for with the tree lock shared.
const ROUNDS: u32 = 8;

/// The copies of a directory and their attributes.
pub(crate) type DirStats = SmallVec<[(BranchIx, Stat); 1]>;

/// Object of a name.
#[derive(Debug)]
pub(crate) enum Found {
    /// A file (anything but a directory) on this branch.
    File(BranchIx, Stat),
    /// A directory: its copies in order, never none.
    Dir(DirStats, Copies),
}

impl Found {
    /// The first branch that has it, and its attributes there.
    pub(crate) fn first(self) -> Option<(BranchIx, Stat)> {
        match self {
            Self::File(at, stat) => Some((at, stat)),
            Self::Dir(stats, _) => stats.first().copied(),
        }
    }
}

impl Tree {
    /// Asks the branches that hold `parent` for `name`, in order.
    ///
    /// # Errors
    /// ENOENT if all were asked and none has it; EIO if one that might have it could not be asked.
    pub(crate) fn find(&self, pool: &Pool, parent: &Arc<Inode>, name: &CStr) -> Result<Found> {
        if is_private(pool, parent, name) {
            return Err(OpError::MISSING);
        }
        let mut round = 0;
        loop {
            let (moves, asked) = (self.relocations.load(SeqCst), self.changing_names.now());
            let found = self.find_once(pool, parent, name);
            // With the tree lock held nobody else changes names.
            if !TreeLock::is_held_here() {
                match self.changing_names.met(asked, (parent, name)) {
                    MetChange::No => {}
                    MetChange::Over if round < ROUNDS => {
                        round += 1;
                        continue;
                    }
                    MetChange::Over | MetChange::UnderWay => {
                        let _tree_lock = self.tree_lock.read(pool)?;
                        return self.find(pool, parent, name);
                    }
                }
            }
            match found {
                // A file that moved meanwhile was on no branch at the moment it was asked.
                Err(error) if error.is_missing_for_sure() && self.relocations.load(SeqCst) != moves => {}
                found => return found,
            }
        }
    }

    fn find_once(&self, pool: &Pool, parent: &Arc<Inode>, name: &CStr) -> Result<Found> {
        let born = parent.born();
        let mut dirs = DirStats::new();
        let mut copies = Copies::asked_now();
        let mut fault = self.is_unsure(pool, parent).then_some(OpError::UNSURE);
        // A branch that may have a copy of the parent may have one of what is in it.
        copies.unsure |= parent.unsure();
        let (mut is_lacking, mut unable) = (false, None);
        for (at, answer) in self.ask_each(pool, parent, name, parent.copies()) {
            match answer {
                Ok(stat) if stat.is_dir() => {
                    copies.found.push((at, stat.ino));
                    dirs.push((at, stat));
                }
                Ok(stat) if dirs.is_empty() => {
                    if let Some(fault) = fault
                        && self.is_known_elsewhere(pool, (parent, name), &copies, (at, &stat))
                    {
                        return Err(fault);
                    }
                    return Ok(Found::File(at, stat));
                }
                Ok(_) => self.report_clash(pool, parent, at, name),
                Err(error) if error.is_missing() => is_lacking = true,
                Err(error) if error.cannot_have_the_name() => unable = Some(error),
                Err(error) if error.is_fault() => {
                    copies.unsure_of(at);
                    fault = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        match fault {
            _ if !dirs.is_empty() => Ok(Found::Dir(dirs, copies)),
            Some(fault) => Err(fault),
            None => {
                // No branch can have it.
                if let Some(unable) = unable.filter(|_| !is_lacking) {
                    return Err(unable);
                }
                parent.note_miss(name, born);
                Err(OpError::MISSING)
            }
        }
    }

    /// True if the name was last seen as an object that may be on a branch that cannot be asked (`unsure`): the file of that name on
    /// the branch `at` is another one.
    fn is_known_elsewhere(
        &self,
        pool: &Pool,
        (parent, name): (&Inode, &CStr),
        unsure: &Copies,
        (at, stat): (BranchIx, &Stat),
    ) -> bool {
        if pool.settings.degraded == Degraded::Read {
            return false;
        }
        let Some(number) = self.seen.get(parent.id.ino, name.to_bytes()) else { return false };
        if self.identity(pool, pool.branch(at), stat).ino == number {
            return false;
        }
        let known = self.inodes.get(number).and_then(|inode| inode.branch());
        match known.or_else(|| pool.branch_of(number)) {
            Some(at) => unsure.is_unsure_of(at),
            // A hashed number does not say which branch it is of.
            None => number::branch_of(number).is_none(),
        }
    }

    /// True if some branch that might have a copy of `dir` was never asked for it. A branch that can be asked by now is asked.
    pub(crate) fn is_unsure(&self, pool: &Pool, dir: &Arc<Inode>) -> bool {
        if !dir.is_unsure() {
            return false;
        }
        // From the top, since a directory is found in its parent: as deep as the tree may be, without recursion.
        let mut unsure = vec![dir.clone()];
        while let Some(name) = unsure.last().and_then(|last| last.name()) {
            if !name.parent.is_unsure() {
                break;
            }
            unsure.push(name.parent);
        }
        while let Some(inode) = unsure.pop() {
            let could_ask =
                pool.branches.iter().any(|branch| inode.is_unsure_of(branch.ix) && branch.is_open());
            let Some(name) = inode.name().filter(|_| could_ask) else { return true };
            if name.parent.is_unsure() {
                return true;
            }
            match self.find(pool, &name.parent, &name.name) {
                Ok(Found::Dir(_, copies)) => inode.update_copies(&copies),
                Ok(Found::File(..)) | Err(_) => return true,
            }
        }
        dir.is_unsure()
    }

    /// # Errors
    /// A branch that might have a name in `dir` cannot be asked: nothing is changed that is shown there.
    pub(crate) fn check_whole(&self, pool: &Pool, dir: &Arc<Inode>) -> Result<()> {
        if self.is_unsure(pool, dir) {
            return Err(OpError::UNSURE);
        }
        dir.copies().into_iter().try_for_each(|at| pool.branch(at).check_open())
    }

    /// Every branch (except `but`) that has `name` in `parent`, in order, with its object.
    ///
    /// # Errors
    /// A branch that might have it could not be asked.
    pub(crate) fn find_all(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        but: Option<BranchIx>,
    ) -> Result<DirStats> {
        if self.is_unsure(pool, parent) {
            return Err(OpError::UNSURE);
        }
        let mut holders = DirStats::new();
        let others = parent.copies().into_iter().filter(|at| Some(*at) != but).collect();
        for (at, answer) in self.ask_each(pool, parent, name, others) {
            match answer {
                Ok(stat) => holders.push((at, stat)),
                Err(error) if error.is_missing() || error.cannot_have_the_name() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(holders)
    }

    /// Makes sure that no branch has `name` in `parent`, without a call if a lookup has just found that out. Keeps other
    /// threads from making it until the caller is done.
    ///
    /// # Errors
    /// EEXIST, or EIO if that cannot be known.
    pub(crate) fn must_be_missing(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
    ) -> Result<CreateGuard> {
        check_public(pool, parent, name)?;
        let create_guard = self.create_guard(pool, parent, name)?;
        if parent.take_miss(name) {
            return Ok(create_guard);
        }
        match self.find(pool, parent, name) {
            Ok(_) => Err(fsstack_sys::Errno::EXIST.into()),
            Err(error) if error.is_missing() => {
                parent.take_miss(name);
                Ok(create_guard)
            }
            Err(error) => Err(error),
        }
    }

    /// Keeps other threads from making `name` in `parent` until the caller is done.
    ///
    /// # Errors
    /// EIO if the thread that makes it is stuck in a hung branch.
    pub(crate) fn create_guard(&self, pool: &Pool, parent: &Arc<Inode>, name: &CStr) -> Result<CreateGuard> {
        let attempt = || parent.make(name);
        let is_stuck = || parent.is_made_by_stuck(name);
        unless_stuck(pool, attempt, is_stuck)
    }

    /// Gives the kernel `name`, which was asked for at `asked`: the inode has one more lookup.
    pub(crate) fn admit(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        found: Found,
        asked: Moment,
    ) -> Result<Entry> {
        match found {
            Found::File(at, stat) => Ok(self.admit_file(pool, parent, name, (at, stat), asked)),
            Found::Dir(stats, copies) => self.admit_dir(pool, parent, name, &stats, &copies),
        }
    }

    pub(crate) fn admit_file(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        (at, stat): (BranchIx, Stat),
        asked: Moment,
    ) -> Entry {
        let id = self.identity(pool, pool.branch(at), &stat);
        let inode = self.admit_file_as(id, parent, name, (at, &stat), asked);
        entry(&inode, stat)
    }

    /// Like [`Self::admit`], for a file that is known by `id`.
    pub(crate) fn admit_file_as(
        &self,
        id: Identity,
        parent: &Arc<Inode>,
        name: &CStr,
        (at, stat): (BranchIx, &Stat),
        asked: Moment,
    ) -> Arc<Inode> {
        let inode = self.inodes.looked_up(id, stat.kind(), || Inode::file(id, stat.kind(), at));
        inode.note_name(parent, name, stat.nlink, asked);
        self.seen.set(parent.id.ino, name.to_bytes(), id.ino);
        inode
    }

    fn admit_dir(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        stats: &DirStats,
        copies: &Copies,
    ) -> Result<Entry> {
        let id = self.dir_identity(pool, parent, name, stats)?;
        let entry = self.admit_dir_as(id, parent, name, merge(self, pool, stats, copies.asked()), copies);
        if stats.len() > 1
            && let Some(dir) = self.inodes.get(id.ino)
        {
            self.compare_rights(pool, &dir, stats);
        }
        Ok(entry)
    }

    /// Like [`Self::admit`], for the directory `name` that was just made on the branch `at`: it has no mark.
    pub(crate) fn admit_new_dir(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        at: BranchIx,
        stat: Stat,
        on: On<'_>,
    ) -> Entry {
        let copies = Copies::known([(at, stat.ino)]);
        let stats = DirStats::from_slice(&[(at, stat)]);
        let branch = pool.branch(at);
        let other = self.other_for_new(pool, branch, &stat, on);
        let id = other.unwrap_or_else(|| {
            let id = self.copy_identity(pool, branch, &stat, &stats);
            self.keep_other(branch, &stat, id);
            id
        });
        self.admit_dir_as(id, parent, name, stat, &copies)
    }

    fn admit_dir_as(
        &self,
        id: Identity,
        parent: &Arc<Inode>,
        name: &CStr,
        stat: Stat,
        copies: &Copies,
    ) -> Entry {
        let inode = self.inodes.looked_up(id, fsstack_sys::Kind::Dir, || Inode::dir(id, copies));
        inode.update_copies(copies);
        inode.note_name(parent, name, 1, copies.asked());
        self.seen.set(parent.id.ino, name.to_bytes(), id.ino);
        entry(&inode, stat)
    }

    /// A file and a directory have the same name in `parent`: the first branch wins, and the log names the hidden one once.
    pub(crate) fn report_clash(&self, pool: &Pool, parent: &Inode, at: BranchIx, name: &CStr) {
        let reported = self.clashes.tell(mix(hash_name(parent.id.ino, name.to_bytes()) ^ u64::from(at.0)));
        if reported == ClashReport::Before {
            return;
        }
        let branch = pool.branch(at).path.display();
        tracing::warn!(%branch, ?name, "name hidden: an earlier branch has a file where this has a directory, or the reverse");
        if reported == ClashReport::Last {
            tracing::warn!("too many hidden names; no more are logged");
        }
    }

    /// Attributes of a directory, from all its copies that answer; of the others, the last reported times.
    pub(crate) fn dir_attr(&self, pool: &Pool, dir: &Arc<Inode>) -> Result<Attr> {
        let (mut stats, mut remembered, asked) = (DirStats::new(), DirStats::new(), Moment::now());
        // Of several errors the one that leaves open whether it is there.
        let mut last = OpError::STALE;
        for at in dir.copies() {
            // The pool shows the first copy's attributes: that copy is worth a wait.
            let reported = if stats.is_empty() {
                self.stat_copy(pool, dir, at, CallKind::Short)
            } else {
                self.ask_copy(pool, dir, at)
            };
            match reported {
                Ok(stat) => stats.push((at, stat)),
                Err(error) => {
                    last = last.of_copies(error);
                    let known = dir.reported(at).filter(|_| error.is_fault());
                    remembered.extend(known.map(|stat| (at, stat)));
                }
            }
        }
        if stats.is_empty() {
            return Err(last);
        }
        stats.extend(remembered);
        let mut stat = merge(self, pool, &stats, asked);
        if dir.copies().len() > 1 {
            stat.nlink = stat.nlink.min(1); // also where the others do not answer
        }
        Ok(Attr { ino: dir.id.ino, validity: dir.validity(), stat })
    }

    /// The attributes of one copy of a directory.
    fn stat_copy(&self, pool: &Pool, dir: &Arc<Inode>, at: BranchIx, kind: CallKind) -> Result<Stat> {
        let branch = pool.branch(at);
        let stat = by_descriptor(self, pool, (dir, at), |fd| {
            branch.ask_for(kind, || fsstack_sys::at::stat_fd(fd.as_fd()))
        })?;
        if branch.is_remote() {
            dir.was_reported(at, &stat);
        }
        Ok(stat)
    }

    /// Like [`Self::stat_copy`], for a copy whose answer is not essential: a branch that may hang is not waited for.
    pub(crate) fn ask_copy(&self, pool: &Pool, dir: &Arc<Inode>, at: BranchIx) -> Result<Stat> {
        let branch = pool.branch(at);
        if branch.stalls() {
            return Err(branch.not_waited_for());
        }
        self.stat_copy(pool, dir, at, CallKind::Optional)
    }
}

/// Objects that the pool keeps in the root of a branch for itself.
pub(crate) fn is_private(pool: &Pool, parent: &Inode, name: &CStr) -> bool {
    parent.is_root() && name.to_bytes().first() == Some(&b'.') && pool.hides(name)
}

/// # Errors
/// EPERM for a name that the pool keeps for itself.
pub(crate) fn check_public(pool: &Pool, parent: &Inode, name: &CStr) -> Result<()> {
    if is_private(pool, parent, name) { Err(fsstack_sys::Errno::PERM.into()) } else { Ok(()) }
}

/// Attributes of `inode` under the pool's number.
pub(crate) fn entry(inode: &Inode, stat: Stat) -> Entry {
    let id = inode.id;
    let attr = Attr { ino: id.ino, validity: inode.validity(), stat };
    Entry { ino: id.ino, generation: u64::from(id.generation), attr }
}

/// A directory's attributes: those of its first copy, changed when the latest changed.
///
/// Times of last access and modification of a copy that utimensat(2) does not reach do not count. The branches were asked at `asked`.
pub(crate) fn merge(tree: &Tree, pool: &Pool, stats: &DirStats, asked: Moment) -> Stat {
    let (first, stat) = stats[0];
    let mut merged = tree.quiet_dirs.without_moves(first, stat, asked);
    for (at, stat) in &stats[1..] {
        let stat = tree.quiet_dirs.without_moves(*at, *stat, asked);
        if pool.branch(*at).is_thought_writable() || !pool.branch(first).is_thought_writable() {
            merged.mtime = merged.mtime.max(stat.mtime);
            merged.atime = merged.atime.max(stat.atime);
        }
        merged.ctime = merged.ctime.max(stat.ctime);
        // "Not counted", as on btrfs: subdirectories on several branches would count twice, and find(1) trusts a count above
        // 1.
        merged.nlink = merged.nlink.min(1);
    }
    merged
}
