//! Calls on one name in a directory given by its descriptor. A symbolic link at that name is never followed.

pub(crate) mod procfd;

mod attr;

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

pub(crate) use attr::SYS_FCHMODAT2;
pub use attr::{SetTime, Times, chmod_fd, chown_fd, utimens_fd};
pub use procfd::{Whereabouts, path_below, unnamed_below, whereabouts};
pub use rustix::fs::RenameFlags;

use crate::call::{Call, Result, SysError, call};
use crate::identity;
use crate::stat::Stat;
use procfd::ProcFd;

/// Attempts at an open that a concurrent rename disturbs (openat2 fails with EAGAIN).
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

/// Returns the attributes of the object behind `fd`, which may be `O_PATH`.
pub fn stat_fd(fd: BorrowedFd<'_>) -> Result<Stat> {
    statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
}

/// Like [`stat_fd`], but from the kernel's cache, without a request to the file system's server. Reliable for the
/// device, the mount id and the inode number of a mount's root.
pub fn stat_kept(fd: BorrowedFd<'_>) -> Result<Stat> {
    let how = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(fd, c"", how | AtFlags::STATX_DONT_SYNC)
}

/// Like [`stat_fd`], but asks the file system's server.
pub fn stat_now(fd: BorrowedFd<'_>) -> Result<Stat> {
    let how = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(fd, c"", how | AtFlags::STATX_FORCE_SYNC)
}

/// Like [`stat`], but asks the file system's server even if the kernel has the attributes cached.
pub fn stat_by_name_now(dir: BorrowedFd<'_>, name: &CStr) -> Result<Stat> {
    statx(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_FORCE_SYNC)
}

fn statx(fd: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<Stat> {
    let asked = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
    call(Call::Stat, || rustix::fs::statx(fd, name, flags, asked)).map(Stat::from)
}

/// Opens `name` in `dir`. With `O_PATH` a symbolic link is opened itself; without it the error is ELOOP.
///
/// `mode` is used only if `flags` can create.
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

/// Opens the relative `path` from `dir`; symbolic links are followed. For virtual files that a file system generates.
pub fn open_follow(dir: BorrowedFd<'_>, path: &CStr, flags: OFlags) -> Result<OwnedFd> {
    call(Call::Open, || rustix::fs::openat(dir, path, flags | OFlags::CLOEXEC, Mode::empty()))
}

/// Creates a file without a name in `dir`, open with `flags`.
pub fn tmpfile(dir: BorrowedFd<'_>, flags: OFlags, mode: u32) -> Result<OwnedFd> {
    identity::before_making()?;
    // O_CREAT together with O_TMPFILE is refused.
    let flags = flags.difference(OFlags::CREATE) | OFlags::TMPFILE | OFlags::CLOEXEC;
    call(Call::Open, || rustix::fs::openat(dir, c".", flags, permissions(mode)))
}

/// Opens the object behind `fd` again with other `flags`. `fd` may be `O_PATH`, and its file may have no name left.
///
/// Flags that create a file or act on its name are ignored.
pub fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags.difference(OFlags::NOFOLLOW | OFlags::CREATE | OFlags::EXCL) | OFlags::CLOEXEC;
    if flags.contains(OFlags::DIRECTORY) {
        // The path through /proc takes longer than the open.
        match call(Call::Open, || rustix::fs::openat(fd, c".", flags, Mode::empty())) {
            // It may be listed and not searched. Any other answer is the file system's, and tells of the directory.
            Err(SysError { errno: Errno::ACCESS, .. }) => {}
            done => return done,
        }
    }
    let path = ProcFd::of(fd);
    call(Call::Open, || rustix::fs::openat(CWD, path.as_c_str(), flags, Mode::empty()))
}

/// Like [`reopen`], read-only, with O_NOATIME where that is permitted.
pub fn reopen_quietly(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
    quietly(flags, |flags| reopen(fd, flags))
}

/// Opens by `open` with `O_NOATIME`, which is left out where only the owner may have it.
pub fn quietly(flags: OFlags, open: impl Fn(OFlags) -> Result<OwnedFd>) -> Result<OwnedFd> {
    match open(flags | OFlags::NOATIME) {
        Err(error) if error.errno == Errno::PERM => open(flags),
        opened => opened,
    }
}

/// Makes a directory.
pub fn mkdir(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> Result<()> {
    identity::before_making()?;
    call(Call::Mkdir, || rustix::fs::mkdirat(dir, name, permissions(mode)))
}

/// Makes a file of the type in `mode`. `rdev` is the device number in makedev's encoding, used for devices only.
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

/// Makes a hard link; a symbolic link is linked itself.
pub fn link(olddir: BorrowedFd<'_>, oldname: &CStr, newdir: BorrowedFd<'_>, newname: &CStr) -> Result<()> {
    call(Call::Link, || rustix::fs::linkat(olddir, oldname, newdir, newname, AtFlags::empty()))
}

/// Links the object behind `fd` to a name: a file of [`tmpfile`], or an `O_PATH` descriptor of anything but a
/// directory.
pub fn link_fd(fd: BorrowedFd<'_>, newdir: BorrowedFd<'_>, newname: &CStr) -> Result<()> {
    match call(Call::Link, || rustix::fs::linkat(fd, c"", newdir, newname, AtFlags::EMPTY_PATH)) {
        // Without CAP_DAC_READ_SEARCH, AT_EMPTY_PATH is refused and the path through /proc works.
        Err(SysError { errno: Errno::NOENT | Errno::PERM, .. }) => {
            let path = ProcFd::of(fd);
            let from = path.as_c_str();
            match call(Call::Link, || rustix::fs::linkat(CWD, from, newdir, newname, AtFlags::SYMLINK_FOLLOW))
            {
                // An object without a name appears to lie on procfs, so linkat answers EXDEV.
                Err(SysError { errno: Errno::XDEV, call }) => Err(SysError::new(call, Errno::NOENT)),
                linked => linked,
            }
        }
        done => done,
    }
}

/// Removes a name of anything but a directory.
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
    // Some file systems refuse renameat2 itself, even without flags.
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

/// Emulates `NOREPLACE` by link and unlink on file systems without rename flags (GlusterFS). The file has a name at
/// every moment, and no other file is replaced. Returns `refused` for objects that cannot be linked, such as
/// directories.
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
    // The file must not keep two names: the error is returned even if the new name cannot be removed.
    unlink(newdir, new).and(Err(error))
}

/// Like [`rename`], also for objects that a server without `NOREPLACE` cannot link, such as directories: the new name is
/// looked at right before. An object that gets it in between, out of band, is replaced if rename(2) may replace it.
pub fn rename_if_free(
    olddir: BorrowedFd<'_>,
    old: &CStr,
    newdir: BorrowedFd<'_>,
    new: &CStr,
    flags: RenameFlags,
) -> Result<()> {
    match rename(olddir, old, newdir, new, flags) {
        Err(refused) if refused.errno == Errno::INVAL && flags == RenameFlags::NOREPLACE => {
            match stat(newdir, new) {
                Ok(_) => Err(SysError { errno: Errno::EXIST, ..refused }),
                Err(missing) if missing.errno == Errno::NOENT => {
                    rename(olddir, old, newdir, new, RenameFlags::empty())
                }
                Err(error) => Err(error),
            }
        }
        done => done,
    }
}

/// Returns a symbolic link's target. With an empty name, `dir` is an `O_PATH` descriptor of the link.
pub fn readlink(dir: BorrowedFd<'_>, name: &CStr) -> Result<Vec<u8>> {
    call(Call::Readlink, || rustix::fs::readlinkat(dir, name, Vec::new())).map(|target| target.into_bytes())
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

#[cfg(test)]
mod tests;
