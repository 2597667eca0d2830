//! Copying inside the pool: the branch's own way on one branch, read and write across branches.

use std::os::fd::BorrowedFd;

use fsstack_pool::Handle;
use fsstack_sys::{self as sys, Errno, SysError};

use crate::caller::Caller;
use crate::error::{OpError, Result};
use crate::open::OpenFile;
use crate::transfer;
use crate::union::Union;

/// Bytes of data copied across branches in one request: the caller asks again for the rest, and can be interrupted.
const PORTION: u64 = 64 << 20;

impl Union {
    /// As `copy_file_range(2)`: the number of bytes copied.
    ///
    /// # Errors
    /// EBADF if a handle is not open; EPERM if the target is immutable, or may only be added to and its handle, or the
    /// daemon's own descriptor, was opened so; what a branch answered before the first byte.
    pub fn copy_range(
        &self,
        from: (Handle, u64),
        to: (Handle, u64),
        len: u64,
        caller: Caller,
    ) -> Result<u64> {
        let (source, target) = (self.file(from.0)?, self.file(to.0)?);
        if target.must_append() {
            return Err(Errno::PERM.into());
        }
        // What others opened to append appends.
        target.file.check_stored()?;
        target.file.make_writable()?;
        self.strip(&target.inode, &target.file, caller)?;
        let size = source.file.stat()?.size;
        let more = len.min(size.saturating_sub(from.1));
        self.with_room(&target.inode, &target.file, more, || {
            let copied = copy(&source.file, from.1, &target.file, to.1, len)?;
            target.file.note_written();
            Ok(copied)
        })
    }
}

/// What the kernel moves in one call at most (its `MAX_RW_COUNT`).
const AT_MOST: usize = 0x7fff_f000;

/// The branch's own way where both files are on one.
fn copy(source: &OpenFile, from: u64, target: &OpenFile, to: u64, len: u64) -> Result<u64> {
    let in_pool = |error: OpError| SysError { call: sys::Call::CopyRange, errno: error.errno() };
    if source.branch().dev() == target.branch().dev() {
        let want = usize::try_from(len).map_or(AT_MOST, |len| len.min(AT_MOST));
        let copied = source.ask_patiently(|source| {
            target.ask_inside(|target| sys::file::copy_range(source, from, target, to, want)).map_err(in_pool)
        });
        match copied {
            Err(error) if matches!(error.errno(), Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) => {}
            settled => return settled.map(|copied| copied as u64),
        }
    }
    // The branch's own way asks for that; a descriptor from before `chattr +i` can still be written.
    if target.stat()?.is_immutable() {
        return Err(Errno::PERM.into());
    }
    // A place inside of both: whichever hangs, the caller is answered. (In the order of the branches, so that nobody who
    // copies the other way has the one and waits for the other.)
    let copied = |source: BorrowedFd<'_>, target: BorrowedFd<'_>| {
        transfer::copy((source, from), (target, to), len.min(AT_MOST as u64), PORTION)
    };
    let (first, second) = (source.branch().ix, target.branch().ix);
    if first == second {
        source.ask_patiently(|from| target.ask_inside(|to| copied(from, to)).map_err(in_pool))
    } else if first < second {
        source.ask_patiently(|from| target.ask_patiently(|to| copied(from, to)).map_err(in_pool))
    } else {
        target.ask_patiently(|to| source.ask_patiently(|from| copied(from, to)).map_err(in_pool))
    }
}
