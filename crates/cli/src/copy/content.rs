//! Copies a file's data to a branch: holes stay holes, and large files go by io_uring, several blocks at a time.
//!
//! On local disks large files bypass the page cache: newly loaded data is not read again soon, and the final sync has
//! less to do. A part that is not a whole number of blocks goes through the cache.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fsstack_sys::file::{self, Whence};
use fsstack_sys::ring::{ALIGNMENT, Carrier};
use fsstack_sys::{self as sys, Call, Errno, OFlags, Stat, SysError};

use super::report::CopyReport;
use super::staging::Staging;

/// Up to this size a file is copied by plain reads and writes: a ring costs more than it saves.
const SMALL: u64 = 256 << 10;
/// Blocks in flight, and their size.
const DEPTH: u16 = 8;
const BLOCK: usize = 1 << 20;
/// `FALLOC_FL_KEEP_SIZE`.
const KEEP_SIZE: u32 = 1;

/// Resources of a copying thread.
#[derive(Debug, Default)]
pub(super) struct Carry {
    /// `None` before the first use; `Some(None)` if io_uring is unavailable.
    ring: Option<Option<Carrier>>,
    buffer: Vec<u8>,
}

/// A file being copied.
#[derive(Clone, Copy)]
struct Stretch<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    /// The same file as `to`, opened for direct I/O.
    direct: Option<BorrowedFd<'a>>,
    report: &'a CopyReport,
}

impl Carry {
    /// Copies all of `from`, whose attributes were just `stat`, into the empty file `to`.
    ///
    /// # Errors
    ///
    /// `to` is then partly written.
    pub(super) fn copy(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        stat: &Stat,
        staging: &Staging,
        report: &CopyReport,
    ) -> Result<(), SysError> {
        let way = Stretch { from, to, direct: None, report };
        let sparse = stat.blocks.saturating_mul(512) < stat.size;
        if stat.size <= SMALL && !sparse {
            return self.by_hand(way, 0..stat.size).map(drop);
        }
        if stat.dev == staging.dev && file::reflink(from, to).is_ok() {
            report.passed(stat.size);
            return Ok(());
        }
        file::truncate(to, stat.size)?;
        let direct = (staging.local && stat.size > SMALL).then(|| past_cache(to)).flatten();
        let way = Stretch { direct: direct.as_ref().map(AsFd::as_fd), ..way };
        let mut at = 0;
        while at < stat.size {
            let data = if sparse { next_data(from, at, stat.size) } else { at..stat.size };
            report.passed(data.start - at);
            if !data.is_empty() && self.stretch(way, data.clone())? < data.end {
                break; // the file became shorter, which its attributes will show
            }
            at = data.end;
        }
        Ok(())
    }

    /// Copies a range of data; returns where it ended.
    fn stretch(&mut self, way: Stretch<'_>, data: Range<u64>) -> Result<u64, SysError> {
        if data.end - data.start <= SMALL {
            return self.by_hand(way, data);
        }
        match file::fallocate(way.to, KEEP_SIZE, data.start, data.end - data.start) {
            Err(error) if matches!(error.errno, Errno::NOSPC | Errno::DQUOT) => return Err(error),
            _ => {}
        }
        let Some(ring) = self.ring.get_or_insert_with(|| Carrier::new(DEPTH, BLOCK).ok()) else {
            return self.by_hand(way, data);
        };
        let Some(direct) = way.direct else {
            return ring.carry(way.from, way.to, data, |bytes| way.report.passed(bytes));
        };
        let unit = ALIGNMENT as u64;
        let whole = data.start - data.start % unit..data.end - data.end % unit;
        let mut carried = 0;
        let went = ring.carry(way.from, direct, whole.clone(), |bytes| {
            carried += bytes;
            way.report.passed(bytes);
        });
        match went {
            Ok(end) if end < whole.end => Ok(end),
            Ok(_) => self.by_hand(way, whole.end..data.end),
            // The file system, or the disk below it, requires another alignment of direct I/O.
            Err(error) if error == SysError::new(Call::Write, Errno::INVAL) && carried == 0 => {
                self.by_hand(way, data)
            }
            Err(error) => Err(error),
        }
    }

    /// Copies by plain reads and writes; returns where it ended.
    fn by_hand(&mut self, way: Stretch<'_>, range: Range<u64>) -> Result<u64, SysError> {
        self.buffer.resize(BLOCK, 0);
        let mut at = range.start;
        while at < range.end {
            let want = usize::try_from(range.end - at).map_or(BLOCK, |left| left.min(BLOCK));
            let read = file::read_at(way.from, &mut self.buffer[..want], at)?;
            if read == 0 {
                break;
            }
            let mut rest = &self.buffer[..read];
            while !rest.is_empty() {
                let written = file::write_at(way.to, rest, at)?;
                if written == 0 {
                    return Err(SysError::new(Call::Write, Errno::NOSPC));
                }
                rest = &rest[written..];
                at += written as u64;
            }
            way.report.passed(read as u64);
        }
        Ok(at)
    }
}

/// Returns the next range of data from `at` on; an empty range at `end` if there is none.
fn next_data(fd: BorrowedFd<'_>, at: u64, end: u64) -> Range<u64> {
    let data = match file::seek(fd, at, Whence::Data) {
        Ok(data) => data.min(end),
        Err(error) if error.errno == Errno::NXIO => end,
        Err(_) => return at..end, // no SEEK_DATA here: all of it is data
    };
    match file::seek(fd, data, Whence::Hole) {
        Ok(hole) if hole > data => data..hole.min(end),
        _ => data..end,
    }
}

/// Opens the same file for direct I/O, if possible.
fn past_cache(file: BorrowedFd<'_>) -> Option<OwnedFd> {
    sys::at::reopen(file, OFlags::WRONLY | OFlags::DIRECT).ok()
}
