//! Locks on the branch's file, for `locks=branch`: programs outside the pool see them.
//!
//! By default the kernel keeps the locks of a mount itself, without requests. A lock owner, a process or an
//! open file description of the caller's, gets an open file description of its own on the branch, since that is
//! what owns a lock there. A lock that has to wait is asked for again and again, until the caller is
//! interrupted: the branch's own wait could not be given up from outside.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use fsstack_branch::error::Result;
use fsstack_pool::Handle;
use fsstack_sys::locks::{self, FlockKind, Lock};
use fsstack_sys::{Errno, SysError};

use crate::files::{LockKinds, check_not_given_up};
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

impl Union {
    /// Sets or gives up a lock. `wait` tells whether to go on waiting for it; None: do not wait.
    ///
    /// # Errors
    /// EAGAIN if another owner has it, EINTR if `wait` says that the caller was interrupted; EBADF if the handle was closed
    /// meanwhile, EIO if the request was answered so meanwhile: the owner has no lock then that it did not have before.
    pub fn lock(&self, handle: Handle, request: LockRequest, wait: Option<&dyn Fn() -> bool>) -> Result<()> {
        let open = self.file(handle)?;
        let mut pause = Duration::from_millis(1);
        loop {
            let branch = open.file.branch();
            // Anew each time, and not kept while it waits: another thread of the owner may close the file meanwhile, which gives
            // up its locks, and with them the descriptor.
            let fd = open.file.lock_fd(request.owner, Some(handle))?;
            let mut taken = branch.ask(|| set_lock(fd.as_fd(), request));
            let is_lock = taken.is_ok() && request.how != LockType::Unlock;
            let wanted = if is_lock { check_is_wanted(self, handle) } else { Ok(()) };
            let known = Arc::downgrade(&fd);
            let note = |taken| open.file.note_lock(request.owner, &known, |has| note(has, request, taken));
            if is_lock && !note(wanted) {
                // Another thread of the owner may still hold the descriptor: closing it would not be enough.
                branch.ask(|| set_lock(fd.as_fd(), LockRequest { how: LockType::Unlock, ..request }))?;
                wanted?;
                continue;
            }
            drop(fd);
            taken = taken.and(wanted);
            if let (Err(error), Some(goes_on)) = (taken, wait)
                && error.errno() == Errno::AGAIN
            {
                if goes_on() {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(50));
                    continue;
                }
                taken = Err(Errno::INTR.into());
            }
            if !is_lock {
                note(taken);
            }
            return taken;
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
        open.unlock_owner(owner);
    }
}

/// Fails if nobody waits for the lock that was just taken: the request was answered by another thread, or its handle is
/// closed, whose release has looked for locks before.
fn check_is_wanted(union: &Union, handle: Handle) -> Result<()> {
    check_not_given_up()?;
    union.file(handle).map(drop)
}

/// Notes the outcome of `request` in what its owner `has`. A lock that was taken and is not wanted counts only as one more of those
/// that the owner had before: giving it up could give these up, too.
fn note(has: &mut LockKinds, request: LockRequest, taken: Result<()>) {
    let (kind, is_all) = match request.kind {
        LockKind::Range { start, end } => (&mut has.ranges, start == 0 && locks::TO_THE_END <= end),
        LockKind::Whole => (&mut has.whole, true),
    };
    match (taken, request.how) {
        (Ok(()), LockType::Unlock) => *kind &= !is_all,
        (Ok(()), LockType::Read | LockType::Write) => *kind = true,
        (Err(_), _) => {}
    }
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
