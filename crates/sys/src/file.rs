//! Calls on an open file: content, space, durability.

#![allow(
    unsafe_code,
    reason = "rustix neither relays close's errno, shows a file system's id nor has leases"
)]

use std::io::IoSlice;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, IntoRawFd as _};

use rustix::fs::{FallocateFlags, Fsid, OFlags, SeekFrom, StatVfsMountFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::call::{Call, Result, call, once};

/// Durability and position of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// Write as with O_DSYNC: content, and the metadata needed to read it, are durable on return.
    pub dsync: bool,
    /// Write as with O_SYNC: all attributes are durable too.
    pub sync: bool,
    /// Write to the end of the file, whatever the offset.
    pub append: bool,
}

/// Target of a search in a sparse file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// Data.
    Data,
    /// A hole; the end of the file counts as one.
    Hole,
}

/// Size and space of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsSpace {
    /// Its type's magic number.
    pub f_type: u64,
    /// Its id.
    pub fsid: u64,
    /// Preferred size of a transfer.
    pub block_size: u64,
    /// The unit of `blocks`, `free` and `avail`.
    pub frag_size: u64,
    /// Size, in units of `frag_size`.
    pub blocks: u64,
    /// Free space, in units of `frag_size`.
    pub free: u64,
    /// Free space for unprivileged users, in units of `frag_size`.
    pub avail: u64,
    /// Number of inodes.
    pub files: u64,
    /// Number of free inodes.
    pub files_free: u64,
    /// Longest name, in bytes.
    pub name_max: u64,
    /// True if the mount is read-only.
    pub read_only: bool,
}

impl FsSpace {
    /// Free space for unprivileged users, in bytes.
    pub fn available(&self) -> u64 {
        self.avail.saturating_mul(self.frag_size)
    }
}

/// Reads at `off`. Returns the number of bytes; 0 at the end of the file.
pub fn read_at(fd: BorrowedFd<'_>, buf: &mut [u8], off: u64) -> Result<usize> {
    call(Call::Read, || rustix::io::pread(fd, &mut *buf, off))
}

/// Writes at `off`. Returns the number of bytes.
pub fn write_at(fd: BorrowedFd<'_>, data: &[u8], off: u64) -> Result<usize> {
    call(Call::Write, || rustix::io::pwrite(fd, data, off))
}

/// Writes at `off` with `flags`. Returns the number of bytes.
pub fn write_at_flags(fd: BorrowedFd<'_>, data: &[u8], off: u64, flags: WriteFlags) -> Result<usize> {
    if flags == WriteFlags::default() {
        return write_at(fd, data, off);
    }
    let mut raw = ReadWriteFlags::empty();
    raw.set(ReadWriteFlags::DSYNC, flags.dsync);
    raw.set(ReadWriteFlags::SYNC, flags.sync);
    raw.set(ReadWriteFlags::APPEND, flags.append);
    call(Call::Write, || {
        let written = rustix::io::pwritev2(fd, &[IoSlice::new(data)], off, raw)?;
        if flags.dsync || flags.sync { synced(fd, Ok(written)) } else { Ok(written) }
    })
}

/// Reports to an observer, in builds for tests, that the file is on disk, if `done` is a success.
fn synced<T>(fd: BorrowedFd<'_>, done: rustix::io::Result<T>) -> rustix::io::Result<T> {
    #[cfg(feature = "fault")]
    if done.is_ok() {
        crate::witness::synced(fd, crate::witness::Reach::File);
    }
    #[cfg(not(feature = "fault"))]
    let _not_observed = fd;
    done
}

/// Sets the size.
pub fn truncate(fd: BorrowedFd<'_>, len: u64) -> Result<()> {
    call(Call::Truncate, || rustix::fs::ftruncate(fd, len))
}

/// Sets the permissions.
pub fn chmod(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    call(Call::Chmod, || rustix::fs::fchmod(fd, rustix::fs::Mode::from_raw_mode(mode & 0o7777)))
}

/// Allocates or frees space; `mode` consists of `FALLOC_FL_*`.
pub fn fallocate(fd: BorrowedFd<'_>, mode: u32, off: u64, len: u64) -> Result<()> {
    let mode = FallocateFlags::from_bits_retain(mode);
    call(Call::Fallocate, || rustix::fs::fallocate(fd, mode, off, len))
}

/// Returns the offset of the first data or hole from `off` on; ENXIO if there is none.
///
/// It moves the descriptor's position, which nothing else here uses.
pub fn seek(fd: BorrowedFd<'_>, off: u64, whence: Whence) -> Result<u64> {
    let to = || match whence {
        Whence::Data => SeekFrom::Data(off),
        Whence::Hole => SeekFrom::Hole(off),
    };
    call(Call::Seek, || rustix::fs::seek(fd, to()))
}

/// Copies a range inside the kernel. Returns the number of bytes; 0 at the end of `fd_in`.
pub fn copy_range(
    fd_in: BorrowedFd<'_>,
    off_in: u64,
    fd_out: BorrowedFd<'_>,
    off_out: u64,
    len: usize,
) -> Result<usize> {
    call(Call::CopyRange, || {
        let (mut from, mut to) = (off_in, off_out);
        rustix::fs::copy_file_range(fd_in, Some(&mut from), fd_out, Some(&mut to), len)
    })
}

/// Makes `dst` share all of `src`'s content.
pub fn reflink(src: BorrowedFd<'_>, dst: BorrowedFd<'_>) -> Result<()> {
    call(Call::Ioctl, || rustix::fs::ioctl_ficlone(dst, src))
}

/// Drops clean cached pages of the file, so that the next read comes from disk.
pub fn drop_cached(fd: BorrowedFd<'_>) -> Result<()> {
    call(Call::Read, || rustix::fs::fadvise(fd, 0, None, rustix::fs::Advice::DontNeed))
}

/// Makes content and attributes durable.
pub fn fsync(fd: BorrowedFd<'_>) -> Result<()> {
    call(Call::Fsync, || synced(fd, rustix::fs::fsync(fd)))
}

/// Makes the names in the directory `dir`, which may be open as a place (`O_PATH`), durable.
pub fn sync_dir(dir: BorrowedFd<'_>) -> Result<()> {
    let dir = crate::at::reopen(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
    fsync(dir.as_fd())
}

/// Makes content durable, and the metadata needed to read it.
pub fn fdatasync(fd: BorrowedFd<'_>) -> Result<()> {
    call(Call::Fsync, || synced(fd, rustix::fs::fdatasync(fd)))
}

/// Sets whether reads through `fd` leave the access time alone. EPERM for callers that do not own the file.
pub fn set_noatime(fd: BorrowedFd<'_>, quiet: bool) -> Result<()> {
    call(Call::Open, || {
        let mut flags = rustix::fs::fcntl_getfl(fd)?;
        flags.set(OFlags::NOATIME, quiet);
        rustix::fs::fcntl_setfl(fd, flags)
    })
}

/// True if the close of `fd` waits for a server, if there is one: not that of a directory, or of a name (`O_PATH`).
pub fn asks_at_close(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| !flags.intersects(OFlags::PATH | OFlags::DIRECTORY))
}

/// Clears O_APPEND, so that writes go to the given offset.
pub fn stop_appending(fd: BorrowedFd<'_>) -> Result<()> {
    call(Call::Open, || rustix::fs::fcntl_setfl(fd, rustix::fs::fcntl_getfl(fd)? - OFlags::APPEND))
}

/// True if writes through `fd` are appended.
pub fn appends(fd: BorrowedFd<'_>) -> Result<bool> {
    call(Call::Open, || Ok(rustix::fs::fcntl_getfl(fd)?.contains(OFlags::APPEND)))
}

/// Waits for writes in progress and starts none. Returns their write-back error, or an earlier one.
pub fn await_written(fd: BorrowedFd<'_>) -> Result<()> {
    call(Call::Fsync, || {
        // SAFETY: the descriptor is open while it is borrowed; the call touches no memory of the process.
        match unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WAIT_BEFORE) } {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    })
}

/// True if this machine has the file open or mapped other than through `fd` and its duplicates.
///
/// The kernel grants a write lease only to the sole opener of a file; the lease is returned at once. EINVAL where the
/// file system has no leases.
pub fn is_open_elsewhere(fd: BorrowedFd<'_>) -> Result<bool> {
    /// `F_SETSIG` of fcntl(2).
    const SET_SIGNAL: libc::c_int = 10;
    // An open of the file in between breaks the lease and sends the holder SIGIO, which would end the process. So
    // another signal is named, one that is ignored by default.
    let lease = |command: libc::c_int, argument: libc::c_int| {
        // SAFETY: the descriptor is open while it is borrowed; the arguments are numbers.
        match unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) } {
            -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
            _ => Ok(()),
        }
    };
    call(Call::Lease, || {
        lease(SET_SIGNAL, libc::SIGURG)?;
        match lease(libc::F_SETLEASE, libc::F_WRLCK) {
            Err(Errno::AGAIN) => return Ok(true),
            taken => taken?,
        }
        match lease(libc::F_SETLEASE, libc::F_UNLCK) {
            // Another thread with the same question on this descriptor has returned the lease.
            Ok(()) | Err(Errno::AGAIN) => Ok(false),
            Err(kept) => Err(kept),
        }
    })
}

/// Makes the whole file system durable.
pub fn syncfs(fd: BorrowedFd<'_>) -> Result<()> {
    call(Call::Syncfs, || {
        rustix::fs::syncfs(fd)?;
        #[cfg(feature = "fault")]
        crate::witness::synced(fd, crate::witness::Reach::FileSystem);
        Ok(())
    })
}

/// Runs the file's flush operation, as closing a descriptor does, and returns close's errno.
pub fn flush(fd: BorrowedFd<'_>) -> Result<()> {
    let copy = call(Call::Open, || rustix::io::fcntl_dupfd_cloexec(fd, 0))?;
    let mut copy = Some(copy);
    // close may report a late write error; the descriptor is closed even then, so it is never retried.
    once(Call::Write, || {
        let Some(copy) = copy.take() else { return Ok(()) };
        // SAFETY: the descriptor was taken from its owner, so nothing else closes or uses it.
        match unsafe { libc::close(copy.into_raw_fd()) } {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    })
}

/// Returns the figures of the file system that `fd`, which may be `O_PATH`, is on.
pub fn statfs(fd: BorrowedFd<'_>) -> Result<FsSpace> {
    let raw = call(Call::Statfs, || rustix::fs::fstatfs(fd))?;
    let block_size = raw.f_bsize.cast_unsigned();
    Ok(FsSpace {
        f_type: raw.f_type.cast_unsigned(),
        fsid: fsid(raw.f_fsid),
        block_size,
        frag_size: if raw.f_frsize == 0 { block_size } else { raw.f_frsize.cast_unsigned() },
        blocks: raw.f_blocks,
        free: raw.f_bfree,
        avail: raw.f_bavail,
        files: raw.f_files,
        files_free: raw.f_ffree,
        name_max: raw.f_namelen.cast_unsigned(),
        read_only: StatVfsMountFlags::from_bits_retain(raw.f_flags.cast_unsigned())
            .contains(StatVfsMountFlags::RDONLY),
    })
}

/// Flags of a mount that keep its objects from acting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountRestrictions {
    /// Set-id bits and file capabilities (`nosuid`).
    pub no_suid: bool,
    /// Devices (`nodev`).
    pub no_devices: bool,
}

/// Returns the restrictions of the mount that `fd`, which may be `O_PATH`, is on.
pub fn mount_restrictions(fd: BorrowedFd<'_>) -> Result<MountRestrictions> {
    let flags = call(Call::Statfs, || rustix::fs::fstatvfs(fd))?.f_flag;
    let has = |flag| flags.contains(flag);
    Ok(MountRestrictions {
        no_suid: has(StatVfsMountFlags::NOSUID),
        no_devices: has(StatVfsMountFlags::NODEV),
    })
}

/// The two words of the id in statvfs's order, low word first.
fn fsid(raw: Fsid) -> u64 {
    // SAFETY: `Fsid` is `repr(C)` and has nothing but two such words, of which any value is valid.
    let [low, high] = unsafe { std::mem::transmute::<Fsid, [i32; 2]>(raw) };
    u64::from(low.cast_unsigned()) | u64::from(high.cast_unsigned()) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::at;
    use std::fs::File;
    use std::io::Read as _;

    #[test]
    fn written_bytes_are_read_at_their_offset() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_fd();
        let plain = WriteFlags::default();
        assert_eq!(write_at(fd, b"world", 6).unwrap(), 5);
        assert_eq!(write_at_flags(fd, b"hello ", 0, WriteFlags { dsync: true, ..plain }).unwrap(), 6);
        assert_eq!(write_at_flags(fd, b"!", 11, WriteFlags { sync: true, ..plain }).unwrap(), 1);
        assert_eq!(write_at_flags(fd, b"?", 0, WriteFlags { append: true, ..plain }).unwrap(), 1);
        assert!(!appends(fd).unwrap());
        let mut buf = [0; 32];
        assert_eq!(read_at(fd, &mut buf, 0).unwrap(), 13);
        assert_eq!(&buf[..13], b"hello world!?");
        assert_eq!(read_at(fd, &mut buf, 13).unwrap(), 0);
        truncate(fd, 5).unwrap();
        assert_eq!(read_at(fd, &mut buf, 0).unwrap(), 5);
        for sync in [fsync, fdatasync, await_written, syncfs] {
            sync(fd).unwrap();
        }
    }

    #[test]
    fn holes_are_punched_and_found() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_fd();
        write_at(fd, &[1; 3 << 16], 0).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(fd, punch.bits(), 1 << 16, 1 << 16).unwrap();
        assert_eq!(seek(fd, 0, Whence::Hole).unwrap(), 1 << 16);
        assert_eq!(seek(fd, 1 << 16, Whence::Data).unwrap(), 2 << 16);
        assert_eq!(seek(fd, 3 << 16, Whence::Data).unwrap_err().errno, Errno::NXIO);
        fallocate(fd, 0, 0, 4 << 16).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 4 << 16);
    }

    #[test]
    fn a_range_is_copied_from_offset_to_offset() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("from"), b"0123456789").unwrap();
        let from = File::open(dir.path().join("from")).unwrap();
        let to = File::create(dir.path().join("to")).unwrap();
        assert_eq!(copy_range(from.as_fd(), 2, to.as_fd(), 1, 4).unwrap(), 4);
        assert_eq!(std::fs::read(dir.path().join("to")).unwrap(), b"\x002345");
        match reflink(from.as_fd(), to.as_fd()) {
            Ok(()) => assert_eq!(std::fs::read(dir.path().join("to")).unwrap(), b"0123456789"),
            Err(e) => assert!(matches!(e.errno, Errno::OPNOTSUPP | Errno::INVAL | Errno::XDEV), "{e}"),
        }
    }

    #[test]
    fn a_file_is_open_elsewhere_until_its_last_mapping_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [0; 4096]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let elsewhere = || is_open_elsewhere(file.as_fd()).unwrap();
        let twin = file.try_clone().unwrap();
        assert!(!elsewhere(), "by a duplicate");
        drop(twin);
        let other = File::open(&path).unwrap();
        assert!(elsewhere(), "by a reader");
        // SAFETY: a mapping of its own, at an address that the kernel chooses.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, other.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        drop(other);
        assert!(elsewhere(), "by a mapping whose descriptor is closed");
        // SAFETY: the mapping made above; nothing refers to it.
        assert_eq!(unsafe { libc::munmap(at, 4096) }, 0);
        assert!(!elsewhere());
        let null = File::open("/dev/null").unwrap();
        assert_eq!(is_open_elsewhere(null.as_fd()).unwrap_err().errno, Errno::INVAL);
        // Opens in between wait for the lease; its signal does not end the process.
        std::thread::scope(|scope| {
            let opens = scope.spawn(|| (0..2000).for_each(|_| drop(File::open(&path).unwrap())));
            while !opens.is_finished() {
                elsewhere();
            }
        });
    }

    #[test]
    fn flush_leaves_the_descriptor_open() {
        let mut file = tempfile::tempfile().unwrap();
        flush(file.as_fd()).unwrap();
        assert_eq!(file.read(&mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn statfs_takes_a_path_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = at::open_root(dir.path()).unwrap();
        let real = at::reopen(path.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
        let space = statfs(path.as_fd()).unwrap();
        let expected = rustix::fs::fstatvfs(&real).unwrap();
        assert_eq!((space.fsid, space.frag_size), (expected.f_fsid, expected.f_frsize));
        assert_eq!((space.blocks, space.name_max), (expected.f_blocks, expected.f_namemax));
        assert_eq!(space.read_only, expected.f_flag.contains(StatVfsMountFlags::RDONLY));
        assert!(space.avail <= space.free && space.f_type != 0);
        let proc = File::open("/proc").unwrap();
        assert_eq!(statfs(proc.as_fd()).unwrap().f_type, 0x9fa0);
    }
}
