//! Copying inside the pool: the branch's own way on one branch, read and write across branches.

use std::os::fd::{AsFd, BorrowedFd};

use fsstack_pool::Handle;
use fsstack_sys::file::Whence;
use fsstack_sys::{self as sys, Errno, SysError};

use crate::caller::Caller;
use crate::error::Result;
use crate::union::Union;

/// Bytes read and written at a time across branches.
const CHUNK: usize = 1 << 20;
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
        let same = source.file.branch().dev == target.file.branch().dev;
        if same {
            let copied = source.file.ask(|source| {
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
        source.file.ask(|source| {
            target
                .file
                .ask_inside(|target| copy_by_hand((source, from.1), (target, to.1), len.min(PORTION)))
                .map_err(|error| SysError { call: sys::Call::CopyRange, errno: error.errno() })
        })
    }
}

/// Copies data and leaves holes as they are; stops early, with what was done, where something fails.
fn copy_by_hand(from: (BorrowedFd<'_>, u64), to: (BorrowedFd<'_>, u64), len: u64) -> Result<u64, SysError> {
    let size = sys::at::stat_fd(from.0)?.size;
    let end = size.min(from.1.saturating_add(len));
    if end <= from.1 {
        return Ok(0);
    }
    let mut buffer = vec![0_u8; CHUNK];
    let mut at = from.1;
    while at < end {
        let data = match sys::file::seek(from.0, at, Whence::Data) {
            Err(error) if error.errno == Errno::NXIO => end,
            Err(_) => at,
            Ok(data) => data.min(end),
        };
        if data > at {
            leave_hole(to.0, to.1 + (at - from.1), data - at)?;
            at = data;
            continue;
        }
        let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
        let step = sys::file::read_at(from.0, &mut buffer[..want], at)
            .and_then(|read| write_all(to.0, &buffer[..read], to.1 + (at - from.1)).map(|()| read));
        match step {
            Ok(0) => break,
            Ok(read) => at += read as u64,
            Err(error) if at == from.1 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(at - from.1)
}

/// Makes `len` bytes at `at` read as zeros without storing them.
fn leave_hole(fd: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), SysError> {
    /// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`.
    const PUNCH: u32 = 0x03;
    let size = sys::at::stat_fd(fd)?.size;
    if at < size {
        match sys::file::fallocate(fd, PUNCH, at, len) {
            Err(error) if error.errno == Errno::OPNOTSUPP => {
                let zeros = vec![0_u8; usize::try_from(len.min(CHUNK as u64)).unwrap_or(CHUNK)];
                let mut done = 0;
                while done < len {
                    let part = usize::try_from((len - done).min(CHUNK as u64)).unwrap_or(CHUNK);
                    write_all(fd, &zeros[..part], at + done)?;
                    done += part as u64;
                }
            }
            punched => punched?,
        }
    }
    if at + len > size { sys::file::truncate(fd.as_fd(), at + len) } else { Ok(()) }
}

fn write_all(fd: BorrowedFd<'_>, mut data: &[u8], mut at: u64) -> Result<(), SysError> {
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
