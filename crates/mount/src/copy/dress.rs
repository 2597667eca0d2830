//! Giving a copy what the original has besides its content: owner, attributes, access lists, mode, flags, times.
//!
//! The order matters: giving a file away takes set-uid and capabilities off it, so the owner comes first and the mode
//! after the access list, which is part of it. Times come last.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fsstack_engine::carry::{Unfit, copy_xattrs};
use fsstack_sys::at::{SetTime, Times};
use fsstack_sys::{self as sys, Errno, Stat, SysError, identity};

use super::report::Report;

/// Flags that a user may set and see (`FS_FL_USER_MODIFIABLE`).
const SETTABLE: u32 = 0x0003_80ff;
/// Those that keep a file from being named, and a directory from being filled: immutable, append-only.
const FREEZING: u32 = 0x30;

/// Dresses a file that has its content. Answers all flags that it is to have when it has its name, if some are left
/// until then.
pub(super) fn file(to: BorrowedFd<'_>, from: BorrowedFd<'_>, stat: &Stat) -> Result<Option<u32>, SysError> {
    give(to, stat)?;
    copy_xattrs(to, from, Unfit::Refused)?;
    if stat.mode & 0o7777 != 0o600 {
        sys::file::chmod(to, stat.mode & 0o7777)?;
    }
    let flags = sys::ioctl::getflags(from).map_or(0, |flags| flags & SETTABLE);
    if flags & !FREEZING != 0 {
        set_flags(to, flags & !FREEZING);
    }
    sys::at::utimens_fd(to, times(stat))?;
    Ok((flags & FREEZING != 0).then_some(flags))
}

/// Dresses a directory whose entries are all there. Both descriptors may be used to read it. Answers all flags that it
/// is to have in the end, if some are left until then.
pub(super) fn directory(
    to: BorrowedFd<'_>,
    from: BorrowedFd<'_>,
    stat: &Stat,
) -> Result<Option<u32>, SysError> {
    give(to, stat)?;
    copy_xattrs(to, from, Unfit::Refused)?;
    sys::file::chmod(to, stat.mode & 0o7777)?;
    let flags = sys::ioctl::getflags(from).map_or(0, |flags| flags & SETTABLE);
    if flags & !FREEZING != 0 {
        set_flags(to, flags & !FREEZING);
    }
    sys::at::utimens_fd(to, times(stat))?;
    Ok((flags & FREEZING != 0).then_some(flags))
}

/// Dresses what is neither, made with its mode: by `O_PATH` descriptors.
pub(super) fn other(to: BorrowedFd<'_>, from: BorrowedFd<'_>, stat: &Stat) -> Result<(), SysError> {
    give(to, stat)?;
    if !stat.is_symlink() {
        copy_xattrs(to, from, Unfit::Refused)?;
        sys::at::chmod_fd(to, stat.mode & 0o7777)?;
    }
    sys::at::utimens_fd(to, times(stat))
}

/// All flags, when nothing more is to be done to it.
pub(super) fn freeze(to: BorrowedFd<'_>, flags: u32) -> Result<(), SysError> {
    sys::ioctl::setflags(to, flags)
}

/// A file that is frozen when this drops.
#[derive(Debug)]
pub(super) struct Freeze {
    pub(super) file: OwnedFd,
    pub(super) flags: u32,
    /// The source's path, for people.
    pub(super) path: Vec<u8>,
    pub(super) report: Arc<Report>,
}

impl Drop for Freeze {
    fn drop(&mut self) {
        if let Err(error) = freeze(self.file.as_fd(), self.flags) {
            let why = format!("it is copied, but its flags cannot be set: {}", error.errno);
            self.report.fail(&self.path, why);
        }
    }
}

/// What one file system knows of these another may not.
fn set_flags(to: BorrowedFd<'_>, flags: u32) {
    if let Err(error) = sys::ioctl::setflags(to, flags) {
        tracing::debug!(%error, "inode flags were not copied");
    }
}

fn give(to: BorrowedFd<'_>, stat: &Stat) -> Result<(), SysError> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if (uid, gid) == (stat.uid, stat.gid) {
        return Ok(());
    }
    match sys::at::chown_fd(to, Some(stat.uid), Some(stat.gid)) {
        // As with cp: who is not root keeps what it copies.
        Err(error) if error.errno == Errno::PERM && !identity::is_root() => Ok(()),
        given => given,
    }
}

fn times(stat: &Stat) -> Times {
    Times { atime: SetTime::At(stat.atime), mtime: SetTime::At(stat.mtime) }
}
