//! Copies metadata: owner, xattrs, ACLs, mode, flags, times.
//!
//! The order matters: chown clears set-uid and capabilities, so the owner comes first, and the mode after the ACL,
//! which contains it. Times come last.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fsstack_engine::carry::{InodeFlags, Unfit, copy_xattrs};
use fsstack_sys::at::{SetTime, Times};
use fsstack_sys::{self as sys, Errno, Stat, SysError, identity};

use super::report::CopyReport;

/// Sets what an empty file needs before its content. The project is left to the pool's directory.
pub(super) fn begin(to: BorrowedFd<'_>, from: BorrowedFd<'_>) -> Result<InodeFlags, SysError> {
    let inode_flags = InodeFlags::of(from)?.without_project();
    inode_flags.begin(to)?;
    Ok(inode_flags)
}

/// Sets the metadata of a file that has its content. Returns the flags to set after it has its name, if any.
pub(super) fn file(
    to: BorrowedFd<'_>,
    from: BorrowedFd<'_>,
    stat: &Stat,
    inode_flags: &InodeFlags,
) -> Result<Option<u32>, SysError> {
    give(to, stat)?;
    copy_xattrs(to, from, Unfit::Refused)?;
    if stat.mode & 0o7777 != 0o600 {
        sys::file::chmod(to, stat.mode & 0o7777)?;
    }
    inode_flags.finish(to)?;
    sys::at::utimens_fd(to, times(stat))?;
    Ok(freezing(inode_flags))
}

/// Sets the metadata of a directory with all its entries. Both descriptors may be read. Returns the flags to set at the
/// end, if any.
pub(super) fn directory(
    to: BorrowedFd<'_>,
    from: BorrowedFd<'_>,
    stat: &Stat,
) -> Result<Option<u32>, SysError> {
    give(to, stat)?;
    copy_xattrs(to, from, Unfit::Refused)?;
    sys::file::chmod(to, stat.mode & 0o7777)?;
    let inode_flags = begin(to, from)?;
    inode_flags.finish(to)?;
    sys::at::utimens_fd(to, times(stat))?;
    Ok(freezing(&inode_flags))
}

/// Sets the metadata of other objects, made with their mode, by `O_PATH` descriptors.
pub(super) fn other(to: BorrowedFd<'_>, from: BorrowedFd<'_>, stat: &Stat) -> Result<(), SysError> {
    give(to, stat)?;
    if !stat.is_symlink() {
        copy_xattrs(to, from, Unfit::Refused)?;
        sys::at::chmod_fd(to, stat.mode & 0o7777)?;
    }
    sys::at::utimens_fd(to, times(stat))
}

fn freezing(inode_flags: &InodeFlags) -> Option<u32> {
    Some(inode_flags.freezing()).filter(|flags| *flags != 0)
}

/// Adds `flags` when nothing else remains to be done.
pub(super) fn freeze(to: BorrowedFd<'_>, flags: u32) -> Result<(), SysError> {
    sys::ioctl::setflags(to, sys::ioctl::getflags(to)? | flags)
}

/// A file that gets its final flags on drop.
#[derive(Debug)]
pub(super) struct Freeze {
    pub(super) file: OwnedFd,
    pub(super) flags: u32,
    /// The source's path in printable form.
    pub(super) path: Vec<u8>,
    pub(super) report: Arc<CopyReport>,
}

impl Drop for Freeze {
    fn drop(&mut self) {
        if let Err(error) = freeze(self.file.as_fd(), self.flags) {
            let why = format!("it is copied, but its flags cannot be set: {}", error.errno);
            self.report.fail(&self.path, why);
        }
    }
}

fn give(to: BorrowedFd<'_>, stat: &Stat) -> Result<(), SysError> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if (uid, gid) == (stat.uid, stat.gid) {
        return Ok(());
    }
    match sys::at::chown_fd(to, Some(stat.uid), Some(stat.gid)) {
        // As with cp, users other than root own their copies.
        Err(error) if error.errno == Errno::PERM && !identity::is_root() => Ok(()),
        given => given,
    }
}

fn times(stat: &Stat) -> Times {
    Times { atime: SetTime::At(stat.atime), mtime: SetTime::At(stat.mtime) }
}
