//! Calls on one name in a directory that is known by its descriptor; a symbolic link there is never followed.

pub(crate) mod procfd;

mod attr;

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

pub use attr::{SetTime, Times, chmod_fd, chown_fd, utimens_fd};
pub use procfd::{Whereabouts, path_below, whereabouts};
pub use rustix::fs::RenameFlags;

use crate::call::{Call, Result, SysError, call};
use crate::identity;
use crate::stat::Stat;
use procfd::ProcFd;

/// How often an open is tried that a concurrent rename disturbs.
const OPEN_ATTEMPTS: usize = 16;

/// Whether a name may lead onto another mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounts {
    /// A mount point is refused with EXDEV.
    Stay,
    /// A mount point leads to what is mounted there.
    Cross,
}

/// Attributes of `name` in `dir`.
pub fn stat(dir: BorrowedFd<'_>, name: &CStr) -> Result<Stat> {
    statx(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
}

/// Attributes of what `fd`, which may be `O_PATH`, stands for.
pub fn stat_fd(fd: BorrowedFd<'_>) -> Result<Stat> {
    statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
}

/// Like [`stat_fd`], from the kernel's cache only, without asking the file system's server: enough for device, mount and, of
/// a mount's root, inode.
pub fn stat_kept(fd: BorrowedFd<'_>) -> Result<Stat> {
    let how = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(fd, c"", how | AtFlags::STATX_DONT_SYNC)
}

/// Like [`stat_fd`], asking the file system's server.
pub fn stat_now(fd: BorrowedFd<'_>) -> Result<Stat> {
    let how = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(fd, c"", how | AtFlags::STATX_FORCE_SYNC)
}

/// Like [`stat`], asking the file system's server whatever attributes the kernel has cached.
pub fn stat_by_name_now(dir: BorrowedFd<'_>, name: &CStr) -> Result<Stat> {
    statx(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_FORCE_SYNC)
}

fn statx(fd: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<Stat> {
    let asked = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
    call(Call::Stat, || rustix::fs::statx(fd, name, flags, asked)).map(Stat::from)
}

/// Opens `name` in `dir`, beneath it. With `O_PATH` a symbolic link opens as itself, else it is ELOOP.
///
/// `mode` counts only if `flags` can create.
pub fn open(dir: BorrowedFd<'_>, name: &CStr, flags: OFlags, mode: u32, mounts: Mounts) -> Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // openat2 refuses a mode that it would not use.
    let creates = flags.contains(OFlags::CREATE) || flags.contains(OFlags::TMPFILE);
    if creates {
        identity::before_making()?;
    }
    let mode = if creates { permissions(mode) } else { Mode::empty() };
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    if mounts == Mounts::Stay {
        resolve |= ResolveFlags::NO_XDEV;
    }
    let mut attempts = OPEN_ATTEMPTS;
    loop {
        attempts -= 1;
        match call(Call::Open, || rustix::fs::openat2(dir, name, flags, mode, resolve)) {
            Err(SysError { errno: Errno::AGAIN, .. }) if 0 < attempts => {}
            done => return done,
        }
    }
}

/// An `O_PATH` descriptor of the directory `name` in `dir`.
pub fn open_dir(dir: BorrowedFd<'_>, name: &CStr, mounts: Mounts) -> Result<OwnedFd> {
    open(dir, name, OFlags::PATH | OFlags::DIRECTORY, 0, mounts)
}

/// An `O_PATH` descriptor of the directory at an absolute path; symbolic links are followed.
pub fn open_root(path: &Path) -> Result<OwnedFd> {
    if !path.is_absolute() {
        return Err(SysError::new(Call::Open, Errno::INVAL));
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    call(Call::Open, || rustix::fs::openat(CWD, path, flags, Mode::empty()))
}

/// Opens the relative `path` from `dir`; symbolic links are followed. For what a file system makes up itself.
pub fn open_follow(dir: BorrowedFd<'_>, path: &CStr, flags: OFlags) -> Result<OwnedFd> {
    call(Call::Open, || rustix::fs::openat(dir, path, flags | OFlags::CLOEXEC, Mode::empty()))
}

/// A new file without a name in `dir`; `flags` say how it is open.
pub fn tmpfile(dir: BorrowedFd<'_>, flags: OFlags, mode: u32) -> Result<OwnedFd> {
    identity::before_making()?;
    // O_CREAT is refused beside O_TMPFILE.
    let flags = flags.difference(OFlags::CREATE) | OFlags::TMPFILE | OFlags::CLOEXEC;
    call(Call::Open, || rustix::fs::openat(dir, c".", flags, permissions(mode)))
}

/// Opens anew, with other `flags`, what `fd` stands for: it may be `O_PATH`, its file may have no name left.
///
/// Flags that create or look at the name are ignored.
pub fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
    let path = ProcFd::of(fd);
    let flags = flags.difference(OFlags::NOFOLLOW | OFlags::CREATE | OFlags::EXCL) | OFlags::CLOEXEC;
    call(Call::Open, || rustix::fs::openat(CWD, path.as_c_str(), flags, Mode::empty()))
}

/// Like [`reopen`], for reading, and with O_NOATIME if that is permitted.
pub fn reopen_quietly(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
    match reopen(fd, flags | OFlags::NOATIME) {
        Err(error) if error.errno == Errno::PERM => reopen(fd, flags),
        opened => opened,
    }
}

/// Makes a directory.
pub fn mkdir(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> Result<()> {
    identity::before_making()?;
    call(Call::Mkdir, || rustix::fs::mkdirat(dir, name, permissions(mode)))
}

/// Makes a file of the type in `mode`; `rdev`, as makedev has it, is for devices.
pub fn mknod(dir: BorrowedFd<'_>, name: &CStr, mode: u32, rdev: u64) -> Result<()> {
    let kind = match FileType::from_raw_mode(mode) {
        FileType::Unknown if mode & libc::S_IFMT == 0 => FileType::RegularFile,
        kind => kind,
    };
    identity::before_making()?;
    call(Call::Mknod, || rustix::fs::mknodat(dir, name, kind, permissions(mode), rdev))
}

/// Makes a symbolic link to `target`.
pub fn symlink(target: &CStr, dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
    identity::before_making()?;
    call(Call::Symlink, || rustix::fs::symlinkat(target, dir, name))
}

/// Gives a file another name; a symbolic link gets it itself.
pub fn link(olddir: BorrowedFd<'_>, oldname: &CStr, newdir: BorrowedFd<'_>, newname: &CStr) -> Result<()> {
    call(Call::Link, || rustix::fs::linkat(olddir, oldname, newdir, newname, AtFlags::empty()))
}

/// Gives what `fd` stands for a name: a file of [`tmpfile`], or anything but a directory by `O_PATH`.
pub fn link_fd(fd: BorrowedFd<'_>, newdir: BorrowedFd<'_>, newname: &CStr) -> Result<()> {
    match call(Call::Link, || rustix::fs::linkat(fd, c"", newdir, newname, AtFlags::EMPTY_PATH)) {
        // Without CAP_DAC_READ_SEARCH the kernel wants the way through /proc.
        Err(SysError { errno: Errno::NOENT | Errno::PERM, .. }) => {
            let path = ProcFd::of(fd);
            let from = path.as_c_str();
            match call(Call::Link, || rustix::fs::linkat(CWD, from, newdir, newname, AtFlags::SYMLINK_FOLLOW))
            {
                // What has no name any more seems to be in /proc itself.
                Err(SysError { errno: Errno::XDEV, call }) => Err(SysError::new(call, Errno::NOENT)),
                linked => linked,
            }
        }
        done => done,
    }
}

/// Removes a name that is not a directory's.
pub fn unlink(dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
    call(Call::Unlink, || rustix::fs::unlinkat(dir, name, AtFlags::empty()))
}

/// Removes an empty directory.
pub fn rmdir(dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
    call(Call::Rmdir, || rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR))
}

/// Renames.
pub fn rename(
    olddir: BorrowedFd<'_>,
    old: &CStr,
    newdir: BorrowedFd<'_>,
    new: &CStr,
    flags: RenameFlags,
) -> Result<()> {
    // Some file systems refuse renameat2 as such.
    if flags.is_empty() {
        call(Call::Rename, || rustix::fs::renameat(olddir, old, newdir, new))
    } else {
        match call(Call::Rename, || rustix::fs::renameat_with(olddir, old, newdir, new, flags)) {
            Err(refused) if refused.errno == Errno::INVAL && flags == RenameFlags::NOREPLACE => {
                rename_by_link(olddir, old, newdir, new, refused)
            }
            done => done,
        }
    }
}

/// Emulates `NOREPLACE` for a file where the file system knows no flags (GlusterFS), by link and unlink: the file always has
/// a name, and no other file's name is taken. Objects that cannot have links, such as directories, are refused with
/// `refused`.
fn rename_by_link(
    olddir: BorrowedFd<'_>,
    old: &CStr,
    newdir: BorrowedFd<'_>,
    new: &CStr,
    refused: SysError,
) -> Result<()> {
    link(olddir, old, newdir, new).map_err(|error| match error.errno {
        Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK => refused,
        _ => error,
    })?;
    let Err(error) = unlink(olddir, old) else { return Ok(()) };
    // It must not keep two names: the error is returned even if the new name cannot be removed.
    unlink(newdir, new).and(Err(error))
}

/// A symbolic link's target; with an empty name that of the link whose `O_PATH` descriptor `dir` is.
pub fn readlink(dir: BorrowedFd<'_>, name: &CStr) -> Result<Vec<u8>> {
    call(Call::Readlink, || rustix::fs::readlinkat(dir, name, Vec::new())).map(|target| target.into_bytes())
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

#[cfg(test)]
mod tests;
