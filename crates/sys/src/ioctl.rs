//! Inode flags and extended attributes of a file, as `chattr` and `xfs_io` set them.
#![allow(unsafe_code, reason = "an ioctl is as safe as its number and its memory match")]

use std::os::fd::BorrowedFd;

use rustix::ioctl::{Opcode, Setter, Updater, ioctl};

use crate::call::{Call, Result, call};

/// Asks for the inode flags.
pub const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
/// Sets the inode flags.
pub const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
/// Asks for the inode's generation.
pub const FS_IOC_GETVERSION: u32 = 0x8008_7601;
/// Asks for the extended attributes.
pub const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
/// Sets the extended attributes.
pub const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// A `struct fsxattr`, as the kernel lays it out.
pub type FsXattr = [u8; 28];

/// The numbers speak of a `long`, the kernel moves an `int`: the first of two, wherever it believes the number.
type IntInLong = [u32; 2];

/// Inode flags (`FS_IMMUTABLE_FL` and its like).
pub fn getflags(fd: BorrowedFd<'_>) -> Result<u32> {
    get_int::<{ FS_IOC_GETFLAGS as Opcode }>(fd)
}

/// Sets the inode flags.
pub fn setflags(fd: BorrowedFd<'_>, flags: u32) -> Result<()> {
    let value: IntInLong = [flags, 0];
    call(Call::Ioctl, || {
        // SAFETY: the number reads at most a long, which `value` has room for.
        let request = unsafe { Setter::<{ FS_IOC_SETFLAGS as Opcode }, IntInLong>::new(value) };
        // SAFETY: as above; the kernel reads memory only.
        unsafe { ioctl(fd, request) }
    })
}

/// The inode's generation.
pub fn getversion(fd: BorrowedFd<'_>) -> Result<u32> {
    get_int::<{ FS_IOC_GETVERSION as Opcode }>(fd)
}

fn get_int<const OPCODE: Opcode>(fd: BorrowedFd<'_>) -> Result<u32> {
    let mut value: IntInLong = [0; 2];
    call(Call::Ioctl, || {
        // SAFETY: the callers' numbers write at most a long, which `value` has room for.
        let request = unsafe { Updater::<OPCODE, IntInLong>::new(&mut value) };
        // SAFETY: as above; any bits are a valid value.
        unsafe { ioctl(fd, request) }
    })?;
    Ok(value[0])
}

/// Extended attributes: flags, extent sizes and project.
pub fn fsgetxattr(fd: BorrowedFd<'_>) -> Result<FsXattr> {
    let mut value: FsXattr = [0; 28];
    call(Call::Ioctl, || {
        // SAFETY: the number writes 28 bytes, which `value` has.
        let request = unsafe { Updater::<{ FS_IOC_FSGETXATTR as Opcode }, FsXattr>::new(&mut value) };
        // SAFETY: as above; any bytes are a valid value.
        unsafe { ioctl(fd, request) }
    })?;
    Ok(value)
}

/// Sets the extended attributes.
pub fn fssetxattr(fd: BorrowedFd<'_>, value: &FsXattr) -> Result<()> {
    call(Call::Ioctl, || {
        // SAFETY: the number reads 28 bytes, which `value` has.
        let request = unsafe { Setter::<{ FS_IOC_FSSETXATTR as Opcode }, FsXattr>::new(*value) };
        // SAFETY: as above; the kernel reads memory only.
        unsafe { ioctl(fd, request) }
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::call::SysError;

    /// `FS_NODUMP_FL`, which changes nothing else and which the owner may set.
    const NODUMP: u32 = 0x40;

    /// What a file system without such attributes answers.
    fn supported<T>(answer: Result<T>) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(SysError { call: Call::Ioctl, .. }) => {
                println!("skipped: not supported here");
                None
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn flags_are_set_and_read_back() {
        let file = tempfile::tempfile().unwrap();
        let Some(flags) = supported(getflags(file.as_fd())) else { return };
        if supported(setflags(file.as_fd(), flags | NODUMP)).is_some() {
            assert_eq!(getflags(file.as_fd()).unwrap(), flags | NODUMP);
        }
    }

    #[test]
    fn extended_attributes_are_set_and_read_back() {
        let file = tempfile::tempfile().unwrap();
        let Some(attributes) = supported(fsgetxattr(file.as_fd())) else { return };
        if supported(fssetxattr(file.as_fd(), &attributes)).is_some() {
            assert_eq!(fsgetxattr(file.as_fd()).unwrap(), attributes);
        }
    }

    #[test]
    fn a_generation_stays() {
        let file = tempfile::tempfile().unwrap();
        if let Some(generation) = supported(getversion(file.as_fd())) {
            assert_eq!(getversion(file.as_fd()).unwrap(), generation);
        }
    }

    #[test]
    fn a_pipe_has_no_flags() {
        let (read, _write) = rustix::pipe::pipe().unwrap();
        assert_eq!(getflags(read.as_fd()).unwrap_err().errno, rustix::io::Errno::NOTTY);
    }
}
