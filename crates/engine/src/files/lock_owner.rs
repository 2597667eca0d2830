//! Owners of locks on the branch's file, and their descriptors there.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::{Arc, Weak};

use fsstack_branch::error::{OpError, Result};
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_pool::Handle;
use fsstack_sys::{self as sys, Errno, OFlags};
use smallvec::SmallVec;

use super::OpenFile;

/// Owners of locks on the branch's file.
#[derive(Debug)]
pub(crate) struct LockOwner {
    fd: Arc<MountedFd>,
    /// The handles that it asked by.
    by: SmallVec<[Handle; 1]>,
    /// It may have locks of these kinds.
    has: LockKinds,
}

/// Kinds of locks that one descriptor may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockKinds {
    /// fcntl(2).
    pub(crate) ranges: bool,
    /// flock(2).
    pub(crate) whole: bool,
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

    /// Notes that `owner` has or has not, by `change`, locks of a kind by its descriptor `fd`; without any it is no owner. False:
    /// `fd` is not its descriptor any more, so a lock that was taken by it is not the owner's.
    pub(crate) fn note_lock(
        &self,
        owner: u64,
        fd: &Weak<MountedFd>,
        change: impl FnOnce(&mut LockKinds),
    ) -> bool {
        let mut owners = self.lock_owners.lock();
        let Some(known) = owners.get_mut(&owner).filter(|known| ptr::eq(Arc::as_ptr(&known.fd), fd.as_ptr()))
        else {
            return false;
        };
        change(&mut known.has);
        let gone = if known.has == LockKinds::default() { owners.remove(&owner) } else { None };
        drop(owners);
        if let Some(gone) = gone {
            self.branch().dispose_now(gone.fd.mount_generation, gone.fd);
        }
        true
    }

    /// Descriptor for locks of `owner`. None: only to query others' locks.
    pub(crate) fn lock_fd(&self, owner: u64, handle: Option<Handle>) -> Result<Arc<MountedFd>> {
        let branch = self.branch();
        let mut owners = self.lock_owners.lock();
        // Locks on a mount that was replaced are gone, and keep nobody from anything.
        let gone = match owners.get_mut(&owner) {
            Some(known) if known.fd.is_of_present_mount(&branch) => {
                known.by.extend(handle.filter(|handle| !known.by.contains(handle)));
                return Ok(known.fd.clone());
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
        let Some(handle) = handle else { return Ok(fd) };
        let mut owners = self.lock_owners.lock();
        let has = LockKinds::default();
        let owner = owners.entry(owner).or_insert_with(|| LockOwner { fd, by: SmallVec::new(), has });
        if !owner.by.contains(&handle) {
            owner.by.push(handle);
        }
        Ok(owner.fd.clone())
    }
}

impl LockOwner {
    /// Its descriptor, the mount that it was opened on, and the handles that it asked by.
    pub(crate) fn parts(&self) -> (BorrowedFd<'_>, u32, Vec<u64>) {
        (self.fd.as_fd(), self.fd.mount_generation, self.by.iter().map(|handle| handle.0).collect())
    }

    /// The owner of the locks of `fd`, handed over by another program.
    pub(crate) fn of(fd: MountedFd, by: &[u64]) -> Self {
        let by = by.iter().copied().map(Handle).collect();
        Self { fd: Arc::new(fd), by, has: LockKinds { ranges: true, whole: true } }
    }

    /// `handle` is closed: whether it was the last one.
    fn is_done(&mut self, handle: Handle) -> bool {
        let asked = self.by.len();
        self.by.retain(|by| *by != handle);
        self.by.len() < asked && self.by.is_empty()
    }
}
