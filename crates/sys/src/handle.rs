//! File handles: identifiers of files that survive closed descriptors and renames.
#![allow(unsafe_code, reason = "file handles have no safe wrapper")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl};

use crate::at;
use crate::call::{Call, Result, SysError, call};
use crate::mounts::{self, MountInfo};
use crate::stat::Stat;

/// Largest handle in bytes (`MAX_HANDLE_SZ`).
const HANDLE_MAX: usize = 128;

/// File handle of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileHandle {
    /// Type of the handle; the file system defines it.
    pub kind: i32,
    /// Bytes that only the file system understands.
    pub bytes: Vec<u8>,
}

/// A `struct file_handle` with room for the largest handle.
#[repr(C)]
struct RawHandle {
    len: u32,
    kind: i32,
    bytes: [u8; HANDLE_MAX],
}

/// Returns the handle of `name` in `dir`, links not followed, or of `dir` itself if `name` is empty.
pub fn name_to_handle(dir: BorrowedFd<'_>, name: &CStr) -> Result<FileHandle> {
    let raw = raw_handle(dir, name)?;
    let bytes = usize::try_from(raw.len).ok().and_then(|len| raw.bytes.get(..len));
    let bytes = bytes.ok_or(SysError::new(Call::Handle, Errno::OVERFLOW))?;
    Ok(FileHandle { kind: raw.kind, bytes: bytes.to_vec() })
}

fn raw_handle(dir: BorrowedFd<'_>, name: &CStr) -> Result<RawHandle> {
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    call(Call::Handle, || {
        let mut raw = RawHandle { len: 128, kind: 0, bytes: [0; HANDLE_MAX] };
        let mut mount: libc::c_int = 0;
        // SAFETY: `name` ends with NUL; `raw` has room for the `len` bytes it announces, `mount` for an int.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                dir.as_raw_fd(),
                name.as_ptr(),
                &raw mut raw,
                &raw mut mount,
                flags,
            )
        };
        if answer < 0 {
            return Err(last_error());
        }
        Ok(raw)
    })
}

/// Opens the file that `handle` names on the file system of `mount`; `ESTALE` if it is gone.
///
/// `mount` must not be `O_PATH`. Needs `CAP_DAC_READ_SEARCH`, because no directory above the file is checked.
pub fn open_handle(mount: BorrowedFd<'_>, handle: &FileHandle, flags: OFlags) -> Result<OwnedFd> {
    // Flags are a C int, whatever sign the wrapper gives them.
    let flags = (flags | OFlags::CLOEXEC).bits().cast_signed();
    call(Call::Handle, || {
        let len = u32::try_from(handle.bytes.len()).map_err(|_| Errno::INVAL)?;
        let mut raw = RawHandle { len, kind: handle.kind, bytes: [0; HANDLE_MAX] };
        raw.bytes.get_mut(..handle.bytes.len()).ok_or(Errno::INVAL)?.copy_from_slice(&handle.bytes);
        // SAFETY: `raw` has the `len` bytes it announces; the kernel only reads it.
        let answer =
            unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut raw, flags) };
        if answer < 0 {
            return Err(last_error());
        }
        let fd = libc::c_int::try_from(answer).map_err(|_| Errno::BADF)?;
        // SAFETY: the descriptor was just made and has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    })
}

/// A file system whose handles can be built from an inode number and constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByNumber {
    /// ext4: a handle without a generation names the inode, whatever its generation.
    Ext,
    /// XFS: the generation is read from the file system.
    Xfs,
    /// btrfs: like ext4, within one subvolume.
    Btrfs {
        /// The subvolume of the directory.
        subvolume: u64,
    },
}

/// Inode number and generation, 32 bits each (`FILEID_INO32_GEN`).
const INO32_GEN: i32 = 1;
/// Inode number of 64 bits and generation of 32: XFS's own.
const XFS_INO64_GEN: i32 = 0x81;
/// Inode number and subvolume of 64 bits each, and a generation of 32: btrfs's own.
const BTRFS: i32 = 0x4d;
/// The inode number of a btrfs subvolume's root.
const SUBVOLUME_ROOT: u64 = 256;

impl ByNumber {
    /// Returns the kind for the directory `root`, from its `f_type` of statfs(2).
    pub fn of(root: BorrowedFd<'_>, f_type: u64) -> Option<Self> {
        match f_type {
            0xef53 => Some(Self::Ext),
            0x5846_5342 => Some(Self::Xfs),
            0x9123_683e => Self::of_btrfs(root),
            _ => None,
        }
    }

    /// The kind for a directory that was opened before, without a call to it; `subvolume` is [`Self::subvolume`].
    pub fn known(f_type: u64, subvolume: Option<u64>) -> Option<Self> {
        match f_type {
            0xef53 => Some(Self::Ext),
            0x5846_5342 => Some(Self::Xfs),
            0x9123_683e => subvolume.map(|subvolume| Self::Btrfs { subvolume }),
            _ => None,
        }
    }

    /// Subvolume of btrfs.
    pub fn subvolume(self) -> Option<u64> {
        match self {
            Self::Btrfs { subvolume } => Some(subvolume),
            Self::Ext | Self::Xfs => None,
        }
    }

    /// Kernels differ in whether they accept a handle without a generation, so the directory's own is tried.
    fn of_btrfs(root: BorrowedFd<'_>) -> Option<Self> {
        let raw = raw_handle(root, c"").ok().filter(|raw| raw.kind == BTRFS)?;
        let (own, subvolume) = raw.bytes.first_chunk::<16>().map(|ids| ids.split_at(8))?;
        let how = Self::Btrfs { subvolume: u64::from_ne_bytes(subvolume.try_into().ok()?) };
        how.open(root, u64::from_ne_bytes(own.try_into().ok()?)).ok()?.map(|_| how)
    }

    /// True if every object with a number here is below the directory `root` at `path`, because that is the root of the
    /// file system or of a btrfs subvolume.
    ///
    /// # Errors
    ///
    /// The mount table cannot be read, or the directory is missing.
    pub fn is_all_below(self, root: BorrowedFd<'_>, path: &Path) -> io::Result<bool> {
        let stat = at::stat_fd(root).map_err(|error| error.errno)?;
        if let Self::Btrfs { .. } = self {
            return Ok(stat.ino == SUBVOLUME_ROOT);
        }
        let path = path.canonicalize()?;
        let is_it = |mount: &MountInfo| mount.id == stat.mnt_id && mount.mount_point == path;
        Ok(mounts::list()?.iter().any(|mount| is_it(mount) && mount.root == Path::new("/")))
    }

    /// Attributes of `name` in `dir`, links not followed, or of `dir` itself if `name` is empty, with its version.
    pub fn stat(self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Stat> {
        loop {
            let stat = if name.is_empty() { at::stat_fd(dir) } else { at::stat(dir, name) }?;
            let raw = match raw_handle(dir, name) {
                // Another file system mounted below, whose objects are not opened by number.
                Err(error) if error.errno == Errno::OPNOTSUPP => return Ok(stat),
                raw => raw?,
            };
            match self.parse(&raw) {
                Some((ino, version)) if ino == stat.ino => {
                    return Ok(Stat { version: Some(version), ..stat });
                }
                // The name came to mean another file between the two calls.
                Some(_) => {}
                None => return Ok(stat),
            }
        }
    }

    /// Returns the inode number and generation in a handle.
    fn parse(self, raw: &RawHandle) -> Option<(u64, u32)> {
        let word = |at: usize| Some(u32::from_ne_bytes(*raw.bytes.get(at..at + 4)?.first_chunk()?));
        match (self, raw.kind) {
            (Self::Ext | Self::Xfs, INO32_GEN) => Some((word(0)?.into(), word(4)?)),
            (Self::Xfs, XFS_INO64_GEN) => Some((u64::from_ne_bytes(*raw.bytes.first_chunk()?), word(8)?)),
            (Self::Btrfs { .. }, BTRFS) => Some((u64::from_ne_bytes(*raw.bytes.first_chunk()?), word(16)?)),
            _ => None,
        }
    }

    /// Opens inode `ino` (`O_PATH`) of the file system of the directory `root`, under whatever name it has now. `None`
    /// if the number is not in use.
    ///
    /// The caller checks that it is the expected object and not a later one with the same number.
    pub fn open(self, root: BorrowedFd<'_>, ino: u64) -> Result<Option<OwnedFd>> {
        // An `O_PATH` descriptor serves neither for an ioctl nor for opening a handle.
        let root = at::reopen(root, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let known = match self {
            Self::Ext => u32::try_from(ino).ok().map(|ino| (INO32_GEN, ino.to_ne_bytes().to_vec(), 0)),
            Self::Xfs => xfs_generation(&root, ino)?
                .map(|generation| (XFS_INO64_GEN, ino.to_ne_bytes().to_vec(), generation)),
            Self::Btrfs { subvolume } => {
                Some((BTRFS, [ino.to_ne_bytes(), subvolume.to_ne_bytes()].concat(), 0))
            }
        };
        let Some((kind, mut bytes, generation)) = known else { return Ok(None) };
        bytes.extend_from_slice(&generation.to_ne_bytes());
        match open_handle(root.as_fd(), &FileHandle { kind, bytes }, OFlags::PATH | OFlags::NOFOLLOW) {
            // Freed, or reused, between the two calls.
            Err(error) if matches!(error.errno, Errno::STALE | Errno::NOENT | Errno::INVAL) => Ok(None),
            opened => opened.map(Some),
        }
    }
}

/// `XFS_IOC_FSBULKSTAT_SINGLE`.
const XFS_BULKSTAT_SINGLE: Opcode = 0xc020_5866;

/// A `struct xfs_fsop_bulkreq`.
#[repr(C)]
struct BulkRequest {
    last: *mut u64,
    count: i32,
    buffer: *mut BulkStat,
    got: *mut i32,
}

/// A `struct xfs_bstat` of 136 bytes, with room to spare.
#[repr(C)]
struct BulkStat {
    ino: u64,
    skipped: [u32; 25],
    generation: u32,
    rest: [u64; 18],
}

/// Returns the generation of XFS's inode `ino`; `None` if it is free.
fn xfs_generation(root: &OwnedFd, ino: u64) -> Result<Option<u32>> {
    let asked = call(Call::Ioctl, || {
        let mut last = ino;
        let mut got = 0_i32;
        let mut stat = BulkStat { ino: 0, skipped: [0; 25], generation: 0, rest: [0; 18] };
        let mut request =
            BulkRequest { last: &raw mut last, count: 1, buffer: &raw mut stat, got: &raw mut got };
        // SAFETY: the number reads and writes one such request.
        let answer = unsafe { Updater::<XFS_BULKSTAT_SINGLE, BulkRequest>::new(&mut request) };
        // SAFETY: the request's pointers are to locals that outlive the call and have at least the sizes that it
        // writes.
        unsafe { ioctl(root, answer) }?;
        Ok((stat.ino == ino).then_some(stat.generation))
    });
    match asked {
        Err(error) if matches!(error.errno, Errno::INVAL | Errno::NOENT) => Ok(None),
        asked => asked,
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    #[test]
    fn a_handle_finds_its_file_after_a_rename() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("before"), "content").unwrap();
        let fd = File::open(dir.path()).unwrap();
        let handle = match name_to_handle(fd.as_fd(), c"before") {
            Err(error) if error.errno == Errno::OPNOTSUPP => return println!("skipped: no handles here"),
            answer => answer.unwrap(),
        };
        std::fs::rename(dir.path().join("before"), dir.path().join("after")).unwrap();
        assert_eq!(name_to_handle(fd.as_fd(), c"after").unwrap(), handle);
        match open_handle(fd.as_fd(), &handle, OFlags::RDONLY) {
            Err(error) if error.errno == Errno::PERM => println!("skipped: may not open handles"),
            opened => {
                let mut text = String::new();
                File::from(opened.unwrap()).read_to_string(&mut text).unwrap();
                assert_eq!(text, "content");
            }
        }
    }

    #[test]
    fn an_empty_name_is_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        let (above, sub) = (File::open(dir.path()).unwrap(), File::open(dir.path().join("sub")).unwrap());
        assert_eq!(name_to_handle(sub.as_fd(), c""), name_to_handle(above.as_fd(), c"sub"));
    }

    #[test]
    fn a_number_opens_what_has_it_and_nothing_when_it_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let fd = at::open_root(dir.path()).unwrap();
        let Some(how) = ByNumber::of(fd.as_fd(), crate::file::statfs(fd.as_fd()).unwrap().f_type) else {
            return println!("skipped: neither ext4, XFS nor btrfs under /tmp");
        };
        std::fs::write(dir.path().join("f"), "content").unwrap();
        let stat = at::stat(fd.as_fd(), c"f").unwrap();
        let found = match how.open(fd.as_fd(), stat.ino) {
            Err(error) if error.errno == Errno::PERM => return println!("skipped: may not open handles"),
            found => found.unwrap().unwrap(),
        };
        let versioned = how.stat(fd.as_fd(), c"f").unwrap();
        assert!(versioned.version.is_some());
        assert_eq!(how.stat(found.as_fd(), c"").unwrap(), versioned);
        assert_eq!(Stat { version: None, ..versioned }, stat);
        drop(found);
        assert!(how.open(fd.as_fd(), u64::MAX / 3).unwrap().is_none());
    }

    #[test]
    fn errors_are_labelled() {
        let dir = tempfile::tempdir().unwrap();
        let fd = File::open(dir.path()).unwrap();
        let missing = name_to_handle(fd.as_fd(), c"missing").unwrap_err();
        assert_eq!((missing.call, missing.errno), (Call::Handle, Errno::NOENT));
        let long = FileHandle { kind: 1, bytes: vec![0; HANDLE_MAX + 1] };
        assert_eq!(open_handle(fd.as_fd(), &long, OFlags::RDONLY).unwrap_err().errno, Errno::INVAL);
    }
}
