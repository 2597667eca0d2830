//! Copies of symbolic links, fifos, sockets and devices, which have attributes and no content.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd};

use fsstack_branch::branch::Branch;
use fsstack_branch::error::Result;
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_sys::at::{SetTime, Times};
use fsstack_sys::{self as sys, Errno, OFlags, Stat, SysError};

use crate::member::Member;
use crate::recovery::blank::{LOCKED_COPY, StagedCopy};
use crate::recovery::locked_dir::LockedDir;
use crate::tree::skeleton::{Unfit, copy_xattrs};

/// A copy of `source`, which is on the branch `from` and has the attributes `stat`: in the hidden folder of the branch `to`.
///
/// # Errors
/// A branch's error; EOPNOTSUPP or EPERM if `to` cannot hold an attribute.
pub(crate) fn make(
    from: &Branch,
    source: BorrowedFd<'_>,
    stat: &Stat,
    to: &Member,
) -> Result<(MountedFd, Option<StagedCopy>)> {
    let target = match stat.is_symlink() {
        true => Some(from.ask(|| link_target(source))?),
        false => None,
    };
    let mount_root = to.root();
    // Such an object takes no lock itself.
    let locked = to.ask(|| LockedDir::make(to))?;
    let made = to.ask(|| {
        let folder = locked.dir.as_fd();
        match &target {
            Some(target) => sys::at::symlink(target, folder, LOCKED_COPY)?,
            None => sys::at::mknod(folder, LOCKED_COPY, stat.mode & !0o7777 | 0o600, stat.rdev())?,
        }
        let made = sys::at::open(folder, LOCKED_COPY, OFlags::PATH, 0, to.mounts)?;
        make_like(made.as_fd(), source, stat).map(|()| made)
    });
    let staged = StagedCopy::Special(locked);
    match made {
        Ok(made) => Ok((mount_root.opened(made), Some(staged))),
        Err(error) => {
            staged.discard(to);
            Err(error)
        }
    }
}

/// Makes `name` in `dir` like `source`, which has the attributes `stat`; on the way it is the daemon's own.
///
/// # Errors
/// A branch's error; EOPNOTSUPP or EPERM if the file system cannot hold an attribute.
pub(crate) fn make_alike(
    source: BorrowedFd<'_>,
    stat: &Stat,
    dir: BorrowedFd<'_>,
    name: &CStr,
) -> Result<(), SysError> {
    match stat.is_symlink() {
        true => sys::at::symlink(&link_target(source)?, dir, name)?,
        false => sys::at::mknod(dir, name, stat.mode & !0o7777 | 0o600, stat.rdev())?,
    }
    let made = sys::at::open(dir, name, OFlags::PATH, 0, sys::at::Mounts::Stay)?;
    make_like(made.as_fd(), source, stat)
}

fn link_target(link: BorrowedFd<'_>) -> Result<CString, SysError> {
    let target = sys::at::readlink(link, c"")?;
    CString::new(target).map_err(|_| SysError { call: sys::Call::Readlink, errno: Errno::INVAL })
}

fn make_like(made: BorrowedFd<'_>, source: BorrowedFd<'_>, stat: &Stat) -> Result<(), SysError> {
    sys::at::chown_fd(made, Some(stat.uid), Some(stat.gid))?;
    copy_xattrs(made, source, Unfit::Refused)?;
    if !stat.is_symlink() {
        sys::at::chmod_fd(made, stat.mode & 0o7777)?;
    }
    sys::at::utimens_fd(made, Times { atime: SetTime::At(stat.atime), mtime: SetTime::At(stat.mtime) })
}
