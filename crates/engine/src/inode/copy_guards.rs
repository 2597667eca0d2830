//! Claims on a directory's set of copies: giving it one more, changing all of them, removing the only one.
//!
//! A new copy is made with the attributes of the first one, and counts only when it is complete. A change of attributes is
//! made on the copies that count. If both went on at once, the new copy would lack the change, and the pool would show the
//! old rights again. So a change lets no copy begin, and waits for those under way. The kernel's lock of the directory does
//! not help: the new copy may be for an object further down.

use fsstack_branch::health::holder::ThreadInCalls;
use fsstack_pool::BranchIx;
use fsstack_sync::ranked::{COPY_CLAIM, HeldRank};
use fsstack_sync::time::{Duration, Instant};
use smallvec::SmallVec;

use super::Inode;
use super::copies::{DirCopies, bit};

/// Time without another try on a branch that could not hold the directory's attributes: they may be changed out of band.
const UNFIT_FOR: Duration = Duration::from_secs(10);

/// Threads that have a claim on the set of copies.
#[derive(Debug, Default)]
pub(super) struct CopyGuards {
    /// Those that give a branch a copy: one thread a branch.
    growing: SmallVec<[(BranchIx, ThreadInCalls); 1]>,
    /// The one that changes attributes on all copies.
    changing: Option<ThreadInCalls>,
    /// The one that removes the only copy.
    removing: Option<ThreadInCalls>,
    /// Branches that could not hold the attributes, a bit each, and since when.
    unfit: Option<(u64, Instant)>,
}

/// Right to give a branch a copy of the directory, until this drops: the only copy is not removed, and attributes do not change.
#[must_use = "the directory may be removed or changed when this drops"]
pub(crate) struct CopyGuard<'a> {
    dir: &'a Inode,
    at: BranchIx,
    _rank: HeldRank<COPY_CLAIM>,
}

/// Right to change attributes on all copies: until this drops no branch gets a copy, and no other thread changes them.
#[must_use = "the directory may get another copy when this drops"]
pub(crate) struct AttributeGuard<'a> {
    dir: &'a Inode,
    _rank: HeldRank<COPY_CLAIM>,
}

/// Right to remove the only copy: the directory gets no other until this drops.
#[must_use = "the directory may get another copy when this drops"]
pub(crate) struct RmdirGuard<'a> {
    dir: &'a Inode,
    /// The branch of the only copy.
    pub(crate) at: BranchIx,
    _rank: HeldRank<COPY_CLAIM>,
}

impl Drop for CopyGuard<'_> {
    fn drop(&mut self) {
        self.dir.with_dir(|dir| dir.copy_guards.growing.retain(|(at, _)| *at != self.at));
    }
}

impl Drop for AttributeGuard<'_> {
    fn drop(&mut self) {
        // The reason for which a branch could not hold the attributes may be gone.
        self.dir.with_dir(|dir| (dir.copy_guards.changing, dir.copy_guards.unfit) = (None, None));
    }
}

impl Drop for RmdirGuard<'_> {
    fn drop(&mut self) {
        self.dir.with_dir(|dir| dir.copy_guards.removing = None);
    }
}

impl AttributeGuard<'_> {
    /// Whether all copies that were begun before are complete.
    pub(crate) fn has_all(&self) -> bool {
        self.dir.with_dir(|dir| dir.copy_guards.growing.is_empty()).unwrap_or(true)
    }
}

impl Inode {
    /// Lets the caller give the branch `at` a copy. None while the only copy is removed, attributes are changed, or another
    /// thread gives that branch a copy: one that is made under its name shows before it is complete.
    pub(crate) fn grow(&self, at: BranchIx) -> Option<CopyGuard<'_>> {
        let rank = HeldRank::in_order();
        let copy_guard = self.with_dir(|dir| {
            let copy_guards = &mut dir.copy_guards;
            let may = copy_guards.removing.is_none()
                && copy_guards.changing.is_none()
                && copy_guards.growing.iter().all(|(other, _)| *other != at);
            if may {
                copy_guards.growing.push((at, ThreadInCalls::here()));
            }
            may
        });
        copy_guard.unwrap_or(true).then(|| CopyGuard { dir: self, at, _rank: rank })
    }

    /// Whether [`Self::change`] waits for a thread that may never come back.
    pub(crate) fn is_kept_by_stuck(&self) -> bool {
        let stuck = |holder: &Option<ThreadInCalls>| holder.as_ref().is_some_and(ThreadInCalls::is_stuck);
        self.with_dir(|dir| stuck(&dir.copy_guards.removing) || stuck(&dir.copy_guards.changing))
            .unwrap_or(false)
    }

    /// Whether [`Self::grow`] for the branch `at` waits for a thread that may never come back.
    pub(crate) fn is_kept_by_stuck_at(&self, at: BranchIx) -> bool {
        let stuck_there = |(other, by): &(BranchIx, ThreadInCalls)| *other == at && by.is_stuck();
        self.is_kept_by_stuck()
            || self.with_dir(|dir| dir.copy_guards.growing.iter().any(stuck_there)).unwrap_or(false)
    }

    /// Lets the caller change attributes on all copies, as soon as [`AttributeGuard::has_all`]. None while another thread does.
    pub(crate) fn change(&self) -> Option<AttributeGuard<'_>> {
        let rank = HeldRank::in_order();
        let changes = self.with_dir(|dir| {
            let free = dir.copy_guards.changing.is_none();
            if free {
                dir.copy_guards.changing = Some(ThreadInCalls::here());
            }
            free
        });
        changes.unwrap_or(true).then(|| AttributeGuard { dir: self, _rank: rank })
    }

    /// Whether a copy is being made by a thread that may never come back.
    pub(crate) fn is_grown_by_stuck(&self) -> bool {
        self.with_dir(|dir| dir.copy_guards.growing.iter().any(|(_, by)| by.is_stuck())).unwrap_or(false)
    }

    /// Lets the caller remove the directory. None if it has several copies or may be getting another, if a branch could not be
    /// asked for one, or if another thread removes it.
    pub(crate) fn go(&self) -> Option<RmdirGuard<'_>> {
        let rank = HeldRank::in_order();
        let at = self.with_dir(|dir| {
            let [only] = &dir.copies[..] else { return None };
            let copy_guards = &mut dir.copy_guards;
            if !copy_guards.growing.is_empty() || copy_guards.removing.is_some() || dir.unsure != 0 {
                return None;
            }
            copy_guards.removing = Some(ThreadInCalls::here());
            Some(only.branch)
        })??;
        Some(RmdirGuard { dir: self, at, _rank: rank })
    }

    /// Notes that `branch` cannot hold the attributes.
    pub(crate) fn note_unfit(&self, branch: BranchIx) {
        self.with_dir(|dir| {
            let known = dir.known_unfit();
            dir.copy_guards.unfit = Some((known | bit(branch), Instant::now()));
        });
    }

    /// Whether it was just found that `branch` cannot have the attributes.
    pub(crate) fn is_unfit_for(&self, branch: BranchIx) -> bool {
        self.with_dir(|dir| dir.known_unfit() & bit(branch) != 0).unwrap_or(false)
    }
}

impl DirCopies {
    fn known_unfit(&self) -> u64 {
        self.copy_guards.unfit.filter(|(_, since)| since.elapsed() < UNFIT_FOR).map_or(0, |(bits, _)| bits)
    }
}

#[cfg(test)]
mod tests {
    use fsstack_pool::Ino;

    use super::*;
    use crate::inode::Copies;
    use fsstack_identity::number::Identity;

    /// On another thread: none has two claims.
    fn elsewhere<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        fsstack_sync::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    const X: BranchIx = BranchIx(0);

    fn dir() -> Inode {
        Inode::dir(Identity { ino: Ino(7), generation: 0 }, &Copies::known([(X, 10)]))
    }

    #[test]
    fn an_only_copy_gets_no_other_while_it_goes() {
        let dir = dir();
        let rmdir_guard = dir.go().expect("one copy");
        assert_eq!(rmdir_guard.at, X);
        assert!(elsewhere(|| dir.grow(X).is_none() && dir.go().is_none()));
        drop(rmdir_guard);
        let copy_guard = dir.grow(X).expect("nobody removes it");
        assert!(elsewhere(|| dir.go().is_none() && dir.grow(BranchIx(1)).is_some()));
        assert!(elsewhere(|| dir.grow(X).is_none()), "one thread gives one branch a copy");
        drop(copy_guard);
        assert!(dir.go().is_some());
    }

    #[test]
    fn no_copy_is_begun_while_attributes_change_and_those_that_are_count_first() {
        let dir = dir();
        let copy_guard = dir.grow(X).expect("nothing else goes on");
        let changes = elsewhere(|| dir.change()).expect("nobody else changes it");
        assert!(!changes.has_all() && elsewhere(|| dir.change().is_none()));
        assert!(
            elsewhere(|| dir.grow(BranchIx(1)).is_none()),
            "another copy would be made with the old attributes"
        );
        drop(copy_guard);
        assert!(changes.has_all());
        drop(changes);
        assert!(dir.grow(X).is_some());
        assert!(dir.change().is_some());
    }

    #[test]
    fn a_branch_is_unfit_until_the_attributes_change() {
        let dir = dir();
        dir.note_unfit(X);
        assert!(dir.is_unfit_for(X) && !dir.is_unfit_for(BranchIx(1)));
        drop(dir.change());
        assert!(!dir.is_unfit_for(X));
    }
}
