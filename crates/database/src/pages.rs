//! File of a database. Finds pages that something else has changed, while it is open or since it was closed.
//!
//! The database trusts what it reads from a file that was closed cleanly, and what it reads again: a page that a bad disk or
//! another program has changed would end the daemon. So a checksum of four bytes is kept of each page that was read or written, and
//! compared at each read. A difference is an error, after which the database is made anew.
//!
//! A check of the whole file at each open makes the first reads safe. It takes minutes for a large one. A file that is opened by
//! [`Pages::open_with_sums`] needs no check after a clean close: its checksums lie beside it in `FILE.sums` then, and go before the
//! first write. Where there are none, as after a crash, that file says that an open is under way, until [`Soundness::settle`]: if that
//! ends the daemon, the next open checks the whole file.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fsstack_pool::mix;
use fsstack_sync::RwLock;
use fsstack_sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use fsstack_sys::state;
use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend, StorageError};

/// Unit of comparison: the database reads and writes whole pages of this size but for its header.
const PAGE: usize = 4096;
/// Checksum of a page whose content is unknown.
const UNKNOWN: u32 = 0;
/// Content of a file of checksums while an open without them is under way, or once damage was found: the whole file is to be checked.
const SUSPECT: &[u8] = b"?";
/// Length of a file up to which one without checksums is checked at once: programs wait for it, after the death of a daemon too.
const CHECKED_AT_ONCE: u64 = 32 << 20;
/// Beginning of a file of checksums.
const MAGIC: [u8; 16] = *b"fsstack sums 1\n\n";
/// Length of what precedes the checksums of the pages: [`MAGIC`], the database's length, the checksum of its header.
const BEFORE: usize = MAGIC.len() + 8 + 4;

/// The file, with the checksums of its pages.
#[derive(Debug)]
pub struct Pages {
    file: FileBackend,
    /// Held while the file is written.
    sums: RwLock<Sums>,
    /// Where the checksums are between two opens. None: nowhere.
    beside: Option<Arc<File>>,
    soundness: Soundness,
    found_damage: AtomicBool,
}

/// Checksums of the pages.
#[derive(Debug, Default)]
struct Sums {
    pages: Vec<AtomicU32>,
    /// The file was written since it was opened.
    changed: bool,
}

/// Whether the pages are as the database has written them, as far as they are known.
#[derive(Clone, Debug, Default)]
pub struct Soundness {
    is_sound: Arc<AtomicBool>,
    /// Says [`SUSPECT`] for as long as it is not known.
    suspects: Option<Arc<File>>,
}

impl Soundness {
    /// The database was opened: what it has read is sound.
    pub fn confirm(&self) {
        self.is_sound.store(true, Relaxed);
    }

    /// The database has been read and written: the next open need not check all of it, however this one ends.
    ///
    /// # Errors
    /// It is checked.
    pub fn settle(&mut self) -> io::Result<()> {
        match self.suspects.take() {
            Some(suspects) if self.is_sound.load(Relaxed) => suspects.set_len(0),
            _ => Ok(()),
        }
    }
}

impl Pages {
    /// The file at `path`, made if there is none. Only the daemon can access it.
    ///
    /// # Errors
    /// It cannot be opened, or is not the daemon's own.
    pub fn open(path: &Path) -> Result<Self, DatabaseError> {
        let file = FileBackend::new(state::open(path).map_err(StorageError::Io)?)?;
        let len = file.len().map_err(StorageError::Io)?;
        let sums = Sums { pages: unknown(len), changed: false };
        Ok(Self {
            file,
            sums: RwLock::new(sums),
            beside: None,
            soundness: Soundness::default(),
            found_damage: AtomicBool::new(false),
        })
    }

    /// Like [`Self::open`], with the checksums of the last clean close. True: the whole file is to be checked.
    ///
    /// # Errors
    /// It cannot be opened, or is not the daemon's own.
    pub fn open_with_sums(path: &Path) -> Result<(Self, bool), DatabaseError> {
        let pages = Self::open(path)?;
        let beside = Arc::new(state::open(&beside(path)).map_err(StorageError::Io)?);
        let mut stored = Vec::new();
        (&*beside).read_to_end(&mut stored).map_err(StorageError::Io)?;
        let mut soundness = Soundness::default();
        let mut is_suspect = stored == SUSPECT;
        match pages.known_sums(&stored).map_err(StorageError::Io)? {
            Some(known) => pages.sums.write().pages = known,
            None => {
                suspect(&beside).map_err(StorageError::Io)?;
                soundness.suspects = Some(beside.clone());
                let len = pages.file.len().map_err(StorageError::Io)?;
                is_suspect |= (1..=CHECKED_AT_ONCE).contains(&len);
                if is_suspect {
                    // Read in its order, which the check does not keep to.
                    std::fs::File::open(path).and_then(|mut all| io::copy(&mut all, &mut io::sink())).ok();
                }
            }
        }
        Ok((Self { beside: Some(beside), soundness, ..pages }, is_suspect))
    }

    /// Where it is to be said that the database could be opened. Without that the checksums are not stored.
    pub fn soundness(&self) -> Soundness {
        self.soundness.clone()
    }

    /// The stored checksums. None: they are not whole, or of another file.
    fn known_sums(&self, stored: &[u8]) -> io::Result<Option<Vec<AtomicU32>>> {
        let len = self.file.len()?;
        let expected = BEFORE + 4 * count(len) + 4;
        if stored.len() != expected || !stored.starts_with(&MAGIC) {
            return Ok(None);
        }
        let (stored, end) = stored.split_at(expected - 4);
        let (before, pages) = stored.split_at(BEFORE);
        let of = |bytes: &[u8]| bytes.try_into().map_or(UNKNOWN, u32::from_le_bytes);
        if of(end) != sum(stored) || before != self.before(len)? {
            return Ok(None);
        }
        Ok(Some(pages.chunks_exact(4).map(|bytes| AtomicU32::new(of(bytes))).collect()))
    }

    /// The beginning of the file of checksums, of the database as it is now.
    fn before(&self, len: u64) -> io::Result<Vec<u8>> {
        let mut header = vec![0; PAGE.min(usize::try_from(len).unwrap_or(PAGE))];
        self.file.read(0, &mut header)?;
        Ok([&MAGIC[..], &len.to_le_bytes(), &sum(&header).to_le_bytes()].concat())
    }

    /// Stores the checksums for the next open.
    fn store_sums(&self) -> io::Result<()> {
        let sums = self.sums.read();
        let Some(beside) =
            self.beside.as_ref().filter(|_| sums.changed && self.soundness.is_sound.load(Relaxed))
        else {
            return Ok(());
        };
        let mut stored = self.before(self.file.len()?)?;
        stored.extend(sums.pages.iter().flat_map(|sum| sum.load(Relaxed).to_le_bytes()));
        let end = sum(&stored);
        stored.extend(end.to_le_bytes());
        beside.write_all_at(&stored, 0)?;
        beside.set_len(u64::try_from(stored.len()).unwrap_or(0))?;
        beside.sync_all()
    }

    /// The file is about to be written: the stored checksums are no longer those of its pages.
    fn begin_change(&self, sums: &mut Sums) -> io::Result<()> {
        let has_sums = self.soundness.suspects.is_none() && !self.found_damage.load(Relaxed);
        if let Some(beside) = self.beside.as_ref().filter(|_| has_sums && !sums.changed) {
            beside.set_len(0)?;
            beside.sync_all()?;
        }
        sums.changed = true;
        Ok(())
    }
}

/// Has the next open check the whole file.
fn suspect(beside: &File) -> io::Result<()> {
    beside.write_all_at(SUSPECT, 0)?;
    beside.set_len(SUSPECT.len() as u64)?;
    beside.sync_all()
}

/// Where the checksums of the database at `path` are.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".sums");
    name.into()
}

fn unknown(len: u64) -> Vec<AtomicU32> {
    let mut pages = Vec::new();
    pages.resize_with(count(len), AtomicU32::default);
    pages
}

/// Number of whole pages in `len` bytes.
fn count(len: u64) -> usize {
    usize::try_from(len).unwrap_or(0) / PAGE
}

/// Checksum of a page or of other bytes.
fn sum(page: &[u8]) -> u32 {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let words = page.chunks(8).map(|bytes| bytes.try_into().map_or_else(|_| word(bytes), u64::from_le_bytes));
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
            let (Some(known), is) = (sums.pages.get(n), sum(page)) else { continue };
            match known.compare_exchange(UNKNOWN, is, Relaxed, Relaxed) {
                Err(was) if was != is => {
                    // The next open checks all of it.
                    self.soundness.is_sound.store(false, Relaxed);
                    self.found_damage.store(true, Relaxed);
                    self.beside.as_deref().map_or(Ok(()), suspect)?;
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a page of the file has changed"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut sums = self.sums.write();
        self.begin_change(&mut sums)?;
        self.file.set_len(len)?;
        sums.pages.resize_with(count(len), AtomicU32::default);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut sums = self.sums.write();
        self.begin_change(&mut sums)?;
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = begin.saturating_add(data.len()).div_ceil(PAGE);
        // Unknown, should the write fail.
        for known in sums.pages.iter_mut().take(end).skip(begin / PAGE) {
            *known.get_mut() = UNKNOWN;
        }
        self.file.write(offset, data)?;
        for (n, page) in whole(offset, data) {
            if let Some(known) = sums.pages.get_mut(n) {
                *known.get_mut() = sum(page);
            }
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        // Before the lock of the file goes.
        let stored = self.store_sums();
        self.file.close().and(stored)
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

    /// A folder whose files are believed, whatever the umask.
    fn private_dir() -> tempfile::TempDir {
        let rights = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        tempfile::Builder::new().permissions(rights).tempdir().unwrap()
    }

    #[test]
    fn a_page_that_changes_under_the_database_is_an_error_until_it_is_written() {
        let dir = private_dir();
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

    #[test]
    fn checksums_are_stored_at_a_clean_close_only_and_are_those_of_the_file() {
        let dir = private_dir();
        let path = dir.path().join("file");
        let open = || Pages::open_with_sums(&path).unwrap();
        let write = |pages: &Pages| {
            pages.set_len(3 * 4096).unwrap();
            pages.write(4096, &[9; 2 * PAGE]).unwrap();
        };
        let says = || std::fs::read(beside(&path)).unwrap();
        let has_sums = || says().len() == BEFORE + 4 * 3 + 4;
        let (pages, is_suspect) = open();
        assert!(!is_suspect && says() == SUSPECT);
        write(&pages);
        pages.close().unwrap();
        assert!(!has_sums(), "it was not said that the database could be opened");
        let (mut again, is_suspect) = open();
        assert!(is_suspect, "the one before was not settled");
        again.soundness.confirm();
        again.soundness.settle().unwrap();
        assert_eq!(says(), []);
        write(&again);
        again.close().unwrap();
        assert!(has_sums());
        let mode = std::os::unix::fs::PermissionsExt::mode(&beside(&path).metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        // A page that changes meanwhile is found out, a header at once.
        let other = state::open(&path).unwrap();
        let sums = says();
        let stored = || std::fs::write(beside(&path), &sums).unwrap();
        other.write_at(b"x", 4096 + 7).unwrap();
        let (pages, is_suspect) = open();
        assert!(
            !is_suspect
                && pages.read(4096, &mut [0; PAGE]).is_err()
                && pages.read(8192, &mut [0; PAGE]).is_ok()
        );
        assert!(open().1, "the next one checks all");
        other.write_at(&[9], 4096 + 7).unwrap();
        stored();
        other.write_at(b"x", 7).unwrap();
        assert!(open().1 && says() == SUSPECT, "they are of another file");
        other.write_at(&[0], 7).unwrap();
        stored();
        // Without a close after a change there are none.
        let (pages, is_suspect) = open();
        assert!(!is_suspect && has_sums());
        write(&pages);
        drop(pages);
        assert_eq!(says(), []);
    }
}
