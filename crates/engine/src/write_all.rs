//! Writing until all is written.

use std::os::fd::BorrowedFd;

use fsstack_sys::{self as sys, Errno, SysError};

/// Writes all of `data`.
///
/// # Errors
/// ENOSPC if the file takes no more without saying why.
pub(crate) fn write_all(fd: BorrowedFd<'_>, mut data: &[u8], mut at: u64) -> Result<(), SysError> {
    while !data.is_empty() {
        let written = sys::file::write_at(fd, data, at)?;
        if written == 0 {
            return Err(SysError { call: sys::Call::Write, errno: Errno::NOSPC });
        }
        data = &data[written..];
        at += written as u64;
    }
    Ok(())
}
