//! Locks on the branch's file, for `locks=branch`: programs outside the pool see them.
//!
//! By default the kernel keeps the locks of a mount itself, without requests. A lock owner, a process or an
//! open file description of the caller's, gets an open file description of its own on the branch, since that is
//! what owns a lock there. A lock that has to wait is asked for again and again, until the caller is
//! interrupted: the branch's own wait could not be given up from outside.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fsstack_branch::error::Result;
use fsstack_pool::Handle;
use fsstack_sys::locks::{self, FlockKind, Lock};
use fsstack_sys::{self as sys, Errno, OFlags};
use smallvec::SmallVec;

use crate::files::OpenFile;
use crate::union::Union;

pub use fsstack_sys::locks::LockType;

/// Which kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// fcntl(2): a range.
    Range {
        /// First byte.
        start: u64,
        /// Last byte.
        end: u64,
    },
    /// flock(2): the whole file.
    Whole,
}

/// A lock that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct LockRequest {
    /// Its owner.
    pub owner: u64,
    /// Its kind.
    pub kind: LockKind,
    /// Shared, exclusive, or given up.
    pub how: LockType,
}

/// Owners of locks on the branch's file.
#[derive(Debug)]
pub(crate) struct LockOwner {
    fd: Arc<OwnedFd>,
    /// Mount of the branch that it was opened on.
    mount_generation: u32,
    /// The handles that it asked by.
    by: SmallVec<[Handle; 1]>,
}

impl Union {
    /// Sets or gives up a lock. `wait` tells whether to go on waiting for it; None: do not wait.
    ///
    /// # Errors
    /// EAGAIN if another owner has it, EINTR if `wait` says that the caller was interrupted.
    pub fn lock(&self, handle: Handle, request: LockRequest, wait: Option<&dyn Fn() -> bool>) -> Result<()> {
        let open = self.file(handle)?;
        let fd = open.file.lock_fd(request.owner, Some(handle))?;
        let branch = open.file.branch();
        let mut pause = Duration::from_millis(1);
        loop {
            let taken = branch.ask(|| match request.kind {
                LockKind::Range { start, end } => {
                    locks::try_lock(fd.as_fd(), Lock { start, end, kind: request.how, pid: 0 })
                }
                LockKind::Whole => locks::flock(fd.as_fd(), flock_kind(request.how), true),
            });
            match (taken, wait) {
                (Err(error), Some(goes_on)) if error.errno() == Errno::AGAIN => {
                    if !goes_on() {
                        return Err(Errno::INTR.into());
                    }
                }
                (settled, _) => return settled,
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// The lock that would stand in the way, if there is one.
    ///
    /// # Errors
    /// What the branch answered.
    pub fn test_lock(&self, handle: Handle, request: LockRequest) -> Result<Option<Lock>> {
        let open = self.file(handle)?;
        let LockKind::Range { start, end } = request.kind else { return Err(Errno::INVAL.into()) };
        // It gets none by asking, and asks by whatever is at hand: the kernel's NFS server opens the file for it.
        let fd = open.file.lock_fd(request.owner, None)?;
        let asked = Lock { start, end, kind: request.how, pid: 0 };
        open.file.branch().ask(|| locks::test_lock(fd.as_fd(), asked))
    }

    /// All locks of `owner` on the file go.
    pub fn unlock_all(&self, handle: Handle, owner: u64) {
        let Some(open) = self.files.handles.get(&handle.0).map(|open| open.file.clone()) else { return };
        let gone = open.lock_owners.lock().remove(&owner);
        if let Some(gone) = gone {
            open.branch().dispose_now(gone.mount_generation, gone.fd);
        }
    }
}

impl OpenFile {
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
            self.branch().dispose_now(owner.mount_generation, owner.fd);
        }
    }

    /// Descriptor for locks of `owner`. None: only to query others' locks.
    fn lock_fd(&self, owner: u64, handle: Option<Handle>) -> Result<Arc<OwnedFd>> {
        if let Some(known) = self.lock_owners.lock().get_mut(&owner) {
            known.by.extend(handle.filter(|handle| !known.by.contains(handle)));
            return Ok(known.fd.clone());
        }
        // The branch may hang: it is asked without the owners' lock. The file's place is held until the owner is
        // known: a move in between would leave the lock on a file without a name.
        let placed = self.settled(Self::readable)?;
        let reopen = |how| placed.branch.ask(|| sys::at::reopen(placed.fd.as_fd(), how));
        let fd = Arc::new(reopen(OFlags::RDWR).or_else(|_| reopen(OFlags::RDONLY))?);
        let Some(handle) = handle else { return Ok(fd) };
        let (mut owners, mount_generation) = (self.lock_owners.lock(), placed.fd.mount_generation);
        let owner =
            owners.entry(owner).or_insert_with(|| LockOwner { fd, mount_generation, by: SmallVec::new() });
        if !owner.by.contains(&handle) {
            owner.by.push(handle);
        }
        Ok(owner.fd.clone())
    }
}

impl LockOwner {
    /// Its descriptor, the mount that it was opened on, and the handles that it asked by.
    pub(crate) fn parts(&self) -> (BorrowedFd<'_>, u32, Vec<u64>) {
        (self.fd.as_fd(), self.mount_generation, self.by.iter().map(|handle| handle.0).collect())
    }

    /// The owner of the locks of `fd`, handed over by another program.
    pub(crate) fn of(fd: OwnedFd, mount_generation: u32, by: &[u64]) -> Self {
        Self { fd: Arc::new(fd), mount_generation, by: by.iter().copied().map(Handle).collect() }
    }

    /// `handle` is closed: whether it was the last one.
    fn is_done(&mut self, handle: Handle) -> bool {
        let asked = self.by.len();
        self.by.retain(|by| *by != handle);
        self.by.len() < asked && self.by.is_empty()
    }
}

fn flock_kind(how: LockType) -> FlockKind {
    match how {
        LockType::Read => FlockKind::Shared,
        LockType::Write => FlockKind::Exclusive,
        LockType::Unlock => FlockKind::Unlock,
    }
}
