//! Locks with a rank that fixes their order.
//!
//! Debug builds assert that a thread takes locks in the order of their ranks. Most are held only briefly, and debug
//! builds assert that no branch is called under them: a branch may hang, and every thread that needs the lock with it.
//! Locks held during calls have the ranks from [`LISTING`] to below [`IO_MODE`]. Release builds check nothing.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::{Mutex, MutexGuard};

/// Snapshots of the pool.
pub const CHANGES: u8 = 10;
/// One listing of a directory.
pub const LISTING: u8 = 20;
/// A name that is being created.
pub const NAME: u8 = 26;
/// The mode of a file, read and set.
pub const MODE: u8 = 28;
/// Location of an open file.
pub const PLACED: u8 = 30;
/// The tree lock.
pub const TREE: u8 = 32;
/// Claim on the copies of a directory.
pub const COPY_CLAIM: u8 = 34;
/// New names of a branch's files, had alone: for the removal of a last name.
pub const LINKS: u8 = 35;
/// Walk through a branch to find an object by number.
pub const WALK: u8 = 36;
/// Renames in the directories of a branch, had alone: at the end of a walk.
pub const STILL: u8 = 37;
/// Renames in the pool, had alone by the index.
pub const RENAMES: u8 = 38;
/// I/O mode of an open file.
pub const IO_MODE: u8 = 40;
/// Whether an open file's descriptor has O_NOATIME.
pub const NOATIME: u8 = 41;
/// Lock owners of an open file.
pub const OWNERS: u8 = 42;
/// Bulk copies in progress.
pub const COPIES: u8 = 43;
/// Files that are leaving their branch.
pub const MOVING: u8 = 44;
/// The queue of directory descriptors.
pub const BUDGET: u8 = 45;
/// Cached space of a branch.
pub const SPACE: u8 = 46;
/// Large files with reserved space on a branch.
pub const AWAITED: u8 = 47;
/// Names of directories, of which one is noted at a time.
pub const DIR_NAMES: u8 = 49;
/// Names of an inode and the branches that have it.
pub const INODE: u8 = 50;
/// Calls inside a branch, and callers that wait for a permit.
pub const CALLS: u8 = 60;

/// A mutex of rank `RANK`: while it is held, only locks of higher ranks are taken.
#[derive(Debug, Default)]
pub struct Ranked<T, const RANK: u8>(Mutex<T>);

/// A ranked mutex, held.
#[derive(Debug)]
pub struct RankedGuard<'a, T, const RANK: u8> {
    guard: MutexGuard<'a, T>,
    _held: HeldRank<RANK>,
}

impl<T, const RANK: u8> Ranked<T, RANK> {
    /// Makes an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Takes the lock. Debug builds panic if the thread has one of the same or a higher rank.
    #[track_caller]
    pub fn lock(&self) -> RankedGuard<'_, T, RANK> {
        let held = HeldRank::in_order();
        RankedGuard { guard: self.0.lock(), _held: held }
    }

    #[track_caller]
    /// Takes the lock if it is free. Allowed in any order, because it does not wait.
    pub fn try_lock(&self) -> Option<RankedGuard<'_, T, RANK>> {
        let guard = self.0.try_lock()?;
        // It did not wait, so any order is right.
        Some(RankedGuard { guard, _held: HeldRank::unordered() })
    }

    /// Like `lock`, but returns `None` after `timeout`.
    #[track_caller]
    pub fn try_lock_for(&self, timeout: Duration) -> Option<RankedGuard<'_, T, RANK>> {
        let held = HeldRank::in_order();
        let guard = self.0.try_lock_for(timeout)?;
        Some(RankedGuard { guard, _held: held })
    }

    /// Returns the value; exclusive access needs no lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T, const RANK: u8> Deref for RankedGuard<'_, T, RANK> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, const RANK: u8> DerefMut for RankedGuard<'_, T, RANK> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Asserts that the calling thread, about to call a branch, has no lock that must be held only briefly.
#[track_caller]
pub fn assert_none_held() {
    held::assert_none();
}

/// Rank of a lock that the thread holds, until it drops.
#[derive(Debug)]
pub struct HeldRank<const RANK: u8>;

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use super::{HeldRank, IO_MODE, LISTING};

    /// Ranks of locks that are held during calls on branches; waits for them are interruptible or limited.
    const HELD_IN_CALLS: std::ops::Range<u8> = LISTING..IO_MODE;

    crate::thread_local! {
        static RANKS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    impl<const RANK: u8> HeldRank<RANK> {
        /// For a lock that is waited for: asserts that the thread has none of this rank or a higher one.
        #[track_caller]
        pub fn in_order() -> Self {
            let highest = highest();
            assert!(highest < RANK, "a lock of rank {RANK} is taken after one of rank {highest}");
            Self::unordered()
        }

        /// Like [`Self::in_order`], for a shared lock of which a thread may have two.
        #[track_caller]
        pub fn one_more() -> Self {
            let highest = highest();
            assert!(highest <= RANK, "a lock of rank {RANK} is shared after one of rank {highest}");
            Self::unordered()
        }

        /// For a lock that is not waited for, in any order.
        pub fn unordered() -> Self {
            RANKS.with_borrow_mut(|ranks| ranks.push(RANK));
            Self
        }
    }

    impl<const RANK: u8> Drop for HeldRank<RANK> {
        fn drop(&mut self) {
            // The list may already be gone on a thread that is ending.
            _ = RANKS.try_with(|ranks| {
                let mut ranks = ranks.borrow_mut();
                if let Some(at) = ranks.iter().rposition(|rank| *rank == RANK) {
                    ranks.remove(at);
                }
            });
        }
    }

    fn highest() -> u8 {
        RANKS.with_borrow(|ranks| ranks.iter().copied().max().unwrap_or(0))
    }

    #[track_caller]
    pub(super) fn assert_none() {
        RANKS.with_borrow(|ranks| {
            let allowed = ranks.iter().all(|rank| HELD_IN_CALLS.contains(rank));
            assert!(allowed, "a branch is asked under locks of rank {ranks:?}")
        });
    }
}

#[cfg(not(debug_assertions))]
mod held {
    use super::HeldRank;

    impl<const RANK: u8> HeldRank<RANK> {
        /// For a lock that is waited for; nothing is checked.
        pub const fn in_order() -> Self {
            Self
        }

        /// For a lock that is shared; nothing is checked.
        pub const fn one_more() -> Self {
            Self
        }

        /// For a lock that is not waited for; nothing is checked.
        pub const fn unordered() -> Self {
            Self
        }
    }

    pub(super) const fn assert_none() {}
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    #[should_panic = "a lock of rank 40 is taken after one of rank 50"]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let (io_mode, inode) = (Ranked::<_, IO_MODE>::new(()), Ranked::<_, INODE>::new(()));
        drop((io_mode.lock(), inode.lock()));
        let _inode = inode.lock();
        let _tie = io_mode.lock();
    }

    #[test]
    #[should_panic = "a lock of rank 30 is taken after one of rank 32"]
    fn a_files_place_is_taken_before_the_tree() {
        drop((HeldRank::<PLACED>::in_order(), HeldRank::<PLACED>::one_more(), HeldRank::<TREE>::in_order()));
        let _tree = HeldRank::<TREE>::in_order();
        let _placed = HeldRank::<PLACED>::in_order();
    }

    #[test]
    fn branches_are_asked_under_locks_that_are_waited_for_in_pieces() {
        let listing = Ranked::<_, LISTING>::new(());
        let _held = (
            listing.try_lock_for(Duration::ZERO),
            HeldRank::<PLACED>::in_order(),
            HeldRank::<TREE>::in_order(),
        );
        assert_none_held();
    }

    #[test]
    #[should_panic = "a branch is asked under locks of rank [40]"]
    fn no_branch_is_asked_under_one() {
        let io_mode = Ranked::<_, IO_MODE>::new(());
        drop(io_mode.lock());
        assert_none_held();
        let _tie = io_mode.lock();
        assert_none_held();
    }
}
