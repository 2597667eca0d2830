//! A shared memory map of a file. A page that the file system cannot supply is an error here, and does not kill the
//! process.
//!
//! When such a page is touched (file truncated, server gone, disk full), the kernel sends SIGBUS to the touching
//! thread. During a copy the thread records the addresses it copies; the handler maps an empty page at the faulting
//! address, so that the copy continues, and marks the copy as failed. Any other SIGBUS kills the process as usual.
#![allow(unsafe_code, reason = "mmap, and the handler for SIGBUS, have no safe wrapper")]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize, compiler_fence};

/// Smallest page size of supported kernels; with larger pages, more than one is replaced.
const PAGE: usize = 4096;

/// Addresses that this thread is copying, and whether a page was missing.
///
/// A handler changes it in the middle of the copy, which the compiler does not see: so it is atomic, and
/// [`compiler_fence`] keeps its accesses in their order with the copy's.
struct Copying {
    from: AtomicUsize,
    to: AtomicUsize,
    failed: AtomicBool,
}

thread_local! {
    static COPYING: Copying =
        const { Copying { from: AtomicUsize::new(0), to: AtomicUsize::new(0), failed: AtomicBool::new(false) } };
}

impl Copying {
    fn set(&self, from: usize, to: usize) {
        self.from.store(from, Relaxed);
        self.to.store(to, Relaxed);
    }
}

/// A part of a file mapped into memory, shared with all users of the file.
#[derive(Debug)]
pub struct Mapped {
    at: *mut libc::c_void,
    len: usize,
    writable: bool,
}

// SAFETY: the map is a range of addresses of the whole process; `copy_in` takes it exclusively.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps `len` bytes from `offset` (a multiple of the page size) read-only.
    pub fn to_read(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        Self::map(file, offset, len, false)
    }

    /// Maps a part for reading and writing; the file is open for both.
    pub fn to_write(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        Self::map(file, offset, len, true)
    }

    /// Copies from the map, from `offset` in it. EFAULT past its end; EIO if a page is missing.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        let from = self.slice(offset, into.len())?;
        guarded(from as usize, into.len(), || {
            // SAFETY: `slice` checked the bounds; `into` is exclusive, and no Rust reference to the map exists that it
            // could overlap.
            unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
        })
    }

    /// Copies into the map, from `offset` in it. EFAULT past its end or if it is read-only.
    pub fn copy_in(&mut self, offset: usize, from: &[u8]) -> io::Result<()> {
        if !self.writable {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        let into = self.slice(offset, from.len())?;
        guarded(into as usize, from.len(), || {
            // SAFETY: `slice` checked the bounds, the map is writable, and no Rust reference to it exists.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) }
        })
    }

    fn map(file: &File, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        catch_bus_errors()?;
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a new map at an address that the kernel chooses; nothing else changes.
        let at = unsafe {
            libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), offset)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { at, len, writable })
    }

    fn slice(&self, offset: usize, len: usize) -> io::Result<*mut u8> {
        if offset.checked_add(len).is_none_or(|end| self.len < end) {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        Ok(self.at.cast::<u8>().wrapping_add(offset))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the map is ours, and no copy runs: a copy borrows `self`.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// Runs a copy that touches `len` mapped bytes at `from`; EIO if a page is missing.
fn guarded(from: usize, len: usize, copy: impl FnOnce()) -> io::Result<()> {
    COPYING.with(|copying| copying.set(from, from + len));
    compiler_fence(SeqCst);
    copy();
    compiler_fence(SeqCst);
    let has_failed = COPYING.with(|copying| {
        copying.set(0, 0);
        copying.failed.swap(false, Relaxed)
    });
    if has_failed { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
}

/// Installs the SIGBUS handler once.
fn catch_bus_errors() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let install = || {
        // SAFETY: all zeros is a valid sigaction: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: `action` is fully initialised, and the handler does only async-signal-safe work.
        match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        }
    };
    INSTALLED.get_or_init(install).map_err(io::Error::from_raw_os_error)
}

extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid siginfo to a handler with SA_SIGINFO.
    let info = unsafe { &*info };
    // SAFETY: for SIGBUS the address is the field that is set.
    let address = unsafe { info.si_addr() } as usize;
    let is_copied = COPYING.with(|copying| {
        let is_copied = (copying.from.load(Relaxed)..copying.to.load(Relaxed)).contains(&address);
        copying.failed.fetch_or(is_copied, Relaxed);
        is_copied
    });
    if is_copied {
        let page = ptr::without_provenance_mut(address - address % PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the page belongs to the map that this thread copies from or to, to which no reference exists; mmap
        // is a bare system call.
        let put = unsafe { libc::mmap(page, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if put != libc::MAP_FAILED {
            return;
        }
    }
    // SAFETY: restores the default action: the access is repeated on return and kills the process.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_copied_in_are_in_the_file_and_can_be_copied_out() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mut map = Mapped::to_write(&file, 4096, 4096).unwrap();
        map.copy_in(100, b"hello").unwrap();
        let mut read = [0; 5];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut read, 4196).unwrap();
        assert_eq!(&read, b"hello");
        let map = Mapped::to_read(&file, 0, 8192).unwrap();
        map.copy_out(4196, &mut read).unwrap();
        assert_eq!(&read, b"hello");
        assert!(map.copy_out(8190, &mut read).is_err());
    }

    #[test]
    fn a_page_that_is_gone_is_an_error_and_no_death() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * 4096).unwrap();
        let mut map = Mapped::to_write(&file, 0, 3 * 4096).unwrap();
        map.copy_in(0, &[1; 3 * 4096]).unwrap();
        file.set_len(4096).unwrap();
        let mut read = vec![0; 3 * 4096];
        assert_eq!(map.copy_out(0, &mut read).unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(map.copy_in(9000, &[2; 10]).err().and_then(|e| e.raw_os_error()), None);
        map.copy_out(0, &mut read[..4096]).unwrap();
        assert!(read[..4096].iter().all(|&b| b == 1));
    }
}
