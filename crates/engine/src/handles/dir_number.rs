//! The number of a directory, and how it stays the same.
//!
//! It is the number of the first copy, whatever the branches' order. Of the copies without a mark, the first is the one that
//! came to the pool first, by its birth or with its branch; of those that came together, the oldest. If the pool is exported,
//! later copies are marked with that number when they are seen beside the first. Should the first copy go, they lead to it.
//!
//! A directory may be renamed out of band on some of its branches. Then one half has the first copy, and the number;
//! the marks on the other half mean nothing, and go: each half is a directory of its own from then on.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_identity::index::IndexEntry;
use fsstack_identity::mark;
use fsstack_identity::number::{self, Identity};
use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, Time};
use smallvec::SmallVec;

use crate::inode::{Inode, InodeName};
use crate::member::Member;
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::recheck::{has_one_of, note_new_copies};
use crate::tree::resolve::DirStats;
use crate::tree::tree_lock::TreeLock;
use crate::tree::walk::is_astray;

/// Copies of a directory: its identity by each, its branch, and the branch's inode number.
type Naturals = SmallVec<[(Identity, BranchIx, u64); 2]>;

/// In nanoseconds, as [`Branch::joined`].
fn since_1970(time: Time) -> u64 {
    u64::try_from(time.sec)
        .map_or(0, |sec| sec.saturating_mul(1_000_000_000).saturating_add(u64::from(time.nsec)))
}

impl Tree {
    /// The number of a directory, whose copies are all that there are.
    pub(crate) fn dir_identity(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        stats: &DirStats,
    ) -> Result<Identity> {
        let id = self.chosen_identity(pool, parent, name, stats)?;
        stats.iter().for_each(|(at, stat)| self.keep_other(pool.branch(*at), stat, id));
        Ok(id)
    }

    fn chosen_identity(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        stats: &DirStats,
    ) -> Result<Identity> {
        let mut ids: Naturals = stats
            .iter()
            .map(|(at, stat)| (self.copy_identity(pool, pool.branch(*at), stat, stats), *at, stat.ino))
            .collect();
        let born = |at| stats.iter().find(|(on, _)| *on == at).and_then(|(_, stat)| stat.btime);
        ids.sort_by_key(|(_, at, _)| {
            let (branch, born) = (pool.branch(*at), born(*at));
            (born.map_or(0, since_1970).max(branch.joined()), born, branch.id)
        });
        // A live directory keeps its number when the branch that it came from leaves, or an older one is added.
        let live = self.known(parent, name).filter(|live| live.is_dir() && has_one_of(live, stats));
        let live = live.or_else(|| {
            let known = |id: &Identity| self.inodes.get(id.ino).filter(|known| known.id == *id);
            ids.iter().find_map(|(id, ..)| known(id))
        });
        // The location cache may have forgotten the name.
        let live = live.or_else(|| {
            ids.iter().find_map(|(_, at, own)| {
                let live = self.inodes.by_copy(natural(pool, (*at, *own)));
                live.filter(|live| live.copy_ino(*at) == Some(*own))
            })
        });
        if let Some(live) = live {
            self.keep_number(pool, &live, None);
            note_new_copies(self, pool, (parent, name), &live, stats);
            return Ok(live.id);
        }
        if pool.is_one_plain_branch() && !may_be_guarded(self, pool, &ids) {
            return ids.first().map(|(id, ..)| *id).ok_or(OpError::MISSING);
        }
        let marks = self.copy_marks(pool, parent, name, stats, &mut ids)?;
        let unmarked = ids.iter().zip(&marks).find(|(_, marked)| marked.is_none()).map(|((id, ..), _)| *id);
        // The copy that gave this number has left, and the index keeps it for the directory: copies made since count for less.
        let guarded = marks
            .iter()
            .map_while(|marked| *marked)
            .find(|marked| ids.iter().all(|(id, ..)| id.ino != marked.ino) && is_guarded(self, *marked));
        // The mark of a later copy names the first copy. The first copy has a mark itself only if it was merged with another directory,
        // whose own copy has left since.
        let is_first = |id: &Identity| marks.iter().flatten().any(|marked| marked == id);
        let first = ids.iter().map(|(id, ..)| *id).find(|id| unmarked.is_none() && is_first(id));
        let guarded = guarded.filter(|_| first.is_none());
        let own = unmarked.or(first).or(ids.first().map(|(id, ..)| *id));
        if pool.is_one_plain_branch() {
            return guarded.or(own).ok_or(OpError::MISSING);
        }
        // All copies are later ones: the first is lost or out of reach, but its number lives on, unless that
        // directory is alive elsewhere.
        let is_lost = unmarked.is_none() && first.is_none();
        let lost = || marks.iter().flatten().next().copied().filter(|_| is_lost);
        let id = match guarded.or_else(lost) {
            Some(marked)
                if !self.is_another(pool, parent, name, marked, &ids)? && !self.is_free(pool, marked) =>
            {
                Some(marked)
            }
            _ => own,
        };
        let id = id.ok_or(OpError::MISSING)?;
        if pool.settings.nfs_export {
            let copies =
                ids.iter().zip(&marks).map(|((natural, at, own), marked)| (*natural, *at, *own, *marked));
            self.mark_copies(pool, parent, name, id, copies);
        }
        Ok(id)
    }

    /// Whether the number that all copies of `name` in `parent` are marked with belongs to another directory. If that is for
    /// good their marks go.
    ///
    /// # Errors
    /// That is not known.
    fn is_another(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        marked: Identity,
        copies: &Naturals,
    ) -> Result<bool> {
        // While a rename is half done it is alive under its old name.
        let elsewhere = match self.inodes.get(marked.ino).and_then(|live| Some((live.name()?, live))) {
            Some((is, live)) if is.parent.id != parent.id || *is.name != *name => {
                !self.has_left_name(pool, &live, &is)?
            }
            Some(_) | None => false,
        };
        let parted = self.is_parted(pool, parent, name, marked, copies);
        if parted {
            self.part(pool, parent, name, marked, copies);
        }
        Ok(elsewhere || parted)
    }

    /// Whether the number `marked` may become another object's at any time: the copy that gave it is gone from a branch that
    /// answers, and the index does not guard it.
    fn is_free(&self, pool: &Pool, marked: Identity) -> bool {
        if pool.settings.nfs_export || is_guarded(self, marked) {
            return false;
        }
        let Some((at, own)) = pool.branch_of(marked.ino).zip(number::inode_of(marked.ino)) else {
            return false;
        };
        let branch = pool.branch(at);
        branch.by_number.is_some()
            && match self.open_raw(branch, own) {
                Ok(None) => true,
                Ok(Some((_, stat))) => {
                    // It may have been marked while generations were not exact.
                    let plain = sys::Stat { version: None, ..stat };
                    [stat, plain].iter().all(|stat| number::identity(branch, stat) != marked)
                }
                Err(_) => false,
            }
    }

    /// Whether `name`, by which the live directory `dir` was seen last, leads to none of its copies any more: it was renamed
    /// out of band.
    ///
    /// # Errors
    /// That is not known.
    fn has_left_name(&self, pool: &Pool, dir: &Inode, name: &InodeName) -> Result<bool> {
        for at in dir.copies() {
            match self.stat_in(pool, &name.parent, at, &name.name) {
                Ok(there) if dir.copy_ino(at) == Some(there.ino) => return Ok(false),
                Err(error) if !is_astray(error) => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(true)
    }

    /// Whether the copy that gave the number `id` is in the pool under another path than `copies`, which are `name` in `parent`.
    /// These are only the result of one look, maybe in the middle of a rename, a fault, or a branch's arrival. A first copy with
    /// their path is one of them, and an unknown one is not parted.
    fn is_parted(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        id: Identity,
        copies: &Naturals,
    ) -> bool {
        let Some(first) = self.path_of_first(pool, id, copies) else { return false };
        copies.iter().all(|(_, at, own)| {
            self.path_of_copy(pool, parent, name, *at, *own)
                .is_ok_and(|path| path.is_some_and(|is| is != first))
        })
    }

    /// Place of the copy that gave the number `id`, if it is none of `copies`.
    fn path_of_first(&self, pool: &Pool, id: Identity, copies: &Naturals) -> Option<Vec<u8>> {
        let (at, own) = pool.branch_of(id.ino).zip(number::inode_of(id.ino))?;
        let branch = pool.branch(at);
        if copies.iter().any(|(_, on, ino)| (*on, *ino) == (at, own)) {
            return None;
        }
        let there = match branch.by_number {
            Some(_) => self.open_raw(branch, own),
            None => self.where_it_was(branch, id.ino),
        };
        // A branch that cannot be asked is out of reach.
        let (fd, stat) = there.ok().flatten()?;
        // It may have been marked while generations were not exact.
        let plain = sys::Stat { version: None, ..stat };
        let is_it = stat.is_dir() && [stat, plain].iter().any(|stat| number::identity(branch, stat) == id);
        if is_it { self.path_of(branch, fd.as_fd()).ok().flatten() } else { None }
    }

    /// Where `name` in `parent` is on the branch `at`, if it still is the directory with the inode number `own` there.
    fn path_of_copy(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        at: BranchIx,
        own: u64,
    ) -> Result<Option<Vec<u8>>> {
        let (branch, dir) = (pool.branch(at), self.dirfd(pool, parent, at)?);
        let fd = branch.ask(|| sys::at::open_dir(dir.as_fd(), name, branch.mounts))?;
        let is_it = branch.ask(|| sys::at::stat_fd(fd.as_fd()))?.ino == own;
        if is_it { self.path_of(branch, fd.as_fd()) } else { Ok(None) }
    }

    /// Removes the marks of these copies, which carry the number `id` and are not of that directory any more.
    fn part(&self, pool: &Pool, parent: &Arc<Inode>, name: &CStr, id: Identity, copies: &Naturals) {
        if !pool.settings.nfs_export || TreeLock::is_held_here() {
            return;
        }
        // No rename is half done that these are one half of.
        let Ok(_tree_lock) = self.tree_lock.read(pool) else { return };
        for (_, at, own) in copies {
            let branch = pool.branch(*at);
            let is_it = self.stat_in(pool, parent, *at, name).is_ok_and(|stat| stat.ino == *own);
            if !is_it || !branch.is_writable() || !self.is_parted(pool, parent, name, id, copies) {
                return;
            }
            if unmark(self, pool, (parent, name), (branch, *own), id) {
                tracing::info!(?name, branch = %branch.path.display(), "directory renamed out of band on some of its branches; it is two directories now");
            }
        }
    }

    /// The marks of these copies, as far as they count. A copy with a number of its own (`identify.rs`) is no later copy.
    fn copy_marks(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        stats: &DirStats,
        ids: &mut Naturals,
    ) -> Result<SmallVec<[Option<Identity>; 2]>> {
        let mut marks = SmallVec::new();
        for (id, at, own) in ids {
            let branch = pool.branch(*at);
            let fd = self.dirfd(pool, parent, *at)?;
            let mark = branch.ask(|| mark::of(branch, On::Name(fd.as_fd(), name), mark::DIR, *own))?;
            let stat = stats.iter().find(|(on, _)| *on == *at).map(|(_, stat)| stat);
            let other = stat.map(|stat| number::another(number::identity(branch, stat)));
            let mark = match mark {
                Some(mark) if other == Some(mark) => {
                    *id = mark;
                    None
                }
                mark => mark,
            };
            marks.push(mark);
            if mark.is_none() && !pool.settings.nfs_export {
                break; // the one that counts
            }
        }
        Ok(marks)
    }

    /// Keeps NFS handles of the directory `id` valid when its first copy is lost: all others are marked
    /// and in the index, and the first one has no mark.
    fn mark_copies(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        id: Identity,
        copies: impl Iterator<Item = (Identity, BranchIx, u64, Option<Identity>)>,
    ) {
        for (natural, at, own, marked) in copies {
            let branch = pool.branch(at);
            if natural.ino == id.ino {
                if let Some(another) = marked.filter(|marked| *marked != id) {
                    unmark(self, pool, (parent, name), (branch, own), another);
                }
                continue;
            }
            let place = number::number(branch, branch.dev(), own);
            self.index.note_dir(branch, id, place);
            if marked != Some(id)
                && branch.is_writable()
                && let Ok(fd) = self.dirfd(pool, parent, at)
                && put(branch, On::Name(fd.as_fd(), name), id, own)
            {
                // The directory is not known by the numbers that the copy had before.
                let before = marked.into_iter().chain((natural.ino != place).then_some(natural));
                self.index.forget_each(&before.map(|before| (before, Some(place))).collect::<Vec<_>>());
            }
        }
    }

    /// Records that the directory `id` has the copy `name` in `parent` on the branch `at`, too.
    pub(crate) fn new_copy(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        id: Identity,
        at: BranchIx,
        own: u64,
    ) {
        note_used_again(self, pool.branch(at), id, own);
        if pool.settings.nfs_export
            && let Ok(fd) = self.dirfd(pool, parent, at)
        {
            self.note_copy(pool.branch(at), On::Name(fd.as_fd(), name), id, own);
        }
    }

    /// Has lookups find the live directory `dir` by its copies, if none of them gives its number: the one that did has left, or is on
    /// the branch `leaving`, which is about to lose it.
    pub(crate) fn keep_number(&self, pool: &Pool, dir: &Arc<Inode>, leaving: Option<BranchIx>) {
        let copies = dir.copies_by_number();
        let staying = copies.iter().filter(|(at, _)| Some(*at) != leaving);
        let naturals = staying.map(|copy| natural(pool, *copy));
        if naturals.clone().all(|natural| natural != dir.id.ino) {
            self.inodes.note_copies(dir, naturals);
            // A new object on that branch may have the number by itself.
            self.index.note_number(dir.id.ino);
        }
    }

    /// Like [`Self::new_copy`], which `on` stands for. Known ones are skipped.
    pub(crate) fn note_copy(&self, branch: &Member, on: On<'_>, id: Identity, own: u64) {
        note_used_again(self, branch, id, own);
        let natural = number::number(branch, branch.dev(), own);
        if self.index.note_dir(branch, id, natural)
            && branch.is_writable()
            && branch.ask(|| mark::read(on, mark::DIR, own)).is_ok_and(|marked| marked != Some(id))
        {
            put(branch, on, id, own);
        }
    }
}

/// The copy of `dir` on the branch `leaving` is about to go. If it gave the directory its number, that stays the directory's own: the
/// other copies are marked with it, and the index keeps new objects from getting it. On disk within a second.
pub(crate) fn guard_number(tree: &Tree, pool: &Pool, dir: &Arc<Inode>, leaving: BranchIx) {
    let copies = dir.copies_by_number();
    let staying = copies.iter().filter(|(at, _)| *at != leaving);
    if staying.clone().any(|copy| natural(pool, *copy) == dir.id.ino) {
        return;
    }
    for (at, own) in staying {
        let branch = pool.branch(*at);
        if branch.is_writable()
            && tree.index.guard_dir(branch, dir.id, natural(pool, (*at, *own)))
            && let Ok(fd) = tree.dirfd(pool, dir, *at)
        {
            put(branch, On::Fd(fd.as_fd()), dir.id, *own);
        }
    }
}

/// The copy of `dir` with the inode number `own` is gone from the branch `at`.
pub(crate) fn forget_copy(tree: &Tree, pool: &Pool, dir: &Inode, (at, own): (BranchIx, u64)) {
    let place = natural(pool, (at, own));
    // A number that leads nowhere by itself was made from one of its places, by which `check` distinguishes it.
    let leads = number::inode_of(dir.id.ino).is_some();
    let is_known = |known: &IndexEntry| known.id == dir.id && known.naturals.contains(&place);
    if leads && tree.index.places(dir.id.ino).iter().any(is_known) {
        tree.index.forget(dir.id, Some(place));
    }
}

/// A new copy of the directory `id` on `branch` may have the inode number `own` of its first copy, which was removed. Lookups find the
/// directory by it all the same: the kernel would take it for another one, and fail all calls on it where it is open.
fn note_used_again(tree: &Tree, branch: &Member, id: Identity, own: u64) {
    let natural = number::number(branch, branch.dev(), own);
    if natural == id.ino
        && let Some(dir) = tree.inodes.get(natural).filter(|dir| dir.id == id)
    {
        tree.inodes.note_copies(&dir, std::iter::once(natural));
    }
}

/// Whether the index keeps the number of the directory `id` from other objects.
fn is_guarded(tree: &Tree, id: Identity) -> bool {
    tree.index.places(id.ino).iter().any(|known| known.id == id)
}

/// Whether one of `copies` may be marked with a number that the index guards.
fn may_be_guarded(tree: &Tree, pool: &Pool, copies: &[(Identity, BranchIx, u64)]) -> bool {
    copies.iter().any(|(_, at, own)| !tree.index.knows_nothing_of(natural(pool, (*at, *own))))
}

/// The number that a directory has by its copy: a branch, and the inode number there.
fn natural(pool: &Pool, (at, own): (BranchIx, u64)) -> Ino {
    let branch = pool.branch(at);
    number::number(branch, branch.dev(), own)
}

/// Removes the mark `id` of the copy of `name` in `parent` with the inode number `own` on `branch`. False: it stays.
fn unmark(
    tree: &Tree,
    pool: &Pool,
    (parent, name): (&Arc<Inode>, &CStr),
    (branch, own): (&Member, u64),
    id: Identity,
) -> bool {
    // By its descriptor: another directory may get the name meanwhile.
    let copy = || {
        let dir = tree.dirfd(pool, parent, branch.ix)?;
        branch.ask(|| sys::at::open_dir(dir.as_fd(), name, branch.mounts))
    };
    let remove = |fd: OwnedFd| {
        branch.ask(|| {
            let is_it = sys::at::stat_fd(fd.as_fd())?.ino == own;
            if is_it { xattr::remove(On::Path(fd.as_fd()), mark::DIR).map(|()| true) } else { Ok(false) }
        })
    };
    let is_gone = branch.is_writable() && copy().and_then(remove).unwrap_or(false);
    if is_gone {
        tree.index.forget(id, Some(number::number(branch, branch.dev(), own)));
    }
    is_gone
}

/// Marks a copy on `branch`. False: it stays unmarked.
fn put(branch: &Member, on: On<'_>, id: Identity, own: u64) -> bool {
    branch.ask(|| mark::put(on, mark::DIR, id, own)).is_ok()
}
