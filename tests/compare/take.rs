//! Doing the acts.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, XattrFlags, copy_file_range, fallocate, linkat, mkdirat, mknodat,
    openat, removexattr, renameat, renameat_with, setxattr, unlinkat,
};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::acts::{Act, SLOTS, USERS};
use crate::shown::{MARK, attributes, attributes_at, digest, list, list_open, mark};

/// Files and directories that a program holds open.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    pub(crate) files: [Option<File>; SLOTS],
    pub(crate) dirs: [Option<File>; SLOTS],
}

/// Runs `work` as `user`, whose group has the same number; the last of [`USERS`] is in the group of the one before, too.
pub(crate) fn acting_as<T>(user: u32, work: impl FnOnce() -> T) -> T {
    /// Becomes root again when it drops.
    struct Acting;
    impl Drop for Acting {
        fn drop(&mut self) {
            become_user(0);
        }
    }
    if user == 0 {
        return work();
    }
    let _acting = Acting;
    become_user(user);
    work()
}

/// The thread keeps the right to become root again.
fn become_user(user: u32) {
    if user == 0 {
        set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).unwrap();
    }
    let more = if user == USERS[2] { vec![Gid::from_raw(USERS[1])] } else { Vec::new() };
    set_thread_groups(&more).unwrap();
    set_thread_res_gid(Gid::from_raw(user), Gid::from_raw(user), Gid::ROOT).unwrap();
    if user != 0 {
        set_thread_res_uid(Uid::from_raw(user), Uid::from_raw(user), Uid::ROOT).unwrap();
    }
}

/// Opens that do not wait for another end of a pipe.
fn opens() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(i32::try_from(OFlags::NONBLOCK.bits()).unwrap());
    options
}

/// An access control list that lets `user` do what `rights` says.
fn acl(user: u32, rights: u8) -> Vec<u8> {
    const OWN: u32 = u32::MAX;
    let entries = [(1, 7, OWN), (2, rights, user), (4, 5, OWN), (0x10, 7, OWN), (0x20, rights & 5, OWN)];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        acl.extend_from_slice(&u16::to_le_bytes(tag));
        acl.extend_from_slice(&u16::from(rights).to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    acl
}

impl Act {
    /// Does it below `top`, with what is `open`; the answer is what shows of it.
    pub(crate) fn take(&self, top: &Path, open: &mut Opened) -> io::Result<String> {
        let at = |name: &str| top.join(name);
        match self {
            Self::Rename(from, to) | Self::RenameDir(from, to) => fs::rename(at(from), at(to))?,
            Self::RenameWith(from, to, flags) => renameat_with(CWD, at(from), CWD, at(to), *flags)?,
            Self::Link(from, to) => fs::hard_link(at(from), at(to))?,
            Self::Symlink(target, name) => symlink(target, at(name))?,
            Self::Readlink(name) => return Ok(fs::read_link(at(name))?.display().to_string()),
            Self::Special(name, kind) => special(&at(name), *kind)?,
            Self::Create(name, mode) => {
                drop(opens().write(true).create_new(true).mode(*mode).open(at(name))?)
            }
            Self::Write(name, byte, size) => {
                let mut file = opens().write(true).create(true).truncate(true).open(at(name))?;
                file.write_all(&vec![*byte; *size])?;
            }
            Self::Append(name, byte) => opens().append(true).open(at(name))?.write_all(&[*byte; 100])?,
            Self::Truncate(name, size) => opens().write(true).open(at(name))?.set_len(*size)?,
            Self::Unlink(name) => fs::remove_file(at(name))?,
            Self::Mkdir(name, mode) => mkdirat(CWD, at(name), Mode::from_raw_mode(*mode))?,
            Self::Rmdir(name) => fs::remove_dir(at(name))?,
            Self::Chmod(name, mode) => fs::set_permissions(at(name), Permissions::from_mode(*mode))?,
            Self::Chown(name, user, group) => chown(at(name), Some(*user), Some(*group))?,
            Self::SetTime(name, seconds) => {
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(*seconds);
                opens().write(true).open(at(name))?.set_modified(time)?;
            }
            Self::SetXattr(name, byte) => setxattr(at(name), MARK, &[*byte; 20], XattrFlags::empty())?,
            Self::RemoveXattr(name) => removexattr(at(name), MARK)?,
            Self::Xattr(name) => return mark(&at(name)),
            Self::SetAcl(name, which, user, rights) => {
                setxattr(at(name), *which, &acl(*user, *rights), XattrFlags::empty())?;
            }
            Self::RemoveAcl(name, which) => removexattr(at(name), *which)?,
            Self::Stat(name) => return attributes_at(&at(name)),
            Self::List(name) => return list(&at(name)),
            Self::Read(name) => return read(&at(name)),
            other => return other.take_with_open(top, open),
        }
        Ok(String::new())
    }

    /// Does it if it opens something, or is about what is open.
    fn take_with_open(&self, top: &Path, open: &mut Opened) -> io::Result<String> {
        let at = |name: &str| top.join(name);
        let Opened { files, dirs } = open;
        match self {
            Self::Open(slot, name) => files[*slot] = Some(opens().read(true).write(true).open(at(name))?),
            Self::OpenNew(slot, name, mode) => {
                let mut options = opens();
                options.read(true).write(true).create(true).truncate(true).mode(*mode);
                files[*slot] = Some(options.open(at(name))?);
            }
            Self::OpenToAppend(slot, name) => {
                files[*slot] = Some(opens().read(true).append(true).open(at(name))?);
            }
            Self::OpenUnnamed(slot) => {
                let mut options = OpenOptions::new();
                options.custom_flags(i32::try_from(OFlags::TMPFILE.bits()).unwrap());
                files[*slot] = Some(options.read(true).write(true).open(top)?);
            }
            Self::CloseOpen(slot) => (files[*slot], dirs[*slot]) = (None, None),
            Self::CopyRange(from, to, offset, size) => {
                return copy_range(files, (*from, *to), *offset, *size);
            }
            Self::OpenDir(slot, name) => dirs[*slot] = Some(File::open(at(name))?),
            Self::RenameIn(from, old, to, new) => {
                if let (Some(from), Some(to)) = (&dirs[*from], &dirs[*to]) {
                    renameat(from, old, to, new)?;
                }
            }
            Self::ListOpenDir(slot)
            | Self::StatOpenDir(slot)
            | Self::ChmodOpenDir(slot, _)
            | Self::CreateIn(slot, _)
            | Self::MkdirIn(slot, _)
            | Self::UnlinkIn(slot, _) => {
                return dirs[*slot].as_ref().map_or(Ok(String::new()), |dir| self.take_in(dir));
            }
            Self::LinkOpen(slot, _) => {
                return files[*slot].as_ref().map_or(Ok(String::new()), |file| self.take_of(file, top));
            }
            other => {
                let slot = other.file_in_use().unwrap();
                return files[slot].as_ref().map_or(Ok(String::new()), |file| other.take_of(file, top));
            }
        }
        Ok(String::new())
    }

    /// Does it with the open file that it is about.
    fn take_of(&self, file: &File, top: &Path) -> io::Result<String> {
        match self {
            Self::LinkOpen(_, to) => {
                let fd = format!("/proc/self/fd/{}", file.as_raw_fd());
                linkat(CWD, fd, CWD, top.join(to), AtFlags::SYMLINK_FOLLOW)?;
            }
            Self::WriteOpen(_, offset, byte) => file.write_all_at(&[*byte; 3000], *offset)?,
            Self::ReadOpen(_) => {
                let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).unwrap()];
                file.read_exact_at(&mut bytes, 0)?;
                return Ok(digest(&bytes));
            }
            Self::StatOpen(_) => return attributes(&file.metadata()?),
            Self::ChmodOpen(_, mode) => file.set_permissions(Permissions::from_mode(*mode))?,
            Self::TruncateOpen(_, size) => file.set_len(*size)?,
            Self::Allocate(_, flags, offset, size) => fallocate(file, *flags, *offset, *size)?,
            Self::SyncOpen(_) => file.sync_all()?,
            other => unreachable!("{other:?} is not about an open file"),
        }
        Ok(String::new())
    }

    /// Does it in the open directory that it is about.
    fn take_in(&self, dir: &File) -> io::Result<String> {
        match self {
            Self::ListOpenDir(_) => return list_open(dir),
            Self::StatOpenDir(_) => return attributes(&dir.metadata()?),
            Self::ChmodOpenDir(_, mode) => dir.set_permissions(Permissions::from_mode(*mode))?,
            Self::CreateIn(_, name) => {
                let how = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                drop(openat(dir, name, how, Mode::from_raw_mode(0o644))?);
            }
            Self::MkdirIn(_, name) => mkdirat(dir, name, Mode::from_raw_mode(0o755))?,
            Self::UnlinkIn(_, name) => unlinkat(dir, name, AtFlags::empty())?,
            other => unreachable!("{other:?} is not about an open directory"),
        }
        Ok(String::new())
    }
}

fn special(path: &Path, kind: FileType) -> io::Result<()> {
    Ok(mknodat(CWD, path, kind, Mode::from_raw_mode(0o644), 0)?)
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut opens().read(true).open(path)?, &mut bytes)?;
    Ok(digest(&bytes))
}

/// Copies from the start of an open file to `offset` of another; the answer is how much.
fn copy_range(
    files: &[Option<File>; SLOTS],
    (from, to): (usize, usize),
    offset: u64,
    size: u64,
) -> io::Result<String> {
    let (Some(from), Some(to)) = (&files[from], &files[to]) else { return Ok(String::new()) };
    let (mut at, mut end) = (0, offset);
    while at < size {
        let left = usize::try_from(size - at).unwrap();
        if copy_file_range(from, Some(&mut at), to, Some(&mut end), left)? == 0 {
            break;
        }
    }
    Ok(at.to_string())
}
