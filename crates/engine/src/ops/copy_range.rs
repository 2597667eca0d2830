//! Copying inside the pool: the branch's own way on one branch, read and write across branches.

use fsstack_pool::Handle;
use fsstack_sys::{self as sys, Errno, SysError};

use crate::caller::Caller;
use crate::error::Result;
use crate::transfer;
use crate::union::Union;

/// Bytes copied across branches in one request: the caller asks again for the rest, and can be interrupted.
const PORTION: u64 = 64 << 20;

impl Union {
    /// As `copy_file_range(2)`: the number of bytes copied.
    ///
    /// # Errors
    /// EBADF if a handle is not open; what a branch answered before the first byte.
    pub fn copy_range(
        &self,
        from: (Handle, u64),
        to: (Handle, u64),
        len: u64,
        caller: Caller,
    ) -> Result<u64> {
        let (source, target) = (self.file(from.0)?, self.file(to.0)?);
        target.file.make_writable()?;
        target.file.strip(caller)?;
        let want = usize::try_from(len.min(1 << 30)).unwrap_or(1 << 30);
        let same = source.file.branch().dev() == target.file.branch().dev();
        if same {
            let copied = source.file.ask_patiently(|source| {
                target
                    .file
                    .ask_inside(|target| sys::file::copy_range(source, from.1, target, to.1, want))
                    .map_err(|error| SysError { call: sys::Call::CopyRange, errno: error.errno() })
            });
            match copied {
                Ok(copied) => return Ok(copied as u64),
                Err(error) if !matches!(error.errno(), Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        source.file.ask_patiently(|source| {
            target
                .file
                .ask_inside(|target| transfer::copy((source, from.1), (target, to.1), len.min(PORTION)))
                .map_err(|error| SysError { call: sys::Call::CopyRange, errno: error.errno() })
        })
    }
}
