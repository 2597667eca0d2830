//! Carrying a file's bytes from one descriptor to another: data is copied, holes stay holes; and comparing them.

use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};

use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::file::Whence;
use fsstack_sys::{self as sys, Errno, OFlags, SysError};

use crate::write_all::write_all;

/// Bytes read and written at a time.
const CHUNK: usize = 1 << 20;
/// How long a copy that is ahead of its pace sleeps at a time.
const LONGEST_PACED_SLEEP: Duration = Duration::from_millis(50);

/// Failure of a copy.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// The source cannot be read.
    Source(SysError),
    /// Anything else: the target's, or nobody's.
    Other(SysError),
}

impl From<SysError> for CopyError {
    fn from(error: SysError) -> Self {
        Self::Other(error)
    }
}

impl From<CopyError> for SysError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Source(error) | CopyError::Other(error) => error,
        }
    }
}

/// Takes a failure of the source out of the result of a call on the target's branch, which is not to blame for it.
///
/// # Errors
/// Any other failure.
pub(crate) fn split_source_error<T>(copied: Result<T, CopyError>) -> Result<Result<T, SysError>, SysError> {
    match copied {
        Ok(done) => Ok(Ok(done)),
        Err(CopyError::Source(error)) => Ok(Err(error)),
        Err(CopyError::Other(error)) => Err(error),
    }
}

/// Copies up to `len` bytes of `from` (descriptor, offset) to `to`: how many. Stops early, with what was done, after `most`
/// bytes of data (holes take no time), where it no longer `goes_on`, and where something fails after the first byte.
///
/// # Errors
/// What failed before the first byte.
pub(crate) fn copy(
    from: (BorrowedFd<'_>, u64),
    to: (BorrowedFd<'_>, u64),
    len: u64,
    most: u64,
    goes_on: &dyn Fn() -> bool,
) -> Result<u64, SysError> {
    let mut done = 0;
    let size = sys::at::stat_fd(from.0)?.size;
    let len = len.min(size.saturating_sub(from.1));
    match copy_counting(from, to, len, &mut done, &mut Transfer::by_hand(most, goes_on)) {
        Err(error) if done == 0 => Err(error.into()),
        Ok(()) | Err(_) => Ok(done),
    }
}

/// Carrier of a copy's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CarriedBy {
    /// The kernel, or the server that has both files, where they can.
    Kernel,
    /// The daemon, which reads and writes.
    Daemon,
}

/// Copies the first `size` bytes of `from` to the empty file `to`, all of them or an error, and `speed` bytes a second at most.
///
/// # Errors
/// What failed; `to` is then half written. EBUSY if `from` was truncated meanwhile; EINTR if it no longer
/// `goes_on`.
pub(crate) fn copy_all(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    (size, speed, carried_by): (u64, Option<NonZeroU64>, CarriedBy),
    goes_on: &dyn Fn() -> bool,
) -> Result<(), CopyError> {
    let mut way = Transfer {
        carried_by,
        most: u64::MAX,
        goes_on,
        rate_limit: speed.map(|speed| RateLimit { speed, began: Instant::now(), done: 0 }),
    };
    let mut done = 0;
    copy_counting((from, 0), (to, 0), size, &mut done, &mut way)?;
    if done == size { Ok(()) } else { Err(SysError { call: sys::Call::Read, errno: Errno::BUSY }.into()) }
}

/// How bytes are carried.
struct Transfer<'a> {
    /// By the kernel as long as `copy_file_range` works between these two.
    carried_by: CarriedBy,
    /// Bytes of data after which it is enough; holes take no time.
    most: u64,
    /// Asked before each change of the target.
    goes_on: &'a dyn Fn() -> bool,
    rate_limit: Option<RateLimit>,
}

impl<'a> Transfer<'a> {
    fn by_hand(most: u64, goes_on: &'a dyn Fn() -> bool) -> Self {
        Self { carried_by: CarriedBy::Daemon, most, goes_on, rate_limit: None }
    }

    /// Carries up to a chunk of data: how many bytes, 0 at the end.
    fn carry(
        &mut self,
        from: (BorrowedFd<'_>, u64),
        to: (BorrowedFd<'_>, u64),
        len: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<usize, CopyError> {
        self.check_wanted()?;
        let carried = match self.carried_by {
            CarriedBy::Kernel => match sys::file::copy_range(from.0, from.1, to.0, to.1, len) {
                Ok(carried) if carried > 0 => Some(carried),
                Err(error) if matches!(error.errno, Errno::NOSPC | Errno::DQUOT) => return Err(error.into()),
                // EIO does not say which of the two has failed.
                Ok(_) | Err(_) => {
                    self.carried_by = CarriedBy::Daemon;
                    None
                }
            },
            CarriedBy::Daemon => None,
        };
        let carried = match carried {
            Some(carried) => carried,
            None => {
                buffer.resize(buffer.len().max(len), 0); // a small file pays for no more
                let read =
                    sys::file::read_at(from.0, &mut buffer[..len], from.1).map_err(CopyError::Source)?;
                check_wanted(self.goes_on)?; // the read may have taken long
                // A short write counts: the next piece gets the error, if there is one.
                match sys::file::write_at(to.0, &buffer[..read], to.1)? {
                    0 if read > 0 => {
                        return Err(SysError { call: sys::Call::Write, errno: Errno::NOSPC }.into());
                    }
                    written => written,
                }
            }
        };
        if let Some(rate_limit) = &mut self.rate_limit {
            rate_limit.done = rate_limit.done.saturating_add(carried as u64);
        }
        while let Some(early) = self.rate_limit.as_ref().and_then(RateLimit::early) {
            self.check_wanted()?;
            fsstack_sync::thread::sleep(early.min(LONGEST_PACED_SLEEP));
        }
        Ok(carried)
    }

    /// Waits for as long as the copy is to stand still, which it does not make up for afterwards.
    ///
    /// # Errors
    /// EINTR if it no longer goes on.
    fn check_wanted(&mut self) -> Result<(), SysError> {
        let came = Instant::now();
        check_wanted(self.goes_on)?;
        if let Some(rate_limit) = &mut self.rate_limit {
            rate_limit.began += came.elapsed();
        }
        Ok(())
    }
}

/// # Errors
/// EINTR if a copy no longer `goes_on`.
pub(crate) fn check_wanted(goes_on: &dyn Fn() -> bool) -> Result<(), SysError> {
    if goes_on() { Ok(()) } else { Err(SysError { call: sys::Call::Write, errno: Errno::INTR }) }
}

/// So many bytes a second and no more.
struct RateLimit {
    speed: NonZeroU64,
    began: Instant,
    done: u64,
}

impl RateLimit {
    /// Time until so many bytes may be done; None: they may.
    fn early(&self) -> Option<Duration> {
        self.due().checked_sub(self.began.elapsed())
    }

    /// How long after the beginning so many bytes may be done.
    fn due(&self) -> Duration {
        let nanos = u128::from(self.done) * 1_000_000_000 / u128::from(self.speed.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Whether both have the same content, a hole being zeros.
///
/// # Errors
/// One of them cannot be read.
pub fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Result<bool, SysError> {
    let size = sys::at::stat_fd(one)?.size;
    if sys::at::stat_fd(other)?.size != size {
        return Ok(false);
    }
    let (mut a, mut b) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut at = 0;
    while at < size {
        // Where neither has data both read as zeros.
        at = next_data(one, at, size).min(next_data(other, at, size));
        let len = usize::try_from(size - at).unwrap_or(CHUNK).min(CHUNK);
        if !read_whole(one, &mut a[..len], at)?
            || !read_whole(other, &mut b[..len], at)?
            || a[..len] != b[..len]
        {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}

/// Like [`is_same`]. The copy has the times of the file already, and keeps its time of access.
///
/// # Errors
/// One of them cannot be read.
pub(crate) fn is_same_as_copy(file: BorrowedFd<'_>, copy: BorrowedFd<'_>) -> Result<bool, SysError> {
    // A server that lets only the owner in keeps the times itself.
    let quiet = sys::at::reopen_quietly(copy, OFlags::RDONLY).ok();
    is_same(file, quiet.as_ref().map_or(copy, AsFd::as_fd))
}

/// Where from `at` on data may be; `end` if there is none.
fn next_data(fd: BorrowedFd<'_>, at: u64, end: u64) -> u64 {
    match sys::file::seek(fd, at, Whence::Data) {
        Err(error) if error.errno == Errno::NXIO => end,
        Err(_) => at, // no such notion here: all is data
        Ok(data) => data.min(end),
    }
}

/// False: there is less.
fn read_whole(fd: BorrowedFd<'_>, mut into: &mut [u8], mut at: u64) -> Result<bool, SysError> {
    while !into.is_empty() {
        let read = sys::file::read_at(fd, into, at)?;
        if read == 0 {
            return Ok(false);
        }
        into = &mut into[read..];
        at += read as u64;
    }
    Ok(true)
}

/// Copies `len` bytes, or as many as there still are, counting them in `done`.
fn copy_counting(
    from: (BorrowedFd<'_>, u64),
    to: (BorrowedFd<'_>, u64),
    len: u64,
    done: &mut u64,
    way: &mut Transfer<'_>,
) -> Result<(), CopyError> {
    let end = from.1.saturating_add(len);
    let mut buffer = Vec::new();
    let mut carried_in_all = 0;
    while from.1 + *done < end && carried_in_all < way.most {
        let at = from.1 + *done;
        let data = next_data(from.0, at, end);
        if data > at {
            // Behind the end of a file there is no data either.
            if data == end && sys::at::stat_fd(from.0).map_err(CopyError::Source)?.size < end {
                return Ok(()); // became shorter meanwhile
            }
            let most = way.most - carried_in_all;
            let (left, stored) = leave_hole(to.0, to.1 + *done, data - at, most, way)?;
            *done += left;
            carried_in_all += stored;
            continue;
        }
        let stop = match sys::file::seek(from.0, at, Whence::Hole) {
            Ok(hole) if hole > at => hole.min(end),
            _ => end,
        };
        let want = usize::try_from(stop - at).unwrap_or(CHUNK).min(CHUNK);
        let carried = way.carry((from.0, at), (to.0, to.1 + *done), want, &mut buffer)?;
        if carried == 0 {
            return Ok(()); // became shorter meanwhile
        }
        *done += carried as u64;
        carried_in_all += carried as u64;
    }
    Ok(())
}

/// Makes `len` bytes at `at` read as zeros: how many, and how many zeros were stored, where there was no other way. Of these
/// `most` at most.
fn leave_hole(
    fd: BorrowedFd<'_>,
    at: u64,
    len: u64,
    most: u64,
    way: &mut Transfer<'_>,
) -> Result<(u64, u64), SysError> {
    /// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`.
    const PUNCH: u32 = 0x03;
    let size = sys::at::stat_fd(fd)?.size;
    if at < size {
        way.check_wanted()?;
        match sys::file::fallocate(fd, PUNCH, at, len.min(size - at)) {
            Err(error) if error.errno == Errno::OPNOTSUPP => {
                let zeros = vec![0_u8; usize::try_from(len.min(CHUNK as u64)).unwrap_or(CHUNK)];
                let (mut done, len) = (0, len.min(most));
                while done < len {
                    let part = usize::try_from((len - done).min(CHUNK as u64)).unwrap_or(CHUNK);
                    way.check_wanted()?;
                    write_all(fd, &zeros[..part], at + done)?;
                    done += part as u64;
                }
                return Ok((len, len));
            }
            punched => punched?,
        }
    }
    if at + len > size {
        way.check_wanted()?;
        // It may have grown while the hole was made.
        if at + len > sys::at::stat_fd(fd)?.size {
            sys::file::truncate(fd, at + len)?;
        }
    }
    Ok((len, 0))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Others may use the target by then.
    #[test]
    fn a_copy_that_no_longer_goes_on_leaves_the_size_of_its_target() {
        let (source, target) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        source.set_len(1 << 20).unwrap();
        target.write_all_at(b"until here", 0).unwrap();
        let asked = std::cell::Cell::new(0);
        // The hole is made, and the end stays.
        let goes_on = || asked.replace(asked.get() + 1) == 0;
        let copied = copy((source.as_fd(), 0), (target.as_fd(), 0), 1 << 20, 1 << 20, &goes_on);
        assert_eq!((copied.unwrap_err().errno, asked.get()), (Errno::INTR, 2));
        assert_eq!(target.metadata().unwrap().len(), "until here".len() as u64);
    }

    #[test]
    fn a_copy_of_a_file_that_became_shorter_is_refused() {
        let (source, target) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        source.write_all_at(b"short", 0).unwrap();
        for size in [6, 1 << 20] {
            let copied = copy_all(source.as_fd(), target.as_fd(), (size, None, CarriedBy::Kernel), &|| true);
            assert_eq!(SysError::from(copied.unwrap_err()).errno, Errno::BUSY, "{size} bytes");
        }
    }

    #[test]
    fn a_copy_is_the_same_until_a_byte_differs() {
        let (one, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        one.write_all_at(b"begin", 0).unwrap();
        one.write_all_at(b"end", 9 << 20).unwrap();
        copy_all(one.as_fd(), other.as_fd(), ((9 << 20) + 3, None, CarriedBy::Kernel), &|| true).unwrap();
        assert!(is_same(one.as_fd(), other.as_fd()).unwrap());
        for (at, byte) in [(0, b"B"), (4 << 20, b"x"), ((9 << 20) + 2, b"D")] {
            let mut before = [0];
            other.read_exact_at(&mut before, at).unwrap();
            other.write_all_at(byte, at).unwrap();
            assert!(!is_same(one.as_fd(), other.as_fd()).unwrap(), "a byte at {at} differs");
            other.write_all_at(&before, at).unwrap();
        }
        other.set_len(9 << 20).unwrap();
        assert!(!is_same(one.as_fd(), other.as_fd()).unwrap());
    }

    #[test]
    fn a_pace_says_when_so_many_bytes_are_due() {
        let began = Instant::now();
        let due = |done| RateLimit { speed: NonZeroU64::new(1000).unwrap(), began, done }.due();
        assert_eq!((due(300), due(2000)), (Duration::from_millis(300), Duration::from_secs(2)));
    }

    #[test]
    fn a_copy_that_stood_still_does_not_make_up_for_it() {
        const STILL: Duration = Duration::from_millis(50);
        let began = Instant::now();
        let rate_limit = Some(RateLimit { speed: NonZeroU64::new(1000).unwrap(), began, done: 0 });
        let stands_still = || {
            fsstack_sync::thread::sleep(STILL);
            true
        };
        let mut way = Transfer { goes_on: &stands_still, rate_limit, ..Transfer::by_hand(1, &|| true) };
        way.check_wanted().unwrap();
        assert!(began + STILL <= way.rate_limit.unwrap().began);
    }
}
