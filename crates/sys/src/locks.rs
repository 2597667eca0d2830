//! Locks of an open file description: byte ranges and whole files.
#![allow(unsafe_code, reason = "locks that belong to an open file description have no safe wrapper")]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::call::{Call, Result, call, once};

/// Largest offset: a lock that ends here covers the end of the file, however the file grows.
pub const TO_THE_END: u64 = u64::MAX >> 1;

/// Type of a byte-range lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockType {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// No lock: releases the range.
    Unlock,
}

/// A lock on a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// First byte.
    pub start: u64,
    /// Last byte; [`TO_THE_END`] or more means through the end of the file.
    pub end: u64,
    /// Type of lock.
    pub kind: LockType,
    /// Process that holds the lock; 0 for an open file description.
    pub pid: u32,
}

/// Locks or unlocks a range for the open file description of `fd`; `EAGAIN` on conflict.
pub fn try_lock(fd: BorrowedFd<'_>, lock: Lock) -> Result<()> {
    call(Call::Lock, || {
        let mut asked = to_kernel(lock)?;
        fcntl(fd, libc::F_OFD_SETLK, &mut asked)
    })
}

/// Returns the first lock that conflicts with `lock`, if any.
pub fn test_lock(fd: BorrowedFd<'_>, lock: Lock) -> Result<Option<Lock>> {
    call(Call::Lock, || {
        let mut asked = to_kernel(lock)?;
        fcntl(fd, libc::F_OFD_GETLK, &mut asked)?;
        from_kernel(&asked)
    })
}

fn fcntl(fd: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock64) -> rustix::io::Result<()> {
    // SAFETY: both commands take a `struct flock64`, which `lock` is, and write nothing beyond it.
    let answer = unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut *lock) };
    if answer < 0 { Err(last_error()) } else { Ok(()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn to_kernel(lock: Lock) -> rustix::io::Result<libc::flock64> {
    let end = lock.end.min(TO_THE_END);
    if end < lock.start {
        return Err(Errno::INVAL);
    }
    // A length of 0 means through the end of the file.
    let len = if end == TO_THE_END { 0 } else { end - lock.start + 1 };
    let kind = match lock.kind {
        LockType::Read => libc::F_RDLCK,
        LockType::Write => libc::F_WRLCK,
        LockType::Unlock => libc::F_UNLCK,
    };
    // SAFETY: the struct has integers only, for which zero is a value.
    let mut raw: libc::flock64 = unsafe { std::mem::zeroed() };
    raw.l_type = narrow(kind)?;
    raw.l_whence = narrow(libc::SEEK_SET)?;
    raw.l_start = lock.start.try_into().map_err(|_| Errno::INVAL)?;
    raw.l_len = len.try_into().map_err(|_| Errno::INVAL)?;
    Ok(raw)
}

/// The C libraries differ in the type of these constants.
fn narrow(constant: impl TryInto<libc::c_short>) -> rustix::io::Result<libc::c_short> {
    constant.try_into().map_err(|_| Errno::INVAL)
}

fn from_kernel(raw: &libc::flock64) -> rustix::io::Result<Option<Lock>> {
    let kind = match i32::from(raw.l_type) {
        kind if kind == i32::from(narrow(libc::F_RDLCK)?) => LockType::Read,
        kind if kind == i32::from(narrow(libc::F_WRLCK)?) => LockType::Write,
        _ => return Ok(None),
    };
    let start = u64::try_from(raw.l_start).map_err(|_| Errno::OVERFLOW)?;
    let len = u64::try_from(raw.l_len).map_err(|_| Errno::OVERFLOW)?;
    let end = if len == 0 { TO_THE_END } else { start + (len - 1) };
    // Locks of a description have no process: the kernel returns -1.
    Ok(Some(Lock { start, end, kind, pid: u32::try_from(raw.l_pid).unwrap_or(0) }))
}

/// Type of a whole-file lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlockKind {
    /// With others.
    Shared,
    /// Alone.
    Exclusive,
    /// No lock: releases it.
    Unlock,
}

/// Locks or unlocks the whole file for the open file description of `fd`. On conflict fails with `EAGAIN` if
/// `nonblocking`, else waits; a signal ends the wait with `EINTR`.
pub fn flock(fd: BorrowedFd<'_>, kind: FlockKind, nonblocking: bool) -> Result<()> {
    let operation = match (kind, nonblocking) {
        (FlockKind::Shared, false) => FlockOperation::LockShared,
        (FlockKind::Shared, true) => FlockOperation::NonBlockingLockShared,
        (FlockKind::Exclusive, false) => FlockOperation::LockExclusive,
        (FlockKind::Exclusive, true) => FlockOperation::NonBlockingLockExclusive,
        (FlockKind::Unlock, false) => FlockOperation::Unlock,
        (FlockKind::Unlock, true) => FlockOperation::NonBlockingUnlock,
    };
    once(Call::Flock, || rustix::fs::flock(fd, operation))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    /// Two open file descriptions of one file.
    fn two() -> (File, File) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let again = File::options().read(true).write(true).open(file.path()).unwrap();
        (file.into_file(), again)
    }

    fn lock(start: u64, end: u64, kind: LockType) -> Lock {
        Lock { start, end, kind, pid: 0 }
    }

    #[test]
    fn ranges_exclude_each_other() {
        let (one, other) = two();
        let held = lock(10, 19, LockType::Write);
        try_lock(one.as_fd(), held).unwrap();
        let refused = try_lock(other.as_fd(), lock(19, 30, LockType::Read)).unwrap_err();
        assert_eq!((refused.call, refused.errno), (Call::Lock, Errno::AGAIN));
        assert_eq!(test_lock(other.as_fd(), lock(0, TO_THE_END, LockType::Read)).unwrap(), Some(held));
        try_lock(other.as_fd(), lock(20, TO_THE_END, LockType::Write)).unwrap();
        try_lock(one.as_fd(), Lock { kind: LockType::Unlock, ..held }).unwrap();
        assert_eq!(test_lock(other.as_fd(), held).unwrap(), None);
    }

    #[test]
    fn a_lock_to_the_end_says_so() {
        let (one, other) = two();
        try_lock(one.as_fd(), lock(5, u64::MAX, LockType::Read)).unwrap();
        let holder = test_lock(other.as_fd(), lock(1 << 40, 1 << 41, LockType::Write)).unwrap();
        assert_eq!(holder, Some(lock(5, TO_THE_END, LockType::Read)));
    }

    #[test]
    fn a_range_that_ends_before_it_starts_is_invalid() {
        let (one, _) = two();
        assert_eq!(try_lock(one.as_fd(), lock(5, 4, LockType::Read)).unwrap_err().errno, Errno::INVAL);
        assert_eq!(
            try_lock(one.as_fd(), lock(u64::MAX, u64::MAX, LockType::Read)).unwrap_err().errno,
            Errno::INVAL
        );
    }

    #[test]
    fn whole_files_exclude_each_other() {
        let (one, other) = two();
        flock(one.as_fd(), FlockKind::Shared, true).unwrap();
        flock(other.as_fd(), FlockKind::Shared, false).unwrap();
        let refused = flock(one.as_fd(), FlockKind::Exclusive, true).unwrap_err();
        assert_eq!((refused.call, refused.errno), (Call::Flock, Errno::AGAIN));
        flock(other.as_fd(), FlockKind::Unlock, true).unwrap();
        flock(one.as_fd(), FlockKind::Exclusive, true).unwrap();
    }
}
