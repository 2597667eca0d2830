//! Changes attributes of the object behind a descriptor, which may be `O_PATH`.
#![allow(unsafe_code, reason = "fchmodat2 has no wrapper that takes AT_EMPTY_PATH")]

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::{AtFlags, CWD, Gid, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use rustix::io::Errno;

use super::permissions;
use super::procfd::ProcFd;
use crate::call::{Call, Result, SysError, call};
use crate::stat::Time;

/// New value of a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// Unchanged.
    Omit,
    /// The current time.
    Now,
    /// This time.
    At(Time),
}

impl From<SetTime> for Timespec {
    fn from(time: SetTime) -> Self {
        match time {
            SetTime::Omit => Self { tv_sec: 0, tv_nsec: UTIME_OMIT },
            SetTime::Now => Self { tv_sec: 0, tv_nsec: UTIME_NOW },
            SetTime::At(Time { sec, nsec }) => Self { tv_sec: sec, tv_nsec: nsec.into() },
        }
    }
}

/// New values of the two timestamps that callers can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub atime: SetTime,
    /// Last change of the content.
    pub mtime: SetTime,
}

/// The kernel is older than Linux 6.6, which brought `fchmodat2`.
static LACKS_FCHMODAT2: AtomicBool = AtomicBool::new(false);

/// Sets the permissions. EOPNOTSUPP for a symbolic link, which has none.
pub fn chmod_fd(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    if !LACKS_FCHMODAT2.load(Relaxed) {
        match call(Call::Chmod, || fchmodat2(fd, mode)) {
            Err(SysError { errno: Errno::NOSYS, .. }) => LACKS_FCHMODAT2.store(true, Relaxed),
            // A container's filter may refuse calls that it does not know.
            Err(SysError { errno: Errno::PERM, .. }) => {}
            done => return done,
        }
    }
    chmod_by_proc(fd, mode)
}

/// The same on all machines (`asm-generic/unistd.h`); libc lacks it for some.
pub(crate) const SYS_FCHMODAT2: libc::c_long = 452;

fn fchmodat2(fd: BorrowedFd<'_>, mode: u32) -> rustix::io::Result<()> {
    let (fd, mode) = (fd.as_raw_fd(), permissions(mode).bits());
    // SAFETY: the kernel reads the path up to its NUL, and nothing else of this process.
    let done = unsafe { libc::syscall(SYS_FCHMODAT2, fd, c"".as_ptr(), mode, libc::AT_EMPTY_PATH) };
    if done == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// The path through /proc takes longer than the change.
fn chmod_by_proc(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    let path = ProcFd::of(fd);
    call(Call::Chmod, || rustix::fs::chmodat(CWD, path.as_c_str(), permissions(mode), AtFlags::empty()))
}

/// Sets owner and group; `None` leaves one unchanged.
pub fn chown_fd(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    // The kernel takes all ones as "leave unchanged".
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(SysError::new(Call::Chown, Errno::INVAL));
    }
    let (owner, group) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    call(Call::Chown, || rustix::fs::chownat(fd, c"", owner, group, AtFlags::EMPTY_PATH))
}

/// Sets timestamps.
pub fn utimens_fd(fd: BorrowedFd<'_>, times: Times) -> Result<()> {
    let stamps = Timestamps { last_access: times.atime.into(), last_modification: times.mtime.into() };
    call(Call::Utimens, || rustix::fs::utimensat(fd, c"", &stamps, AtFlags::EMPTY_PATH))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use rustix::fs::OFlags;

    use super::*;
    use crate::at::{self, Mounts};

    #[test]
    fn permissions_change_by_either_way_and_those_of_a_link_by_none() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
        let root = at::open_root(dir.path()).unwrap();
        let open = |name, how| at::open(root.as_fd(), name, how, 0, Mounts::Stay).unwrap();
        for (mode, change) in
            [(0o2750, chmod_fd as fn(BorrowedFd<'_>, u32) -> Result<()>), (0o4711, chmod_by_proc)]
        {
            for how in [OFlags::PATH, OFlags::RDONLY] {
                change(open(c"file", how).as_fd(), mode).unwrap();
                assert_eq!(at::stat(root.as_fd(), c"file").unwrap().mode & 0o7777, mode);
            }
            let refused = change(open(c"link", OFlags::PATH).as_fd(), mode).unwrap_err();
            assert_eq!(refused, SysError::new(Call::Chmod, Errno::OPNOTSUPP));
        }
    }
}
