//! Space that a file has on its disk and has not written to.
//!
//! fallocate(2) promises that writes to it, by a mapping too, find space. The promise goes along to a copy.

use std::os::fd::BorrowedFd;

use fsstack_sys::extents::{Extent, extents};
use fsstack_sys::{self as sys, Errno, Stat, SysError};

use crate::moves::transfer::check_wanted;

/// `FALLOC_FL_KEEP_SIZE`.
const KEEP_SIZE: u32 = 0x01;
/// `f_type` of XFS, which takes space behind a file's end on its own.
const XFS: u64 = 0x5846_5342;

/// Allocates for `new`, which has the content of `old`, what `old` has allocated and not written to; `stat` is its attributes. A
/// file system that cannot allocate is left as it is.
///
/// # Errors
/// The error of a branch; ENOSPC or EDQUOT if there is no space; EINTR if the copy no longer `goes_on`.
pub(crate) fn allocate_as(
    new: BorrowedFd<'_>,
    old: BorrowedFd<'_>,
    stat: &Stat,
    goes_on: &dyn Fn() -> bool,
) -> Result<(), SysError> {
    for Extent { start, len, .. } in unwritten(old, stat)? {
        check_wanted(goes_on)?;
        match sys::file::fallocate(new, KEEP_SIZE, start, len) {
            Err(error) if is_unknown(error) => {
                tracing::debug!("space that a file had allocated is not allocated where it is copied to");
                return Ok(());
            }
            done => done?,
        }
    }
    Ok(())
}

/// Where `old` has space that it has not written to. A file system that does not tell where may tell that it has space for all of
/// the file.
fn unwritten(old: BorrowedFd<'_>, stat: &Stat) -> Result<Vec<Extent>, SysError> {
    let (mut all, mut from) = (Vec::<Extent>::new(), 0);
    loop {
        let reported = match extents(old, from) {
            Err(error) if is_unknown(error) => {
                let is_whole = stat.size > 0 && stat.blocks.saturating_mul(512) >= stat.size;
                let whole = Extent { start: 0, len: stat.size, unwritten: true, is_last: true };
                return Ok(is_whole.then_some(whole).into_iter().collect());
            }
            reported => reported?,
        };
        let Some(last) = reported.last().copied() else { return Ok(all) };
        from = last.start.saturating_add(last.len);
        for extent in reported.into_iter().filter(|extent| extent.unwritten) {
            if extent.start >= stat.size && !keeps_space_behind_the_end(old)? {
                continue;
            }
            match all.last_mut() {
                Some(last) if last.start + last.len == extent.start => last.len += extent.len,
                _ => all.push(extent),
            }
        }
        if last.is_last {
            return Ok(all);
        }
    }
}

/// Whether what is allocated behind the end of `old` was asked for.
fn keeps_space_behind_the_end(old: BorrowedFd<'_>) -> Result<bool, SysError> {
    if sys::file::statfs(old)?.f_type != XFS {
        return Ok(true);
    }
    let flags = sys::ioctl::fsgetxattr(old).map_or(0, |raw| sys::ioctl::Extended::of(&raw).flags);
    Ok(flags & sys::ioctl::FS_XFLAG_PREALLOC != 0)
}

fn is_unknown(error: SysError) -> bool {
    matches!(error.errno, Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::BADR)
}
