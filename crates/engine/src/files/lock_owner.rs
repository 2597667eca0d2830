//! Owners of locks on the branch's file, and their descriptors there.
//!
//! An owner without a lock keeps its descriptor: programs lock and unlock a file again and again. A move forgets it.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_pool::Handle;
use fsstack_sys::locks::TO_THE_END;
use fsstack_sys::{self as sys, Errno, OFlags};
use smallvec::SmallVec;

use super::OpenFile;

/// Bytes that a lock covers; None: the whole file, by flock(2).
pub(crate) type LockedPart = Option<RangeInclusive<u64>>;

/// Ranges that are kept apart for an owner.
const MOST_RANGES: usize = 64;

/// Owners of locks on the branch's file.
#[derive(Debug)]
pub(crate) struct LockOwner {
    fd: Arc<MountedFd>,
    locks: OwnLocks,
    /// The handles that it asked by.
    by: SmallVec<[Handle; 1]>,
}

/// Descriptor for locks of an owner, and how many locks it had taken by then.
#[derive(Debug)]
pub(crate) struct LockFd {
    pub(crate) fd: Arc<MountedFd>,
    taken: u64,
}

impl OpenFile {
    /// All locks of `owner` go.
    pub(crate) fn unlock_owner(&self, owner: u64) {
        let gone = self.lock_owners.lock().remove(&owner);
        if let Some(gone) = gone {
            self.branch().dispose_now(gone.fd.mount_generation, gone.fd);
        }
    }

    /// A handle is closed for good: so are the locks taken by it alone. (A process has lost its own at its close; locks of
    /// an open file description, fcntl(2)'s F_OFD_SETLK, the kernel gives up for no remote file system.)
    pub(crate) fn unlock_closed(&self, handle: Handle) {
        let gone: SmallVec<[LockOwner; 1]> = self
            .lock_owners
            .lock()
            .extract_if(|_, owner| owner.is_done(handle))
            .map(|(_, owner)| owner)
            .collect();
        for owner in gone {
            self.branch().dispose_now(owner.fd.mount_generation, owner.fd);
        }
    }

    /// Notes that `owner` has got a lock by `lock`. False: it has another descriptor by now, and so has not got it.
    pub(crate) fn has_locked(&self, owner: u64, lock: &LockFd, part: LockedPart) -> bool {
        let mut owners = self.lock_owners.lock();
        let known = owners.get_mut(&owner).filter(|known| Arc::ptr_eq(&known.fd, &lock.fd));
        known.map(|known| known.locks.take(part)).is_some()
    }

    /// True if `owner` may have locked some of that part by `lock` before.
    pub(crate) fn may_have_locked(&self, owner: u64, lock: &LockFd, part: &LockedPart) -> bool {
        let owners = self.lock_owners.lock();
        let known = owners.get(&owner).filter(|known| Arc::ptr_eq(&known.fd, &lock.fd));
        known.is_some_and(|known| known.locks.has_some_of(part))
    }

    /// Notes that `owner` has given up a part by `lock`. True: it has no lock any more.
    pub(crate) fn has_unlocked(&self, owner: u64, lock: &LockFd, part: LockedPart) -> bool {
        let mut owners = self.lock_owners.lock();
        // Another thread of the owner may have locked it since: it would be unknown which was first.
        let is_same =
            |known: &&mut LockOwner| Arc::ptr_eq(&known.fd, &lock.fd) && known.locks.taken == lock.taken;
        owners.get_mut(&owner).filter(is_same).is_some_and(|known| {
            known.locks.give_up(part);
            known.locks.is_empty()
        })
    }

    /// True if an owner may have locks on the branch's file.
    pub(crate) fn is_locked(&self) -> bool {
        self.lock_owners.lock().values().any(LockOwner::has_locks)
    }

    /// Forgets the owners that have no lock. Requests of theirs under way ask for a new descriptor.
    pub(crate) fn forget_idle_owners(&self) {
        let idle: SmallVec<[LockOwner; 1]> = self
            .lock_owners
            .lock()
            .extract_if(|_, owner| !owner.has_locks())
            .map(|(_, owner)| owner)
            .collect();
        for owner in idle {
            self.branch().dispose(owner.fd.mount_generation, owner.fd);
        }
    }

    /// Descriptor for locks of `owner`. None: only to query others' locks.
    pub(crate) fn lock_fd(&self, owner: u64, handle: Option<Handle>) -> Result<LockFd> {
        let branch = self.branch();
        let mut owners = self.lock_owners.lock();
        // Locks on a mount that was replaced are gone, and keep nobody from anything.
        let gone = match owners.get_mut(&owner) {
            Some(known) if known.fd.is_of_present_mount(&branch) => {
                known.by.extend(handle.filter(|handle| !known.by.contains(handle)));
                return Ok(known.lock_fd());
            }
            _ => owners.remove(&owner),
        };
        drop(owners);
        if let Some(gone) = gone {
            branch.dispose_now(gone.fd.mount_generation, gone.fd);
        }
        // The branch may hang: it is asked without the owners' lock. The file's place is held until the owner is
        // known: a move in between would leave the lock on a file without a name.
        let placed = self.settled(Self::readable)?;
        let reopen = |how| {
            let open = |how| placed.branch.ask(|| sys::at::reopen(placed.fd.as_fd(), how));
            placed.branch.past_leases(how, open)
        };
        // Not where other programs' leases are in the way for now: a write lock needs a descriptor for writing.
        let read_only = |error: OpError| match error.errno() {
            Errno::AGAIN => Err(error),
            _ => reopen(OFlags::RDONLY),
        };
        let fd = Arc::new(placed.fd.opened(reopen(OFlags::RDWR).or_else(read_only)?));
        let Some(handle) = handle else { return Ok(LockFd { fd, taken: 0 }) };
        let (mut owners, locks) = (self.lock_owners.lock(), OwnLocks::default());
        let owner = owners.entry(owner).or_insert_with(|| LockOwner { fd, locks, by: SmallVec::new() });
        if !owner.by.contains(&handle) {
            owner.by.push(handle);
        }
        Ok(owner.lock_fd())
    }
}

impl LockOwner {
    /// Its descriptor, the mount that it was opened on, and the handles that it asked by.
    pub(crate) fn parts(&self) -> (BorrowedFd<'_>, u32, Vec<u64>) {
        (self.fd.as_fd(), self.fd.mount_generation, self.by.iter().map(|handle| handle.0).collect())
    }

    /// The owner of the locks of `fd`, handed over by another program. It may have any.
    pub(crate) fn of(fd: MountedFd, by: &[u64]) -> Self {
        let locks = OwnLocks { any: true, ..OwnLocks::default() };
        Self { fd: Arc::new(fd), locks, by: by.iter().copied().map(Handle).collect() }
    }

    /// True if it may have a lock.
    pub(crate) fn has_locks(&self) -> bool {
        !self.locks.is_empty()
    }

    fn lock_fd(&self) -> LockFd {
        LockFd { fd: self.fd.clone(), taken: self.locks.taken }
    }

    /// `handle` is closed: whether it was the last one.
    fn is_done(&mut self, handle: Handle) -> bool {
        let asked = self.by.len();
        self.by.retain(|by| *by != handle);
        self.by.len() < asked && self.by.is_empty()
    }
}

/// Locks that an owner has, or more: never fewer.
#[derive(Debug, Default)]
struct OwnLocks {
    /// Any, of a kind that its next request tells: an owner is one of flock(2) or of fcntl(2).
    any: bool,
    /// By flock(2).
    whole: bool,
    /// First and last bytes; no two overlap.
    ranges: Vec<(u64, u64)>,
    /// How many were taken so far.
    taken: u64,
}

impl OwnLocks {
    fn is_empty(&self) -> bool {
        !self.any && !self.whole && self.ranges.is_empty()
    }

    /// Its kind is that of `part`.
    fn is_of_kind(&mut self, part: &LockedPart) {
        if std::mem::take(&mut self.any) {
            match part {
                None => self.whole = true,
                Some(_) => self.ranges.push((0, TO_THE_END)),
            }
        }
    }

    fn has_some_of(&self, part: &LockedPart) -> bool {
        self.any
            || match part {
                None => self.whole,
                Some(range) => {
                    self.ranges.iter().any(|(from, to)| from <= range.end() && range.start() <= to)
                }
            }
    }

    fn take(&mut self, part: LockedPart) {
        self.taken += 1;
        self.give_up(part.clone());
        match part {
            None => self.whole = true,
            Some(range) => self.ranges.push(range.into_inner()),
        }
        if MOST_RANGES < self.ranges.len() {
            let hull = self.ranges.drain(..).reduce(|one, two| (one.0.min(two.0), one.1.max(two.1)));
            self.ranges.extend(hull);
        }
    }

    fn give_up(&mut self, part: LockedPart) {
        self.is_of_kind(&part);
        let Some((first, last)) = part.map(RangeInclusive::into_inner) else {
            self.whole = false;
            return;
        };
        let rest = |(from, to): (u64, u64)| {
            let before = (from < first).then(|| (from, to.min(first - 1)));
            let after = (last < to).then(|| (from.max(last + 1), to));
            before.into_iter().chain(after)
        };
        self.ranges = self.ranges.drain(..).flat_map(rest).collect();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_owner_has_what_it_took_and_did_not_give_up(
            steps in proptest::collection::vec((any::<bool>(), 0_u64..40, 0_u64..40), 0..100),
        ) {
            let (mut locks, mut bytes) = (OwnLocks::default(), [false; 40]);
            for (takes, one, two) in steps {
                let (first, last) = (one.min(two), one.max(two));
                match takes {
                    true => locks.take(Some(first..=last)),
                    false => locks.give_up(Some(first..=last)),
                }
                (first..=last).for_each(|at| bytes[usize::try_from(at).unwrap()] = takes);
                for (at, locked) in (0_u64..).zip(bytes) {
                    let has = locks.ranges.iter().filter(|(from, to)| (*from..=*to).contains(&at)).count();
                    prop_assert_eq!(has, usize::from(locked));
                }
            }
            prop_assert_eq!(locks.is_empty(), !bytes.contains(&true));
        }
    }

    #[test]
    fn an_owner_that_was_handed_over_has_none_when_it_gave_up_all() {
        for part in [None, Some(0..=TO_THE_END)] {
            let mut locks = OwnLocks { any: true, ..OwnLocks::default() };
            if part.is_some() {
                locks.give_up(Some(5..=9));
            }
            assert!(locks.has_some_of(&part.as_ref().map(|_| 0..=4)));
            locks.give_up(part);
            assert!(locks.is_empty());
        }
    }

    #[test]
    fn many_ranges_become_one_that_has_them_all() {
        let mut locks = OwnLocks::default();
        (0..1000).for_each(|n| locks.take(Some(n * 2..=n * 2)));
        assert!(locks.ranges.len() <= MOST_RANGES);
        locks.give_up(Some(0..=1997));
        assert!(!locks.is_empty());
        locks.give_up(Some(0..=u64::MAX));
        assert!(locks.is_empty());
        locks.take(None);
        locks.give_up(Some(0..=u64::MAX));
        assert!(!locks.is_empty());
        locks.give_up(None);
        assert!(locks.is_empty());
    }
}
