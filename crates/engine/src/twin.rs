//! Making a nameless file into a copy of another one, on another branch.

use std::os::fd::BorrowedFd;

use fsstack_sys::at::{SetTime, Times};
use fsstack_sys::{self as sys, Errno, Stat, SysError};

use crate::chattr::Traits;
use crate::settings::{Relocation, Verify};
use crate::skeleton::{Unfit, copy_xattrs};
use crate::transfer;

/// Flags, content, owner, attributes, mode and times, in an order in which none undoes another; then on disk.
///
/// # Errors
/// What a branch answered; EOPNOTSUPP or EPERM if the new one cannot hold an attribute, an ACL or a flag that matters; EIO if the two are
/// not the same.
pub(crate) fn dress(
    new: BorrowedFd<'_>,
    old: BorrowedFd<'_>,
    stat: &Stat,
    how: &Relocation,
    goes_on: &dyn Fn() -> bool,
) -> Result<(), SysError> {
    let traits = Traits::of(old)?;
    traits.begin(new)?;
    let shared = sys::file::reflink(old, new).is_ok();
    if !shared {
        transfer::copy_all(old, new, how.speed, goes_on)?;
    }
    sys::at::chown_fd(new, Some(stat.uid), Some(stat.gid))?;
    copy_xattrs(new, old, Unfit::Refused)?;
    // After the owner: a change of owner clears set-uid.
    sys::at::chmod_fd(new, stat.mode & 0o7777)?;
    traits.finish(new)?;
    traits.check_promises(new)?;
    let times = Times { atime: SetTime::At(stat.atime), mtime: SetTime::At(stat.mtime) };
    sys::at::utimens_fd(new, times)?;
    let written = sys::at::stat_fd(new)?;
    if written.size != stat.size {
        return Err(SysError { call: sys::Call::Write, errno: Errno::IO });
    }
    sys::file::fsync(new)?;
    if how.verify == Verify::Content && !shared {
        sys::file::drop_cached(new)?;
        if !transfer::is_same(old, new)? {
            return Err(SysError { call: sys::Call::Read, errno: Errno::IO });
        }
    }
    Ok(())
}
