//! Reading a directory through a buffer, entry by entry, from any position.

#![allow(unsafe_code, reason = "rustix's reader borrows its buffer and cannot be kept beside it")]

use std::ffi::CStr;
use std::fmt;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::call::{Call, Result, SysError, call};
use crate::stat::Kind;

/// Room for an entry with the longest name.
const SMALLEST_BUFFER: usize = 512;

/// Offsets of the fields of a `struct linux_dirent64`.
const OFF: usize = 8;
const RECLEN: usize = 16;
const DTYPE: usize = 18;
const NAME: usize = 19;

/// An open directory and the entries that were read ahead.
pub struct Dirents {
    fd: OwnedFd,
    buffer: Vec<u8>,
    /// Part of `buffer` with entries not yet returned.
    unread: std::ops::Range<usize>,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    /// The inode number.
    pub ino: u64,
    /// The position after this entry.
    pub off: u64,
    /// The type, if the file system returns it here.
    pub kind: Option<Kind>,
    /// The name; `.` and `..` are returned too.
    pub name: &'a CStr,
}

impl Dirents {
    /// Reads `fd`, which must not be `O_PATH`, about `buffer` bytes at a time.
    pub fn new(fd: OwnedFd, buffer: usize) -> Self {
        Self { fd, buffer: vec![0; buffer.max(SMALLEST_BUFFER)], unread: 0..0 }
    }

    /// Continues at `off`: 0, or the `off` of an entry of this directory.
    pub fn seek(&mut self, off: u64) -> Result<()> {
        self.unread = 0..0;
        call(Call::Seek, || rustix::fs::seek(&self.fd, SeekFrom::Start(off))).map(drop)
    }

    /// True if the next entry is in the buffer, so that it needs no system call.
    pub fn has_next(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Returns the next entry, or `None` at the end.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not lend from its buffer")]
    pub fn next(&mut self) -> Result<Option<Dirent<'_>>> {
        if self.unread.is_empty() {
            self.unread = 0..self.fill()?;
        }
        let unread = &self.buffer[self.unread.clone()];
        if unread.is_empty() {
            return Ok(None);
        }
        // A sound kernel never returns this. Skipping it silently would lose entries.
        let (entry, len) = parse(unread).ok_or(SysError::new(Call::Getdents, Errno::IO))?;
        self.unread.start += len;
        Ok(Some(entry))
    }

    fn fill(&mut self) -> Result<usize> {
        let (fd, buffer) = (self.fd.as_raw_fd(), &mut self.buffer);
        call(Call::Getdents, || {
            // SAFETY: the kernel writes at most `buffer.len()` bytes, which are ours, and `fd` is open.
            let read = unsafe { libc::syscall(libc::SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len()) };
            usize::try_from(read)
                .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
        })
    }
}

impl fmt::Debug for Dirents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dirents").field("fd", &self.fd).field("unread", &self.unread).finish_non_exhaustive()
    }
}

/// Parses the first entry in `bytes`. Returns it and its length, or `None` if it is malformed.
fn parse(bytes: &[u8]) -> Option<(Dirent<'_>, usize)> {
    let len = usize::from(u16::from_ne_bytes(*bytes.get(RECLEN..)?.first_chunk()?));
    let record = bytes.get(..len)?;
    let entry = Dirent {
        ino: u64::from_ne_bytes(*record.first_chunk()?),
        off: u64::from_ne_bytes(*record.get(OFF..)?.first_chunk()?),
        kind: Kind::from_dtype(*record.get(DTYPE)?),
        name: CStr::from_bytes_until_nul(record.get(NAME..)?).ok()?,
    };
    Some((entry, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::ffi::{CString, OsStr};
    use std::fs::File;
    use std::os::unix::ffi::OsStrExt as _;

    fn open(dir: &tempfile::TempDir, buffer: usize) -> Dirents {
        Dirents::new(File::open(dir.path()).unwrap().into(), buffer)
    }

    fn drain(entries: &mut Dirents) -> Vec<(CString, u64, Option<Kind>)> {
        let mut all = Vec::new();
        while let Some(entry) = entries.next().unwrap() {
            assert_ne!(entry.ino, 0);
            all.push((entry.name.to_owned(), entry.off, entry.kind));
        }
        all
    }

    #[test]
    fn every_entry_comes_once_with_its_type() {
        let dir = tempfile::tempdir().unwrap();
        let raw = OsStr::from_bytes(b"\xff\xfe name");
        File::create(dir.path().join(raw)).unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
        let found: HashMap<_, _> =
            drain(&mut open(&dir, 4096)).into_iter().map(|(name, _, kind)| (name, kind)).collect();
        assert_eq!(found.len(), 5);
        for (name, kind) in [
            (c".", Kind::Dir),
            (c"..", Kind::Dir),
            (c"\xff\xfe name", Kind::File),
            (c"sub", Kind::Dir),
            (c"link", Kind::Symlink),
        ] {
            assert!(found[name].is_none_or(|known| known == kind), "{name:?}");
        }
    }

    #[test]
    fn seeking_to_an_entrys_position_continues_after_it() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..300 {
            File::create(dir.path().join(format!("a rather long name, number {number}"))).unwrap();
        }
        let mut entries = open(&dir, 0);
        let all = drain(&mut entries);
        assert_eq!(all.len(), 302);
        assert_eq!(entries.next().unwrap(), None);
        entries.seek(all[99].1).unwrap();
        assert_eq!(drain(&mut entries), all[100..]);
        entries.seek(0).unwrap();
        assert_eq!(drain(&mut entries), all);
    }

    #[test]
    fn the_longest_name_fits_the_smallest_buffer() {
        let dir = tempfile::tempdir().unwrap();
        let name = "n".repeat(255);
        File::create(dir.path().join(&name)).unwrap();
        assert!(drain(&mut open(&dir, 0)).iter().any(|(found, ..)| found.to_bytes() == name.as_bytes()));
    }

    #[test]
    fn a_malformed_record_is_refused() {
        let mut record = [1_u8; 32];
        record[RECLEN..DTYPE].copy_from_slice(&33_u16.to_ne_bytes());
        assert_eq!(parse(&record), None);
        record[RECLEN..DTYPE].copy_from_slice(&32_u16.to_ne_bytes());
        assert_eq!(parse(&record), None, "no NUL");
        record[RECLEN..DTYPE].copy_from_slice(&0_u16.to_ne_bytes());
        assert_eq!(parse(&record), None);
        assert_eq!(parse(&record[..10]), None);
    }

    #[test]
    fn a_file_is_not_read() {
        let mut entries = Dirents::new(tempfile::tempfile().unwrap().into(), 0);
        assert_eq!(entries.next().unwrap_err(), SysError::new(Call::Getdents, Errno::NOTDIR));
    }
}
