//! Allocated extents of a file (FIEMAP).
#![allow(unsafe_code, reason = "an ioctl is as safe as its number and its memory match")]

use std::os::fd::BorrowedFd;

use rustix::ioctl::{Opcode, Updater, ioctl};

use crate::call::{Call, Result, call};

/// `FS_IOC_FIEMAP`.
const FS_IOC_FIEMAP: Opcode = 0xc020_660b;
/// `FIEMAP_EXTENT_LAST`.
const LAST: u32 = 0x0001;
/// `FIEMAP_EXTENT_UNWRITTEN`.
const UNWRITTEN: u32 = 0x0800;
/// Extents per request.
const AT_ONCE: u32 = 64;

/// Allocated part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its first byte in the file.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Allocated but not written: it reads as zeros.
    pub unwritten: bool,
    /// The file has no extent after it. Not every file system says so.
    pub is_last: bool,
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// `struct fiemap`, with room for extents.
#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; AT_ONCE as usize],
}

/// Returns some extents of the file behind `fd` that end after `start`, in order. An empty list means that there are no
/// more.
///
/// # Errors
///
/// EOPNOTSUPP or ENOTTY if the file system does not report extents.
pub fn extents(fd: BorrowedFd<'_>, start: u64) -> Result<Vec<Extent>> {
    let mut request = Request {
        start,
        length: u64::MAX - start,
        flags: 0,
        mapped: 0,
        count: AT_ONCE,
        reserved: 0,
        extents: [RawExtent::default(); AT_ONCE as usize],
    };
    call(Call::Ioctl, || {
        // SAFETY: the opcode reads and writes a `struct fiemap` and the `count` extents after it, which `request`
        // contains.
        let asked = unsafe { Updater::<FS_IOC_FIEMAP, Request>::new(&mut request) };
        // SAFETY: as above; all of it is integers, of which any value is valid.
        unsafe { ioctl(fd, asked) }
    })?;
    let extents = request.extents.iter().take(usize::try_from(request.mapped).unwrap_or(0));
    let extent = |raw: &RawExtent| Extent {
        start: raw.logical,
        len: raw.length,
        unwritten: raw.flags & UNWRITTEN != 0,
        is_last: raw.flags & LAST != 0,
    };
    Ok(extents.map(extent).collect())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::call::SysError;

    #[test]
    fn unwritten_allocated_space_is_reported() {
        let file = tempfile::tempfile().unwrap();
        match crate::file::fallocate(file.as_fd(), 0, 1 << 20, 1 << 20)
            .and_then(|()| extents(file.as_fd(), 0))
        {
            Ok(found) => {
                let allocated: u64 =
                    found.iter().filter(|extent| extent.unwritten).map(|extent| extent.len).sum();
                assert_eq!((found[0].start, allocated), (1 << 20, 1 << 20), "{found:?}");
                assert_eq!(extents(file.as_fd(), 2 << 20).unwrap(), []);
            }
            Err(SysError { call: Call::Ioctl | Call::Fallocate, .. }) => {
                println!("skipped: not supported here")
            }
            Err(other) => panic!("{other}"),
        }
    }
}
