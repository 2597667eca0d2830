//! Carrying a file's bytes from one descriptor to another: data is copied, holes stay holes.

use std::os::fd::BorrowedFd;

use fsstack_sys::file::Whence;
use fsstack_sys::{self as sys, Errno, SysError};

/// Bytes read and written at a time.
const CHUNK: usize = 1 << 20;

/// Copies up to `len` bytes of `from` (descriptor, offset) to `to`: how many. Stops early, with what was done,
/// where something fails after the first byte.
///
/// # Errors
/// What failed before the first byte.
pub(crate) fn copy(
    from: (BorrowedFd<'_>, u64),
    to: (BorrowedFd<'_>, u64),
    len: u64,
) -> Result<u64, SysError> {
    let mut done = 0;
    match copy_counting(from, to, len, &mut done) {
        Err(error) if done == 0 => Err(error),
        Ok(()) | Err(_) => Ok(done),
    }
}

/// As [`copy`], but all of it or an error.
///
/// # Errors
/// What failed; `to` is then half written.
pub(crate) fn copy_all(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), SysError> {
    let size = sys::at::stat_fd(from)?.size;
    copy_counting((from, 0), (to, 0), size, &mut 0)?;
    sys::file::truncate(to, size)
}

fn copy_counting(
    from: (BorrowedFd<'_>, u64),
    to: (BorrowedFd<'_>, u64),
    len: u64,
    done: &mut u64,
) -> Result<(), SysError> {
    let size = sys::at::stat_fd(from.0)?.size;
    let end = size.min(from.1.saturating_add(len));
    let mut buffer = Vec::new();
    while from.1 + *done < end {
        let at = from.1 + *done;
        let data = match sys::file::seek(from.0, at, Whence::Data) {
            Err(error) if error.errno == Errno::NXIO => end,
            Err(_) => at, // no such notion here: all is data
            Ok(data) => data.min(end),
        };
        if data > at {
            leave_hole(to.0, to.1 + *done, data - at)?;
            *done += data - at;
            continue;
        }
        buffer.resize(CHUNK, 0);
        let stop = match sys::file::seek(from.0, at, Whence::Hole) {
            Ok(hole) if hole > at => hole.min(end),
            _ => end,
        };
        let want = usize::try_from(stop - at).unwrap_or(CHUNK).min(CHUNK);
        let read = sys::file::read_at(from.0, &mut buffer[..want], at)?;
        if read == 0 {
            return Ok(()); // became shorter meanwhile
        }
        write_all(to.0, &buffer[..read], to.1 + *done)?;
        *done += read as u64;
    }
    Ok(())
}

/// Makes `len` bytes at `at` read as zeros without storing them.
fn leave_hole(fd: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), SysError> {
    /// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`.
    const PUNCH: u32 = 0x03;
    let size = sys::at::stat_fd(fd)?.size;
    if at < size {
        match sys::file::fallocate(fd, PUNCH, at, len.min(size - at)) {
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
    if at + len > size { sys::file::truncate(fd, at + len) } else { Ok(()) }
}

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
