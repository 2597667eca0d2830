//! File of the index's database. Finds pages that something else has changed while it is open.
//!
//! The database checks its whole file when it is opened and trusts later reads: a page that a bad disk or another
//! program changes would end the daemon. So a checksum of four bytes is kept of each page that was read or written, and
//! compared at each read. A difference is an error, after which the index is rebuilt.

use std::io;
use std::ops::Bound;
use std::path::Path;

use fsstack_sync::RwLock;
use fsstack_sync::atomic::{AtomicU32, Ordering::Relaxed};
use fsstack_sys::state;
use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};

use crate::number::mix;

/// Unit of comparison: the database reads and writes whole pages of this size but for its header.
const PAGE: usize = 4096;
/// Checksum of a page whose content is unknown.
const UNKNOWN: u32 = 0;

/// The file, with the checksums of its pages.
#[derive(Debug)]
pub(super) struct Pages {
    file: FileBackend,
    /// Checksum of each page. Held while the file is written.
    sums: RwLock<Vec<AtomicU32>>,
}

impl Pages {
    /// The file at `path`, made if there is none.
    pub(super) fn open(path: &Path) -> Result<Self, DatabaseError> {
        let file = FileBackend::new(state::open(path).map_err(redb::StorageError::Io)?)?;
        let pages = Self { file, sums: RwLock::default() };
        let len = pages.file.len().map_err(redb::StorageError::Io)?;
        pages.sums.write().resize_with(count(len), AtomicU32::default);
        Ok(pages)
    }
}

/// Number of whole pages in `len` bytes.
fn count(len: u64) -> usize {
    usize::try_from(len).unwrap_or(0) / PAGE
}

/// Checksum of a page.
fn sum(page: &[u8]) -> u32 {
    let words = page.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
    let sum = words.fold(0, |sum: u64, word| mix(sum ^ word).wrapping_add(sum.rotate_left(17)));
    u32::try_from(sum >> 32).unwrap_or(0).max(1)
}

/// Number and content of the pages that lie wholly in `bytes`, which begin at `offset`.
fn whole(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let skipped = (PAGE - offset % PAGE) % PAGE;
    let first = offset.div_ceil(PAGE);
    bytes
        .get(skipped..)
        .unwrap_or_default()
        .chunks_exact(PAGE)
        .enumerate()
        .map(move |(n, page)| (first + n, page))
}

impl StorageBackend for Pages {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let sums = self.sums.read();
        self.file.read(offset, out)?;
        for (n, page) in whole(offset, out) {
            let (Some(known), is) = (sums.get(n), sum(page)) else { continue };
            match known.compare_exchange(UNKNOWN, is, Relaxed, Relaxed) {
                Err(was) if was != is => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "a page of the index has changed",
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut sums = self.sums.write();
        self.file.set_len(len)?;
        sums.resize_with(count(len), AtomicU32::default);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut sums = self.sums.write();
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = begin.saturating_add(data.len()).div_ceil(PAGE);
        // Unknown, should the write fail.
        for known in sums.iter_mut().take(end).skip(begin / PAGE) {
            *known.get_mut() = UNKNOWN;
        }
        self.file.write(offset, data)?;
        for (n, page) in whole(offset, data) {
            if let Some(known) = sums.get_mut(n) {
                *known.get_mut() = sum(page);
            }
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_page_that_changes_under_the_database_is_an_error_until_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [7; 3 * PAGE]).unwrap();
        let pages = Pages::open(&path).unwrap();
        let (mut one, mut all) = ([0; PAGE], [0; 3 * PAGE]);
        pages.read(0, &mut all).unwrap();
        let beside = state::open(&path).unwrap();
        beside.write_at(b"x", 4096 + 100).unwrap();
        pages.read(0, &mut one).unwrap();
        for _ in 0..2 {
            let reported = [pages.read(4096, &mut one), pages.read(0, &mut all)];
            assert!(reported.iter().all(|reported| {
                reported.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidData)
            }));
        }
        // A read of part of a page is not compared. A page that is written in part is unknown.
        pages.read(4096, &mut one[..64]).unwrap();
        pages.write(8192, &[8; 64]).unwrap();
        pages.write(4096, &[9; PAGE]).unwrap();
        pages.read(0, &mut all).unwrap();
        beside.write_at(b"x", 4096).unwrap();
        assert!(pages.read(4096, &mut one).is_err());
        // The file grows: a new page is known from its first read on.
        pages.set_len(4096).unwrap();
        pages.set_len(4 * 4096).unwrap();
        pages.read(4096, &mut one).unwrap();
        pages.read(3 * 4096, &mut one).unwrap();
        beside.write_at(b"x", 3 * 4096).unwrap();
        assert!(pages.read(3 * 4096, &mut one).is_err());
    }
}
