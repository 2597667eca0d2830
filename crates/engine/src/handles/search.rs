//! Finding an object by its number on a branch whose file system cannot open by number (GlusterFS, tmpfs, NFS).
//!
//! The index remembers where an object was seen (`index/names.rs`). The object now at that place is checked for the number.
//! If it differs, the branch is searched name by name: listings show inode numbers, so objects themselves are not asked. The
//! walk indexes every entry it passes, so later lookups need none.
//!
//! Objects renamed in the pool during the walk may be missed. A renamed file is therefore indexed by its new name, by the
//! renaming thread, and once more at the end of the walk, which may have indexed the old one. A directory may take its whole
//! content past the walk, and is counted. So "nothing has the number" is believed only of a walk that began after the
//! question, without a rename of a directory of the branch since; that saw a whole branch; and all of which is indexed; and
//! only while no rename on the branch is half done. Otherwise the answer is unknown. Another thread's walk that began after
//! the question is as good. Objects moved out of band just then may be missed.

use std::ffi::{CStr, CString};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use fsstack_branch::entries::{Entries, FoundEntry};
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::reply_takeover;
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_identity::index::{DirPath, KeptBy, Name, open_path};
use fsstack_identity::number;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::RwLockReadGuard;
use fsstack_sync::atomic::Ordering::SeqCst;
use fsstack_sync::ranked::{HeldRank, LINKS, STILL};
use fsstack_sys::{self as sys, Errno, Kind, OFlags, Stat};
use smallvec::SmallVec;

use crate::inode::Inode;
use crate::member::Member;
use crate::member::searches::{CompleteSearch, SearchLock, alone};
use crate::pool::Pool;
use crate::tree::Tree;

/// The root of a branch, as the parent of a name.
const ROOT: Ino = Ino(0);
/// Names that are put into the index at once.
const BATCH: usize = 4096;
/// Deeper than trees are: entries of different moments may go in a circle.
const DEEPEST: usize = 4096;
/// How long renames under way are waited for.
const HALF_DONE_AFTER: Duration = Duration::from_secs(2);

/// A rename in the pool, until this drops.
#[must_use = "a look through a branch meanwhile may miss it"]
pub(crate) struct RenameGuard<'a>(SmallVec<[(&'a Arc<Member>, RwLockReadGuard<'a, ()>); 1]>);

impl Pool {
    /// Announces a rename in one of these directories.
    ///
    /// # Errors
    /// The thread that walks a branch of theirs is stuck in it.
    pub(crate) fn moving(&self, dirs: [&Inode; 2]) -> Result<RenameGuard<'_>> {
        let concerned =
            |branch: &&Arc<Member>| branch.by_number.is_none() && dirs.iter().any(|dir| dir.is_on(branch.ix));
        let searched = self.branches.iter().filter(|_| self.settings.nfs_export).filter(concerned);
        let held = searched.map(|branch| Ok((branch, share::<STILL>(branch, &branch.searches.still)?)));
        Ok(RenameGuard(held.collect::<Result<_>>()?))
    }
}

impl Member {
    /// Announces that a file of the branch gets another name: counts of its links hold (`removed.rs`).
    ///
    /// # Errors
    /// The thread that counts them is stuck in the branch.
    pub(crate) fn linking(&self) -> Result<Option<RwLockReadGuard<'_, ()>>> {
        self.renames_what_is_held().then(|| share::<LINKS>(self, &self.searches.links)).transpose()
    }
}

/// The exclusive holder may be stuck in the branch, so the wait is no longer than the branch's own; or in an earlier mount of
/// it, and then the branch answers.
fn share<'a, const RANK: u8>(branch: &Member, lock: &'a SearchLock) -> Result<RwLockReadGuard<'a, ()>> {
    // The thread has this rank only while it waits for the lock: no thread waits without end for one that shares it.
    let _waits = HeldRank::<RANK>::in_order();
    if let Some(held) = lock.share(Duration::ZERO) {
        return Ok(held);
    }
    reply_takeover::aside(|| {
        while !lock.is_stuck() {
            if let Some(held) = lock.share(HALF_DONE_AFTER) {
                return Ok(held);
            }
            branch.check_open()?;
        }
        Err(OpError::UNSURE)
    })
}

impl Drop for RenameGuard<'_> {
    fn drop(&mut self) {
        for (branch, _) in &self.0 {
            branch.searches.moved.fetch_add(1, SeqCst);
        }
    }
}

impl Tree {
    /// Object with the number `natural`, which does not contain the branch, on the branches that must be searched.
    ///
    /// # Errors
    /// A branch cannot be asked, and no other has it.
    pub(crate) fn search_all(
        &self,
        pool: &Pool,
        natural: Ino,
    ) -> Result<Option<(BranchIx, MountedFd, Stat)>> {
        let mut unsure = None;
        for branch in pool.branches.iter().filter(|branch| branch.by_number.is_none()) {
            match self.search(branch, natural) {
                Ok(Some((fd, stat))) => return Ok(Some((branch.ix, fd, stat))),
                Ok(None) => {}
                Err(error) => unsure = Some(error),
            }
        }
        unsure.map_or(Ok(None), Err)
    }

    /// Object with the number `natural` on `branch`.
    ///
    /// # Errors
    /// The branch cannot be asked, or the answer is unknown.
    pub(crate) fn search(&self, branch: &Member, natural: Ino) -> Result<Option<(MountedFd, Stat)>> {
        let searches = &branch.searches;
        let asked = searches.begun.load(SeqCst);
        match self.where_it_was(branch, natural) {
            Ok(Some(found)) => return Ok(Some(found)),
            Ok(None) => {}
            // The object that has its place now may be unreadable: the one in question may be elsewhere.
            Err(error) if error.errno() == Errno::ACCESS => {}
            Err(error) => return Err(error),
        }
        // Aside: the walk, and waiting for it, may be long.
        let looked = reply_takeover::aside(|| {
            let _turn = searches.take_turn(branch)?;
            Ok::<_, OpError>(if searches.seen_since(asked).is_none() { self.look(branch) } else { Ok(()) })
        })?;
        // A walk that did not see everything may have found it, too.
        if let Some(found) = self.where_it_was(branch, natural)? {
            return Ok(Some(found));
        }
        looked?;
        // It may just have been renamed, and not be indexed yet.
        let still = |timeout| alone::<STILL>(&searches.still, timeout);
        let wait = || reply_takeover::aside(|| still(HALF_DONE_AFTER));
        let _still = still(Duration::ZERO).or_else(wait).ok_or(OpError::UNSURE)?;
        match self.where_it_was(branch, natural)? {
            Some(found) => Ok(Some(found)),
            None => {
                // The index may have failed in between, and then it knew nothing.
                let seen = searches.seen_since(asked).filter(|by| self.index.kept_by() == Some(*by));
                seen.map(|_| None).ok_or(OpError::UNSURE)
            }
        }
    }

    /// Walks the branch, with `turn` held.
    fn look(&self, branch: &Member) -> Result<()> {
        let searches = &branch.searches;
        *searches.renamed.lock() = Some(Vec::new());
        let look = searches.begun.fetch_add(1, SeqCst) + 1;
        let stamp = RandomState::new().hash_one(look);
        searches.stamp.store(stamp, SeqCst);
        let moved = searches.moved.load(SeqCst);
        let looked = self.look_through(branch);
        let still = alone::<STILL>(&searches.still, HALF_DONE_AFTER);
        let renamed = searches.renamed.lock().take().unwrap_or_default();
        let kept_by = looked?;
        if still.is_none() {
            return Ok(()); // what is still being renamed is not among them
        }
        for row in renamed {
            // The walk may have met the file under its old name, later than it was indexed under the new one.
            if self.where_it_was(branch, row.0)?.is_none()
                && self.index.note_names(&mut vec![row]) != Some(kept_by)
            {
                return Ok(());
            }
        }
        if moved == searches.moved.load(SeqCst) {
            self.index.forget_names(branch.id, stamp);
            *searches.whole.lock() = Some(CompleteSearch { look, kept_by, moved });
        }
        Ok(())
    }

    /// Indexes the file as `name` in `dir` on the branch `at`; nothing else was renamed.
    pub(crate) fn file_was_renamed(
        &self,
        pool: &Pool,
        mut moving: RenameGuard<'_>,
        (dir, name): (&Arc<Inode>, &CStr),
        at: BranchIx,
    ) {
        moving.0.retain(|(branch, _)| {
            // Before the first walk nothing is believed to be gone.
            branch.ix == at
                && branch.searches.begun.load(SeqCst) > 0
                && self.remember(pool, branch, dir, name).is_none()
        });
    }

    /// None: it is not indexed.
    fn remember(&self, pool: &Pool, branch: &Member, dir: &Arc<Inode>, name: &CStr) -> Option<()> {
        let stat = self.stat_in(pool, dir, branch.ix, name).ok().filter(|stat| stat.nlink == 1)?;
        let natural = number::number(branch, stat.dev, stat.ino);
        let look = branch.searches.stamp.load(SeqCst);
        let mut rows = Vec::new();
        let (mut own, mut dir, mut name) = (natural, dir.clone(), Arc::<CStr>::from(name));
        loop {
            let parent = if dir.is_root() {
                ROOT
            } else {
                number::number(branch, branch.dev(), dir.copy_ino(branch.ix)?)
            };
            rows.push((own, Name { branch: branch.id, look, parent, name: name.to_bytes().to_vec() }));
            // The path there may be newer than the index, or the other way round.
            if parent == ROOT || self.where_it_was(branch, parent).ok()?.is_some() {
                break;
            }
            let up = dir.name()?;
            (own, name, dir) = (parent, up.name, up.parent);
        }
        if let Some(renamed) = &mut *branch.searches.renamed.lock() {
            renamed.extend(rows.iter().rev().cloned());
        }
        self.index.note_names(&mut rows)?;
        self.where_it_was(branch, natural).ok()?.map(drop)
    }

    /// The object, if it is where it was seen last.
    pub(crate) fn where_it_was(&self, branch: &Member, natural: Ino) -> Result<Option<(MountedFd, Stat)>> {
        let Some(path) = self.remembered(branch, natural) else { return Ok(None) };
        let root = branch.root();
        let opened = branch.ask(|| {
            let mut names = path.iter().rev().peekable();
            let mut dir = sys::at::reopen(root.as_fd(), OFlags::PATH | OFlags::DIRECTORY)?;
            while let Some(name) = names.next() {
                if names.peek().is_none() {
                    return sys::at::open(dir.as_fd(), name, OFlags::PATH, 0, branch.mounts);
                }
                dir = sys::at::open_dir(dir.as_fd(), name, branch.mounts)?;
            }
            Ok(dir)
        });
        let fd = match opened {
            Err(error) if is_elsewhere(error.errno()) => return Ok(None),
            opened => opened?,
        };
        let stat = branch.ask(|| branch.stat_fd(fd.as_fd()))?;
        let is_it = stat.nlink > 0 && number::number(branch, stat.dev, stat.ino) == natural;
        Ok(is_it.then_some((root.opened(fd), stat)))
    }

    /// Whether the object is where it was seen last.
    pub(crate) fn remembers(&self, branch: &Member, natural: Ino) -> bool {
        self.where_it_was(branch, natural).is_ok_and(|found| found.is_some())
    }

    /// The names that led to the object, the last one first.
    fn remembered(&self, branch: &Member, natural: Ino) -> Option<Vec<CString>> {
        let mut names = Vec::new();
        let mut at = natural;
        while at != ROOT {
            let seen =
                self.index.name(at).filter(|seen| seen.branch == branch.id && names.len() < DEEPEST)?;
            names.push(CString::new(seen.name).ok()?);
            at = seen.parent;
        }
        Some(names)
    }

    /// Indexes everything on `branch`, in the index that has it.
    ///
    /// # Errors
    /// The branch cannot be seen as a whole, or not all of it is indexed.
    fn look_through(&self, branch: &Member) -> Result<KeptBy> {
        tracing::info!(branch = %branch.path.display(), "looking for an object by its number: the branch's file system cannot open by number, so its names are searched");
        let look = branch.searches.stamp.load(SeqCst);
        let mut waiting = vec![(DirPath::from(Vec::new()), ROOT)];
        let mut rows = Vec::with_capacity(BATCH);
        let kept_by = self.index.note_names(&mut rows).ok_or(OpError::UNSURE)?;
        let keep = |rows: &mut Vec<_>| match self.index.note_names(rows) {
            Some(by) if by == kept_by => Ok(()),
            _ => Err(OpError::UNSURE),
        };
        let mut unseen = None;
        while let Some((dir, parent)) = waiting.pop() {
            let opened =
                branch.ask(|| open_path(branch, &dir.path())).and_then(|fd| Entries::of(branch, fd.as_fd()));
            let mut entries = match opened {
                Err(error) if is_elsewhere(error.errno()) => continue,
                // Its content is unknown: the object may be in it, or in another.
                Err(error) if error.errno() == Errno::ACCESS => {
                    unseen = Some(error);
                    continue;
                }
                opened => opened?,
            };
            while let Some(FoundEntry { kind, ino, name }) = entries.next_entry()? {
                let natural = number::number(branch, branch.dev(), ino);
                if kind.is_none_or(|kind| kind == Kind::Dir) {
                    waiting.push((DirPath::below(&dir, name.to_bytes().to_vec()), natural));
                }
                rows.push((natural, Name { branch: branch.id, look, parent, name: name.into_bytes() }));
                if rows.len() >= BATCH {
                    keep(&mut rows)?;
                }
            }
        }
        keep(&mut rows)?;
        unseen.map_or(Ok(kept_by), Err)
    }
}

/// An object that is no directory any more, or was renamed, has no entries; nor has a mount point of another file system.
/// One that may not be read has.
fn is_elsewhere(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV)
}
