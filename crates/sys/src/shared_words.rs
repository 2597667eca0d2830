//! Words in a memory file that several processes map: what one of them has stored is there when it has died.
#![allow(unsafe_code, reason = "mmap has no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};

/// Its length stays, so that no word of the map can be missing.
const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// The words, all 0 at first. Memory is taken for those that were stored to only.
#[derive(Debug)]
pub struct SharedWords {
    file: OwnedFd,
    at: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the map belongs to the object, and its words are atomic.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// `len` words in a new file, which is closed on exec.
    ///
    /// # Errors
    /// No memory, or no descriptor is left.
    pub fn new(name: &str, len: usize) -> io::Result<Self> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes(len)?)?;
        fcntl_add_seals(&file, SEALS)?;
        Self::map(file, len)
    }

    /// The words in `file`, which another program has made.
    ///
    /// # Errors
    /// EINVAL if it is no such file of `len` words; no memory is left.
    pub fn of(file: OwnedFd, len: usize) -> io::Result<Self> {
        let size = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        if size != bytes(len)? || !fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(Errno::INVAL.into());
        }
        Self::map(file, len)
    }

    fn map(file: OwnedFd, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let size = usize::try_from(bytes(len)?).map_err(io::Error::other)?;
        // SAFETY: a new map at an address that the kernel chooses; nothing else changes.
        let at = unsafe { mm::mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, &file, 0) }?;
        let at = NonNull::new(at.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { file, at, len })
    }

    /// All words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the map is of `len` words, begins a page, cannot lose one (the file is sealed), and lives as long as `self`; any
        // bits are a word, and other processes store words only.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl AsFd for SharedWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the map is the object's own, and nobody borrows it.
        let _gone = unsafe { mm::munmap(self.at.as_ptr().cast(), self.len * size_of::<u64>()) };
    }
}

fn bytes(words: usize) -> io::Result<u64> {
    let bytes = words.checked_mul(size_of::<u64>()).and_then(|bytes| u64::try_from(bytes).ok());
    bytes.filter(|bytes| 0 < *bytes).ok_or_else(|| Errno::INVAL.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn words_are_the_same_for_all_who_map_them() {
        let first = SharedWords::new("test", 1000).unwrap();
        let second = SharedWords::of(first.as_fd().try_clone_to_owned().unwrap(), 1000).unwrap();
        first.words()[999].store(7, SeqCst);
        assert_eq!(second.words()[999].load(SeqCst), 7);
        assert_eq!(second.words()[998].load(SeqCst), 0);
        drop(first);
        assert_eq!(second.words()[999].load(SeqCst), 7);
    }

    #[test]
    fn another_file_is_none() {
        let words = SharedWords::new("test", 10).unwrap();
        assert!(SharedWords::of(words.as_fd().try_clone_to_owned().unwrap(), 11).is_err());
        assert!(SharedWords::of(tempfile::tempfile().unwrap().into(), 10).is_err());
        assert!(SharedWords::new("test", 0).is_err());
    }
}
