//! Locks on the branch's file, for `locks=branch`: programs outside the pool see them.
//!
//! By default the kernel keeps the locks of a mount itself, without requests. A lock owner, a process or an
//! open file description of the caller's, gets an open file description of its own on the branch, since that is
//! what owns a lock there. A lock that has to wait is asked for again and again, until the caller is
//! interrupted: the branch's own wait could not be given up from outside.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use fsstack_branch::error::Result;
use fsstack_pool::Handle;
use fsstack_sys::locks::{self, FlockKind, Lock};
use fsstack_sys::{Errno, SysError};

use crate::files::lock_owner::{LockFd, LockedPart};
use crate::files::{OpenFile, check_not_given_up};
use crate::union::Union;

pub use fsstack_sys::locks::LockType;

/// First pause before a lock that another owner has is tried again; each is twice the one before.
const SHORTEST_LOCK_PAUSE: Duration = Duration::from_millis(1);
/// Longest pause before a lock that another owner has is tried again.
const LONGEST_LOCK_PAUSE: Duration = Duration::from_millis(50);

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

impl LockKind {
    fn part(self) -> LockedPart {
        match self {
            Self::Range { start, end } => Some(start..=end.min(locks::TO_THE_END)),
            Self::Whole => None,
        }
    }
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

impl Union {
    /// Sets or gives up a lock. `wait` tells whether to go on waiting for it; None: do not wait.
    ///
    /// # Errors
    /// EAGAIN if another owner has it, EINTR if `wait` says that the caller was interrupted; EBADF if the handle was closed
    /// meanwhile, EIO if the request was answered so meanwhile: the owner has no lock then that it did not have before.
    pub fn lock(&self, handle: Handle, request: LockRequest, wait: Option<&dyn Fn() -> bool>) -> Result<()> {
        let open = self.file(handle)?;
        let mut pause = SHORTEST_LOCK_PAUSE;
        loop {
            let branch = open.file.branch();
            // Anew each time, and not kept while it waits: another thread of the owner may close the file meanwhile, which gives
            // up its locks, and with them the descriptor.
            let lock = open.file.lock_fd(request.owner, Some(handle))?;
            let taken = branch.ask(|| set_lock(lock.fd.as_fd(), request));
            if taken.is_ok() {
                if request.how == LockType::Unlock {
                    if open.file.has_unlocked(request.owner, &lock, request.kind.part()) {
                        self.jobs.list.has_closed(open.inode.id.ino, &open.file);
                    }
                } else if !is_kept(self, &open.file, handle, &lock, request)? {
                    continue;
                }
            }
            drop(lock);
            match (taken, wait) {
                (Err(error), Some(goes_on)) if error.errno() == Errno::AGAIN => {
                    if !goes_on() {
                        return Err(Errno::INTR.into());
                    }
                }
                (settled, _) => return settled,
            }
            fsstack_sync::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_LOCK_PAUSE);
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
        let lock = open.file.lock_fd(request.owner, None)?;
        let asked = Lock { start, end, kind: request.how, pid: 0 };
        let branch = open.file.branch();
        let found = branch.ask(|| locks::test_lock(lock.fd.as_fd(), asked));
        branch.dispose(lock.fd.mount_generation, lock.fd);
        found
    }

    /// All locks of `owner` on the file go.
    pub fn unlock_all(&self, handle: Handle, owner: u64) {
        let open = self.files.handles.get(&handle.0).map(|open| (open.inode.id.ino, open.file.clone()));
        let Some((ino, file)) = open else { return };
        file.unlock_owner(owner);
        self.jobs.list.has_closed(ino, &file);
    }
}

/// Notes a lock that was just taken on the branch. False: the owner has another descriptor by now, so the lock was given up.
///
/// # Errors
/// Nobody waits for it, so it was given up: the request was answered by another thread, or its handle is closed, whose release has
/// looked for locks before.
fn is_kept(
    union: &Union,
    file: &OpenFile,
    handle: Handle,
    lock: &LockFd,
    request: LockRequest,
) -> Result<bool> {
    let part = request.kind.part();
    // Another thread of the owner may still hold the descriptor: closing it would not be enough.
    let unlock = LockRequest { how: LockType::Unlock, ..request };
    let give_up = || file.branch().ask(|| set_lock(lock.fd.as_fd(), unlock));
    if let Err(unwanted) = check_not_given_up().and_then(|()| union.file(handle).map(drop)) {
        // Giving it up would give up what the owner had locked of this range before.
        if !file.may_have_locked(request.owner, lock, &part) {
            give_up()?;
        }
        file.forget_idle_owners();
        return Err(unwanted);
    }
    let kept = file.has_locked(request.owner, lock, part);
    if !kept {
        give_up()?;
    }
    Ok(kept)
}

/// Asks once for the lock on the branch's file.
fn set_lock(fd: BorrowedFd<'_>, request: LockRequest) -> Result<(), SysError> {
    match request.kind {
        LockKind::Range { start, end } => locks::try_lock(fd, Lock { start, end, kind: request.how, pid: 0 }),
        LockKind::Whole => locks::flock(fd, flock_kind(request.how), true),
    }
}

fn flock_kind(how: LockType) -> FlockKind {
    match how {
        LockType::Read => FlockKind::Shared,
        LockType::Write => FlockKind::Exclusive,
        LockType::Unlock => FlockKind::Unlock,
    }
}
