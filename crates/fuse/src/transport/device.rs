//! The FUSE device: reading requests, writing answers, its ioctls.
#![allow(unsafe_code, reason = "the device's ioctls and its buffers' memory have no safe wrapper")]

use std::fs::OpenOptions;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::{io, mem};

use fsstack_engine::files::route::Backings;
use fsstack_wire::{Answer, OutHeader};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::ioctl::{self, opcode};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

const MAGIC: u8 = 229;

/// `struct fuse_backing_map` of the kernel's fuse.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// One more descriptor of the connection behind `device`, with a queue of its own for requests that were read.
///
/// # Errors
/// The device cannot be opened, or the connection is gone.
pub fn clone_device(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let clone: OwnedFd = OpenOptions::new().read(true).write(true).open("/dev/fuse")?.into();
    let mut source: u32 = device.as_raw_fd().cast_unsigned();
    // SAFETY: FUSE_DEV_IOC_CLONE reads a u32 at the pointer; Updater passes one that lives until it returns.
    let call = unsafe { ioctl::Updater::<{ opcode::read::<u32>(MAGIC, 0) }, u32>::new(&mut source) };
    // SAFETY: the opcode and the type are FUSE_DEV_IOC_CLONE's.
    unsafe { ioctl::ioctl(&clone, call) }?;
    Ok(clone)
}

/// Files of branches, registered with the kernel for passthrough.
#[derive(Debug)]
pub struct DeviceBackings(OwnedFd);

impl DeviceBackings {
    /// Registers with the connection behind `device`.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(device: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self(device.try_clone_to_owned()?))
    }
}

/// `FUSE_DEV_IOC_BACKING_OPEN`: answers the id as its return value.
struct BackingOpen(BackingMap);

// SAFETY: the kernel reads the map that the pointer leads to and nothing else; it lives in the request.
unsafe impl ioctl::Ioctl for BackingOpen {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> ioctl::Opcode {
        opcode::write::<BackingMap>(MAGIC, 1)
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(
        answer: ioctl::IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<u32> {
        u32::try_from(answer).map_err(|_| Errno::INVAL)
    }
}

impl Backings for DeviceBackings {
    fn open(&self, fd: BorrowedFd<'_>) -> io::Result<u32> {
        let map = BackingMap { fd: fd.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: `BackingOpen` is FUSE_DEV_IOC_BACKING_OPEN's opcode and argument.
        Ok(unsafe { ioctl::ioctl(&self.0, BackingOpen(map)) }?)
    }

    fn close(&self, id: u32) {
        // SAFETY: FUSE_DEV_IOC_BACKING_CLOSE reads a u32.
        let call = unsafe { ioctl::Setter::<{ opcode::write::<u32>(MAGIC, 2) }, u32>::new(id) };
        // SAFETY: the opcode and the type are FUSE_DEV_IOC_BACKING_CLOSE's.
        let closed = unsafe { ioctl::ioctl(&self.0, call) };
        if let Err(error) = closed
            && error != Errno::NODEV
            && error != Errno::PERM
        {
            tracing::error!(%error, id, "backing file not released; a descriptor leaks in the kernel");
        }
    }
}

const PAGE: usize = 4096;
/// Bytes before the data of a WRITE request: its two headers.
pub(crate) const BEFORE_DATA: usize = 80;

/// A buffer whose byte `before` begins a page, so that data is copied page by page. Pages that are never touched
/// are never resident, and those that were can be given back.
#[derive(Debug)]
pub(crate) struct Buffer {
    pages: NonNull<u8>,
    mapped: usize,
    start: usize,
    len: usize,
}

// SAFETY: the buffer owns its pages, which no other object leads to.
unsafe impl Send for Buffer {}

impl Buffer {
    /// `len` bytes, all zero.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn new(len: usize, before: usize) -> io::Result<Self> {
        let start = before.wrapping_neg() % PAGE;
        let mapped = (start + len).next_multiple_of(PAGE).max(PAGE);
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a mapping of its own, at an address that the kernel chooses.
        let pages = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), mapped, access, kind) }?;
        let pages = NonNull::new(pages.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { pages, mapped, start, len })
    }

    /// All of it.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        // SAFETY: the mapping holds `start + len` initialised bytes, lives as long as the buffer, and is borrowed with it.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_ptr().wrapping_add(self.start), self.len) }
    }

    /// Like [`Self::space`], for reading.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: as in `space`.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().wrapping_add(self.start), self.len) }
    }

    /// Gives all memory behind its first bytes back. What was there is zero.
    pub(crate) fn give_back(&mut self) {
        const KEPT: usize = 4 * PAGE;
        if let Some(rest) = self.mapped.checked_sub(KEPT).filter(|rest| 0 < *rest) {
            // SAFETY: these pages are the buffer's own, and private: the kernel puts zeros in their place.
            let given = unsafe {
                mm::madvise(self.pages.as_ptr().wrapping_add(KEPT).cast(), rest, Advice::LinuxDontNeed)
            };
            if let Err(error) = given {
                tracing::debug!(%error, "a buffer's memory is not given back");
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is the buffer's own, and nobody borrows it.
        let gone = unsafe { mm::munmap(self.pages.as_ptr().cast(), self.mapped) };
        if let Err(error) = gone {
            tracing::debug!(%error, "a buffer's memory is not given back");
        }
    }
}

/// Result of reading the device.
pub(crate) enum Taken {
    /// A request of this length is in the buffer.
    Request(usize),
    /// None, but ask again.
    Nothing,
    /// The mount is gone.
    Gone,
}

/// Reads one request.
pub(crate) fn take(device: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Taken> {
    match rustix::io::read(device, buffer) {
        Ok(0) => Ok(Taken::Nothing),
        Ok(len) => Ok(Taken::Request(len)),
        // ENOENT: the caller was interrupted before the request was read.
        Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => Ok(Taken::Nothing),
        Err(Errno::NODEV) => Ok(Taken::Gone),
        Err(error) => Err(error.into()),
    }
}

/// Whether requests wait to be read.
pub(crate) fn has_requests(device: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(&device, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let answered = rustix::event::poll(&mut polled, Some(&now));
    answered.is_ok_and(|_| polled[0].revents().contains(PollFlags::IN))
}

/// Writes an answer.
pub(crate) fn answer(device: BorrowedFd<'_>, header: &OutHeader, body: &Answer<'_>) -> Result<(), Errno> {
    rustix::io::writev(device, &[IoSlice::new(header.as_bytes()), IoSlice::new(body.as_bytes())])
        .map(mem::drop)
}

/// Writes an errno as the answer.
pub(crate) fn refuse(device: BorrowedFd<'_>, header: &OutHeader) -> Result<(), Errno> {
    rustix::io::write(device.as_fd(), header.as_bytes()).map(mem::drop)
}

#[cfg(test)]
mod tests {
    use super::{Buffer, PAGE};

    #[test]
    fn the_data_begins_a_page() {
        for before in [0, 1, 80, 4095, 4096] {
            let mut buffer = Buffer::new(10_000, before).unwrap();
            let space = buffer.space();
            assert_eq!(space.len(), 10_000);
            assert_eq!((space.as_ptr().addr() + before) % PAGE, 0, "{before}");
            space.fill(1);
        }
    }

    #[test]
    fn released_pages_are_zero_and_can_be_used_again() {
        let mut buffer = Buffer::new(64 * PAGE, 80).unwrap();
        buffer.space().fill(1);
        buffer.give_back();
        assert!(buffer.bytes()[8 * PAGE..].iter().all(|byte| *byte == 0));
        assert!(buffer.bytes()[..PAGE].iter().all(|byte| *byte == 1));
        buffer.space().fill(2);
        assert!(buffer.bytes().iter().all(|byte| *byte == 2));
        // One that is smaller than what is kept.
        let mut small = Buffer::new(100, 80).unwrap();
        small.give_back();
        assert_eq!(small.space().len(), 100);
    }
}
