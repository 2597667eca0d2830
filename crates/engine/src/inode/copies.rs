//! The copies of a directory: one or more, in the pool's order, and what is known of the names in them.

use std::ffi::CStr;
use std::num::NonZeroU32;
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::health::holder::ThreadInCalls;
use fsstack_identity::number::hash_name;
use fsstack_pool::{BranchIx, BranchSet};
use fsstack_sync::atomic::Ordering::{Relaxed, SeqCst};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::Stat;
use smallvec::SmallVec;

use super::clock::Moment;
use super::copy_guards::CopyGuards;
use super::found_copies::Copies;
use super::kernel_listing::KernelListing;
use super::{Inode, Location};

/// Lifetime of a missing name: it may be made out of band. The kernel looks a name up and then makes it, microseconds apart;
/// an entry older than a busy machine makes of that is asked for again.
const MISS_AGE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct DirCopies {
    pub(super) copies: SmallVec<[Copy; 2]>,
    /// Branches that could not be asked for a copy: a bit each.
    pub(super) unsure: u64,
    /// When a branch came back that had no copy before: older answers do not know it.
    pub(super) invalidated: Moment,
    /// When the directory was last renamed, or lost a copy: older answers may have copies that are gone, or lack those that had
    /// another name by then.
    pub(super) settled: Moment,
    /// When all branches were last asked, if they need not be asked again at once.
    pub(super) checked: Option<Instant>,
    /// Hashes of names that no branch had since `missed`.
    pub(super) misses: [u64; 2],
    pub(super) missed: Instant,
    /// The listing that the kernel keeps.
    pub(super) kept: KernelListing,
    pub(super) copy_guards: CopyGuards,
    /// Hashes of the names that threads are creating (`create_guard.rs`).
    pub(super) creating: SmallVec<[(u64, ThreadInCalls); 1]>,
}

#[derive(Debug)]
pub(super) struct Copy {
    pub(super) branch: BranchIx,
    pub(super) ino: u64,
    pub(super) fd: Option<Arc<DirFd>>,
    pub(super) used: bool,
    /// Last attributes from a remote branch: used while the branch may hang.
    pub(super) reported: Option<Box<Stat>>,
    /// When it was given to the branch.
    pub(super) given: Moment,
    /// Mount generation of the branch, plus one, at which a name in it was changed since the last sync.
    pub(super) changed: Option<NonZeroU32>,
    /// The branch was asked for an access ACL, and there is none.
    pub(super) lacks_acl: bool,
}

pub(super) fn bit(branch: BranchIx) -> u64 {
    1 << (branch.0 & 63)
}

impl Inode {
    /// The branches that have a copy of this directory, in order.
    pub fn copies(&self) -> SmallVec<[BranchIx; 4]> {
        self.with_dir(|dir| dir.copies.iter().map(|copy| copy.branch).collect()).unwrap_or_default()
    }

    /// The same, each with the branch's inode number of the copy.
    pub(crate) fn copies_by_number(&self) -> SmallVec<[(BranchIx, u64); 4]> {
        let copies = |dir: &mut DirCopies| dir.copies.iter().map(|copy| (copy.branch, copy.ino)).collect();
        self.with_dir(copies).unwrap_or_default()
    }

    /// The same as a set.
    pub(crate) fn branches(&self) -> BranchSet {
        self.branches_and_parent().0
    }

    /// The branches that have a copy of this directory, and the directory that it lies in, if it is not the root.
    pub(crate) fn branches_and_parent(&self) -> (BranchSet, Option<Arc<Self>>) {
        let state = self.state.lock();
        let branches = match &state.location {
            Location::Dir(dir) => dir.copies.iter().map(|copy| copy.branch).collect(),
            Location::File(_) | Location::Nowhere => BranchSet::default(),
        };
        (branches, state.names.first().map(|name| name.parent.clone()))
    }

    /// Whether `branch` has a copy.
    pub fn is_on(&self, branch: BranchIx) -> bool {
        self.with_dir(|dir| dir.copies.iter().any(|copy| copy.branch == branch)).unwrap_or(false)
    }

    /// The branch's inode number of the copy there.
    pub fn copy_ino(&self, branch: BranchIx) -> Option<u64> {
        self.copy_on(branch).map(|(ino, _)| ino)
    }

    /// Some branch that might have a copy, or a name in it, could not be asked.
    pub fn is_unsure(&self) -> bool {
        self.unsure() != 0
    }

    /// Branches that might have a copy, and could not be asked: a bit each.
    pub(crate) fn unsure(&self) -> u64 {
        self.with_dir(|dir| dir.unsure).unwrap_or(0)
    }

    /// Whether `branch` might have a copy, and could not be asked.
    pub fn is_unsure_of(&self, branch: BranchIx) -> bool {
        self.with_dir(|dir| dir.unsure & bit(branch) != 0).unwrap_or(false)
    }

    /// When all branches were last asked for copies.
    pub fn checked(&self) -> Option<Instant> {
        self.with_dir(|dir| dir.checked)?
    }

    /// All branches were asked: these have copies.
    pub fn update_copies(&self, found: &Copies) {
        self.with_dir(|dir| dir.update(found));
    }

    /// The directory was renamed, or that was undone: these are its copies, whatever lookups found halfway.
    pub(crate) fn keeps_copies(&self, stats: &[(BranchIx, Stat)]) {
        let copies = stats.iter().filter(|(_, stat)| stat.is_dir()).map(|(at, stat)| (*at, stat.ino));
        self.with_dir(|dir| {
            dir.settled = Moment::of_change();
            dir.update(&Copies::known(copies));
        });
    }

    /// A copy was made on `branch`; `order` tells where it belongs.
    pub fn add_copy(
        &self,
        branch: BranchIx,
        ino: u64,
        fd: Option<Arc<DirFd>>,
        order: impl Fn(BranchIx) -> usize,
    ) {
        self.with_dir(|dir| {
            let given = Moment::of_change();
            dir.copies.retain(|copy| copy.branch != branch);
            let at = dir.copies.iter().take_while(|copy| order(copy.branch) < order(branch)).count();
            let (reported, changed, lacks_acl) = (None, None, false);
            dir.copies.insert(at, Copy { branch, ino, fd, used: true, reported, given, changed, lacks_acl });
        });
    }

    /// The copy on `branch`, if there is one: its number there, and when it was given to the branch.
    pub(crate) fn copy_on(&self, branch: BranchIx) -> Option<(u64, Moment)> {
        let copy = |dir: &mut DirCopies| {
            dir.copies.iter().find(|copy| copy.branch == branch).map(|copy| (copy.ino, copy.given))
        };
        self.with_dir(copy)?
    }

    /// The copy `was` on `branch`, as [`Self::copy_on`] returned it, is gone. One that came since stays.
    pub(crate) fn drop_copy(&self, branch: BranchIx, was: (u64, Moment)) {
        self.with_dir(|dir| {
            let before = dir.copies.len();
            dir.copies.retain(|copy| copy.branch != branch || (copy.ino, copy.given) != was);
            if dir.copies.len() < before {
                (dir.settled, dir.checked) = (Moment::of_change(), None);
            }
        });
    }

    /// `branch` is leaving the pool: what is remembered of it goes. Whether this was a file there, whose last
    /// knower this then is.
    pub(crate) fn leave(&self, branch: BranchIx) -> bool {
        let mut state = self.state.lock();
        match &mut state.location {
            Location::Dir(dir) => {
                let had_unlinked_fd = dir.is_first(branch);
                dir.copies.retain(|copy| copy.branch != branch);
                dir.unsure &= !bit(branch);
                dir.checked = None;
                if had_unlinked_fd {
                    state.unlinked_fd = None;
                }
                false
            }
            Location::File(file) => file.branch == branch,
            Location::Nowhere => false,
        }
    }

    /// It is on no branch any more. A new lookup of its name gets another object.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Relaxed);
        let mut state = self.state.lock();
        state.location = Location::Nowhere;
        state.unlinked_fd = None;
    }

    /// Whether its branch has left the pool.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }

    /// A branch was added: what all branches were asked for is to be asked again.
    pub(crate) fn invalidate(&self) {
        self.with_dir(|dir| {
            (dir.checked, dir.misses) = (None, [0; 2]);
            dir.kept.forget();
        });
    }

    /// `branch` may have a copy by now, which it had not when it was asked last.
    pub(crate) fn invalidate_copy_on(&self, branch: BranchIx) {
        let is_root = self.is_root();
        self.with_dir(|dir| {
            if !is_root && dir.copies.iter().all(|copy| copy.branch != branch) {
                dir.unsure |= bit(branch);
                dir.invalidated = Moment::of_change();
            }
        });
    }

    /// The descriptor of the copy on `branch`, if it is open.
    pub fn cached_dirfd(&self, branch: BranchIx) -> Option<Arc<DirFd>> {
        self.with_dir(|dir| {
            let copy = dir.copies.iter_mut().find(|copy| copy.branch == branch)?;
            copy.used = true;
            copy.fd.clone()
        })?
    }

    /// The copy, if there is only one: its branch, its number there, and when it was given to the branch.
    pub(crate) fn only_copy(&self) -> Option<(BranchIx, u64, Moment)> {
        self.with_dir(|dir| dir.only().map(|copy| (copy.branch, copy.ino, copy.given)))?
    }

    /// Whether there is only one copy, and it is known to have no access ACL.
    pub(crate) fn only_copy_lacks_acl(&self) -> bool {
        self.with_dir(|dir| dir.only().is_some_and(|copy| copy.lacks_acl)).unwrap_or(false)
    }

    /// The copy `only`, as [`Self::only_copy`] returned it, was asked for an access ACL, and has none.
    pub(crate) fn note_copy_without_acl(&self, only: (BranchIx, u64, Moment)) {
        self.with_dir(|dir| {
            let is_it = |copy: &&mut Copy| (copy.branch, copy.ino, copy.given) == only;
            dir.copies.iter_mut().filter(is_it).for_each(|copy| copy.lacks_acl = true);
        });
    }

    /// Records the attributes of the copy on `branch`, a remote one.
    pub(crate) fn was_reported(&self, branch: BranchIx, stat: &Stat) {
        self.with_dir(|dir| {
            if let Some(copy) = dir.copies.iter_mut().find(|copy| copy.branch == branch) {
                match &mut copy.reported {
                    Some(reported) => **reported = *stat,
                    none => *none = Some(Box::new(*stat)),
                }
            }
        });
    }

    /// The copy on `branch` was changed: its recorded attributes are dropped.
    pub(crate) fn forget_reported(&self, branch: BranchIx) {
        self.with_dir(|dir| {
            dir.copies.iter_mut().filter(|copy| copy.branch == branch).for_each(|copy| copy.reported = None);
        });
    }

    /// Last recorded attributes of the copy on `branch`.
    pub(crate) fn reported(&self, branch: BranchIx) -> Option<Stat> {
        self.with_dir(|dir| {
            let copy = dir.copies.iter().find(|copy| copy.branch == branch)?;
            copy.reported.as_deref().copied()
        })?
    }

    /// Keeps `fd` as the descriptor of the copy `was` on `branch`, as [`Self::copy_on`] returned it; not if another copy is there by
    /// now, nor if it is on a mount that was replaced. Whether it is kept.
    pub(crate) fn keep_dirfd(&self, branch: &Branch, was: (u64, Moment), fd: &Arc<DirFd>) -> bool {
        self.with_dir(|dir| {
            // With the inode locked: a mount that is replaced from now on has the descriptor closed (`close_on`).
            let is_it = |copy: &&mut Copy| copy.branch == branch.ix && (copy.ino, copy.given) == was;
            let copy = dir.copies.iter_mut().find(is_it)?;
            if fd.mount_generation != branch.mount_generation() {
                return None;
            }
            copy.fd = Some(fd.clone());
            copy.used = true;
            Some(())
        })
        .flatten()
        .is_some()
    }

    /// Forgets `fd`, if it is the descriptor of the copy on `branch`.
    pub(crate) fn drop_dirfd(&self, branch: BranchIx, fd: &Arc<DirFd>) {
        let is_it = |copy: &mut Copy| copy.fd.take_if(|kept| Arc::ptr_eq(kept, fd)).is_some();
        self.with_dir(|dir| dir.copies.iter_mut().filter(|copy| copy.branch == branch).any(is_it));
    }

    /// Closes the descriptor on `branch` unless it was used since the last call; true if it was.
    pub(crate) fn retire_dirfd(&self, branch: BranchIx) -> bool {
        // A locked inode is in use.
        let Some(mut state) = self.state.try_lock() else { return true };
        let state = &mut *state;
        let Location::Dir(dir) = &mut state.location else { return false };
        let Some(copy) = dir.copies.iter_mut().find(|copy| copy.branch == branch) else { return false };
        // A removed directory is reached by it only. Others count it.
        if copy.fd.as_ref().zip(state.unlinked_fd.as_ref()).is_some_and(|(fd, kept)| Arc::ptr_eq(fd, kept)) {
            return false;
        }
        if std::mem::take(&mut copy.used) {
            return true;
        }
        copy.fd = None;
        false
    }

    /// How many names have come to be in this directory: for [`Self::note_miss`].
    pub fn born(&self) -> u32 {
        self.born.load(SeqCst)
    }

    /// `name` was made: a lookup that is just finding it missing does not record that.
    pub fn has_new(&self, name: &CStr) {
        self.born.fetch_add(1, SeqCst);
        self.take_miss(name);
    }

    /// Records that no branch has `name`, if nothing was made since [`Self::born`] was `born`.
    pub fn note_miss(&self, name: &CStr, born: u32) {
        let hash = hash_name(self.id.ino, name.to_bytes()) | 1;
        self.with_dir(|dir| {
            if self.born() != born {
                return; // it may be what was made meanwhile
            }
            if dir.missed.elapsed() >= MISS_AGE {
                (dir.misses, dir.missed) = ([hash, 0], Instant::now());
            } else if dir.misses[0] != hash {
                dir.misses = [hash, dir.misses[0]];
            }
        });
    }

    /// Whether `name` was just found missing everywhere; asked once.
    pub fn take_miss(&self, name: &CStr) -> bool {
        let hash = hash_name(self.id.ino, name.to_bytes()) | 1;
        self.with_dir(|dir| {
            let known = dir.misses.iter_mut().find(|miss| **miss == hash);
            known.map(|miss| *miss = 0).is_some() && dir.missed.elapsed() < MISS_AGE
        })
        .unwrap_or(false)
    }

    pub(super) fn with_dir<T>(&self, f: impl FnOnce(&mut DirCopies) -> T) -> Option<T> {
        match &mut self.state.lock().location {
            Location::Dir(dir) => Some(f(dir)),
            Location::File(_) | Location::Nowhere => None,
        }
    }
}

impl DirCopies {
    fn only(&self) -> Option<&Copy> {
        self.copies.first().filter(|_| self.copies.len() == 1)
    }

    /// Whether the copy on `branch` is the one whose descriptor a removed directory keeps (`InodeState::unlinked_fd`).
    pub(super) fn is_first(&self, branch: BranchIx) -> bool {
        self.copies.first().is_some_and(|copy| copy.branch == branch)
    }

    /// Takes over what was found, and keeps the descriptors of copies that are still the same.
    pub(super) fn update(&mut self, found: &Copies) {
        if found.asked() < self.settled {
            self.checked = None;
            return;
        }
        let mut found = found.clone();
        let is_known = found.asked() == Moment::KNOWN;
        let mut complete = is_known || found.asked() >= self.invalidated;
        if complete {
            self.unsure &= found.unsure;
        }
        for at in 0..self.copies.len() {
            let Copy { branch, ino, given, .. } = self.copies[at];
            // Of a branch that could not be asked, what was known holds on: a copy there, or that there is none. So does a
            // copy that came while the others were being asked.
            let came_since = is_known || given > found.asked();
            let is_found = found.found.iter().any(|(known, _)| *known == branch);
            if is_found || !found.is_unsure_of(branch) && !came_since {
                continue;
            }
            complete &= !came_since;
            let later = &self.copies[at + 1..];
            let before = found.found.iter().position(|(next, _)| later.iter().any(|c| c.branch == *next));
            found.found.insert(before.unwrap_or(found.found.len()), (branch, ino));
        }
        let found = &found;
        self.checked = complete.then(Instant::now);
        let same = self.copies.len() == found.found.len()
            && self.copies.iter().zip(&found.found).all(|(copy, new)| (copy.branch, copy.ino) == *new);
        if same {
            return;
        }
        let mut old = std::mem::take(&mut self.copies);
        self.copies = found
            .found
            .iter()
            .map(|&(branch, ino)| {
                let kept = old.iter_mut().find(|copy| copy.branch == branch && copy.ino == ino);
                let lacks_acl = kept.as_ref().is_some_and(|copy| copy.lacks_acl);
                let (fd, reported, given, changed) = kept.map_or((None, None, Moment::NEVER, None), |copy| {
                    (copy.fd.take(), copy.reported.take(), copy.given, copy.changed)
                });
                Copy { branch, ino, fd, used: true, reported, given, changed, lacks_acl }
            })
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fsstack_identity::number::Identity;
    use fsstack_pool::Ino;

    const X: BranchIx = BranchIx(0);
    const Y: BranchIx = BranchIx(1);

    fn dir() -> Inode {
        Inode::dir(Identity { ino: Ino(7), generation: 0 }, &Copies::known([(X, 10)]))
    }

    fn answer(mut asked: Copies, found: &[(BranchIx, u64)]) -> Copies {
        asked.found.extend_from_slice(found);
        asked
    }

    #[test]
    fn a_copy_that_came_while_the_branches_were_asked_stays() {
        let dir = dir();
        let asked = Copies::asked_now();
        dir.add_copy(Y, 20, None, |at| usize::from(at.0));
        dir.update_copies(&answer(asked, &[(X, 10)]));
        assert_eq!(dir.copies()[..], [X, Y]);
        assert!(dir.checked().is_none(), "not all was asked for");
        dir.update_copies(&answer(Copies::asked_now(), &[(X, 10)]));
        assert_eq!(dir.copies()[..], [X], "a later question finds it gone");
        assert!(dir.checked().is_some());
    }

    #[test]
    fn an_older_answer_neither_brings_a_removed_copy_back_nor_gives_its_number_to_the_next_one() {
        let dir = dir();
        dir.add_copy(Y, 20, None, |at| usize::from(at.0));
        let asked = [Copies::asked_now(), Copies::asked_now()];
        let older = asked.map(|asked| answer(asked, &[(X, 10), (Y, 20)]));
        dir.drop_copy(Y, dir.copy_on(Y).unwrap());
        dir.update_copies(&older[0]);
        assert_eq!(dir.copies()[..], [X]);
        dir.add_copy(Y, 21, None, |at| usize::from(at.0));
        dir.update_copies(&older[1]);
        assert_eq!((dir.copy_ino(X), dir.copy_ino(Y)), (Some(10), Some(21)));
        assert!(dir.checked().is_none());
        dir.update_copies(&answer(Copies::asked_now(), &[(X, 10), (Y, 22)]));
        assert_eq!(dir.copy_ino(Y), Some(22), "replaced out of band");
        assert!(dir.checked().is_some());
    }

    #[test]
    fn a_copy_that_came_since_another_was_missed_stays() {
        let dir = dir();
        dir.add_copy(Y, 20, None, |at| usize::from(at.0));
        let was = dir.copy_on(Y).unwrap();
        dir.drop_copy(Y, was);
        dir.add_copy(Y, 20, None, |at| usize::from(at.0));
        dir.drop_copy(Y, was);
        assert_eq!(dir.copies()[..], [X, Y]);
    }
}
