//! Inode flags and extended flags of a file, as `chattr` and `xfs_io` set them.
#![allow(unsafe_code, reason = "an ioctl is as safe as its number and its memory match")]

use std::os::fd::BorrowedFd;

use rustix::ioctl::{Opcode, Setter, Updater, ioctl};

use crate::call::{Call, Result, call};

/// Reads the inode flags.
pub const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
/// Sets the inode flags.
pub const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
/// Reads the inode's generation.
pub const FS_IOC_GETVERSION: u32 = 0x8008_7601;
/// Reads the extended flags (`struct fsxattr`).
pub const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
/// Sets the extended flags (`struct fsxattr`).
pub const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// Writes are durable when they return (`FS_*_FL` of linux/fs.h, here and below).
pub const FS_SYNC_FL: u32 = 0x0000_0008;
/// The file can only be appended to.
pub const FS_APPEND_FL: u32 = 0x0000_0020;
/// The file can be neither changed, renamed nor removed.
pub const FS_IMMUTABLE_FL: u32 = 0x0000_0010;
/// The file is not compressed.
pub const FS_NOCOMP_FL: u32 = 0x0000_0400;
/// The file's content is encrypted on disk with a user's key.
pub const FS_ENCRYPT_FL: u32 = 0x0000_0800;
/// File content is journaled too.
pub const FS_JOURNAL_DATA_FL: u32 = 0x0000_4000;
/// Reads of the file are verified against hashes (fs-verity).
pub const FS_VERITY_FL: u32 = 0x0010_0000;
/// The file is overwritten in place (no copy-on-write). Can be set only on an empty file.
pub const FS_NOCOW_FL: u32 = 0x0080_0000;
/// File content bypasses the page cache (DAX).
pub const FS_DAX_FL: u32 = 0x0200_0000;
/// Changes of the directory are durable when they return.
pub const FS_DIRSYNC_FL: u32 = 0x0001_0000;
/// New entries inherit the directory's project.
pub const FS_PROJINHERIT_FL: u32 = 0x2000_0000;
/// Lookups in the directory ignore case.
pub const FS_CASEFOLD_FL: u32 = 0x4000_0000;
/// Flags that users may set on any file system.
pub const FS_FL_USER_MODIFIABLE: u32 = 0x0003_80ff;
/// Flags that keep a file from being renamed or removed, and a directory from getting entries.
pub const FREEZING: u32 = FS_APPEND_FL | FS_IMMUTABLE_FL;

/// Like [`FREEZING`], of the extended flags (`FS_XFLAG_*`, here and below).
pub const FS_XFLAG_FREEZING: u32 = 0x0000_0008 | 0x0000_0010;
/// Space was preallocated for the file (XFS).
pub const FS_XFLAG_PREALLOC: u32 = 0x0000_0002;
/// New entries inherit the directory's project.
pub const FS_XFLAG_PROJINHERIT: u32 = 0x0000_0200;
/// Symbolic links cannot be made in the directory.
pub const FS_XFLAG_NOSYMLINKS: u32 = 0x0000_0400;
/// The file has an extent size hint.
pub const FS_XFLAG_EXTSIZE: u32 = 0x0000_0800;
/// New entries inherit the directory's extent size hint.
pub const FS_XFLAG_EXTSZINHERIT: u32 = 0x0000_1000;
/// The file is not to be defragmented.
pub const FS_XFLAG_NODEFRAG: u32 = 0x0000_2000;
/// Files of the directory are allocated together (filestreams).
pub const FS_XFLAG_FILESTREAM: u32 = 0x0000_4000;
/// The file has an extent size hint for copy-on-write.
pub const FS_XFLAG_COWEXTSIZE: u32 = 0x0001_0000;

/// A `struct fsxattr`, as the kernel lays it out.
pub type FsXattr = [u8; 28];

/// Fields of a [`FsXattr`] that can be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Flags, `FS_XFLAG_*`.
    pub flags: u32,
    /// Extent size hint in bytes; 0 for none.
    pub extent_size: u32,
    /// Project id, which quotas count by; 0 for none.
    pub project: u32,
    /// Extent size hint for copy-on-write, in bytes; 0 for none.
    pub cow_extent_size: u32,
}

impl Extended {
    /// Indexes of the settable fields in `struct fsxattr`, in 32-bit words.
    const PLACES: [usize; 4] = [0, 1, 3, 4];

    /// Reads the settable fields of `raw`.
    pub fn of(raw: &FsXattr) -> Self {
        let (words, _) = raw.as_chunks::<4>();
        let [flags, extent_size, project, cow_extent_size] =
            Self::PLACES.map(|at| words.get(at).map_or(0, |word| u32::from_ne_bytes(*word)));
        Self { flags, extent_size, project, cow_extent_size }
    }

    /// Returns `raw` with these values in the settable fields.
    pub fn within(self, mut raw: FsXattr) -> FsXattr {
        let (words, _) = raw.as_chunks_mut::<4>();
        let values = [self.flags, self.extent_size, self.project, self.cow_extent_size];
        for (at, value) in Self::PLACES.into_iter().zip(values) {
            if let Some(word) = words.get_mut(at) {
                *word = value.to_ne_bytes();
            }
        }
        raw
    }
}

/// The opcodes declare a `long`, but the kernel moves an `int`: the first of two, for kernels that believe the opcode.
type IntInLong = [u32; 2];

/// Returns the inode flags (`FS_IMMUTABLE_FL` and others).
pub fn getflags(fd: BorrowedFd<'_>) -> Result<u32> {
    get_int::<{ FS_IOC_GETFLAGS as Opcode }>(fd)
}

/// Sets the inode flags.
pub fn setflags(fd: BorrowedFd<'_>, flags: u32) -> Result<()> {
    let value: IntInLong = [flags, 0];
    call(Call::Ioctl, || {
        // SAFETY: the opcode reads at most a long, which `value` has room for.
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
        // SAFETY: the callers' opcodes write at most a long, which `value` has room for.
        let request = unsafe { Updater::<OPCODE, IntInLong>::new(&mut value) };
        // SAFETY: as above; any bits are a valid value.
        unsafe { ioctl(fd, request) }
    })?;
    Ok(value[0])
}

/// Returns the extended flags, extent size hints and project id.
pub fn fsgetxattr(fd: BorrowedFd<'_>) -> Result<FsXattr> {
    let mut value: FsXattr = [0; 28];
    call(Call::Ioctl, || {
        // SAFETY: the opcode writes 28 bytes, which `value` has.
        let request = unsafe { Updater::<{ FS_IOC_FSGETXATTR as Opcode }, FsXattr>::new(&mut value) };
        // SAFETY: as above; any bytes are a valid value.
        unsafe { ioctl(fd, request) }
    })?;
    Ok(value)
}

/// Sets the extended flags, extent size hints and project id.
pub fn fssetxattr(fd: BorrowedFd<'_>, value: &FsXattr) -> Result<()> {
    call(Call::Ioctl, || {
        // SAFETY: the opcode reads 28 bytes, which `value` has.
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

    /// `FS_NODUMP_FL`, which has no other effect and which the owner may set.
    const NODUMP: u32 = 0x40;

    /// Maps the errors of a file system without such flags to `None`.
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
    fn settable_flags_are_where_the_kernel_has_them() {
        let raw: FsXattr = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let extended = Extended::of(&raw);
        assert_eq!(extended.project, u32::from_ne_bytes([12, 13, 14, 15]));
        assert_eq!(extended.within(raw), raw);
        let other = Extended { flags: 1, extent_size: 2, project: 3, cow_extent_size: 4 };
        let set = other.within(raw);
        assert_eq!(Extended::of(&set), other);
        assert_eq!((&set[8..12], &set[20..]), (&raw[8..12], &raw[20..]));
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
