//! A file's bytes onto a branch: holes stay holes, and large files go by io_uring, several blocks at a time.
//!
//! On a disk of this machine large files are written past the page cache: what a first load writes is not read again
//! soon, and the sync at the end has nothing left to do. What is not a whole number of blocks goes through the cache.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fsstack_sys::file::{self, Whence};
use fsstack_sys::ring::{ALIGNMENT, Carrier};
use fsstack_sys::{self as sys, Call, Errno, OFlags, Stat, SysError};

use super::report::CopyReport;
use super::staging::Staging;

/// A file up to this is read and written in one piece or two: a ring would cost more than it brings.
const SMALL: u64 = 256 << 10;
/// Blocks on their way at a time, and their size.
const DEPTH: u16 = 8;
const BLOCK: usize = 1 << 20;
/// `FALLOC_FL_KEEP_SIZE`.
const KEEP_SIZE: u32 = 1;

/// Means of a copying thread to copy bytes.
#[derive(Debug, Default)]
pub(super) struct Carry {
    /// None: not tried yet. Some(None): there is none here.
    ring: Option<Option<Carrier>>,
    buffer: Vec<u8>,
}

/// A file on its way.
#[derive(Clone, Copy)]
struct Stretch<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    /// The same file as `to`, past the page cache.
    direct: Option<BorrowedFd<'a>>,
    report: &'a CopyReport,
}

impl Carry {
    /// All of `from`, which was of `stat` a moment ago, into the empty file `to`.
    ///
    /// # Errors
    /// `to` is half written.
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
                break; // it became shorter: that is seen by its attributes
            }
            at = data.end;
        }
        Ok(())
    }

    /// A stretch of data: how far it went.
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
            // Not as this file system, or the disk below it, wants direct I/O to be.
            Err(error) if error == SysError::new(Call::Write, Errno::INVAL) && carried == 0 => {
                self.by_hand(way, data)
            }
            Err(error) => Err(error),
        }
    }

    /// By plain reads and writes: how far it went.
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

/// The next stretch of data from `at` on; an empty one at `end` if there is none.
fn next_data(fd: BorrowedFd<'_>, at: u64, end: u64) -> Range<u64> {
    let data = match file::seek(fd, at, Whence::Data) {
        Ok(data) => data.min(end),
        Err(error) if error.errno == Errno::NXIO => end,
        Err(_) => return at..end, // no such notion here: all is data
    };
    match file::seek(fd, data, Whence::Hole) {
        Ok(hole) if hole > data => data..hole.min(end),
        _ => data..end,
    }
}

/// The same file past the page cache, where that is to be had.
fn past_cache(file: BorrowedFd<'_>) -> Option<OwnedFd> {
    sys::at::reopen(file, OFlags::WRONLY | OFlags::DIRECT).ok()
}
