//! Changes attributes of the object behind a descriptor, which may be `O_PATH`.

use std::os::fd::BorrowedFd;

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

/// Sets the permissions. EOPNOTSUPP for a symbolic link, which has none.
pub fn chmod_fd(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
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
