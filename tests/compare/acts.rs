//! Acts of a program, below a directory, by relative paths.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, OFlags, RenameFlags, XattrFlags, copy_file_range, fallocate, getxattr,
    linkat, removexattr, renameat_with, setxattr,
};

/// Directories, besides the one that all is in.
const DIRS: [&str; 4] = ["p", "q", "p/s", "r"];

/// Names of files in each directory.
const FILES: u64 = 8;

/// Files that a program holds open.
pub(crate) const SLOTS: usize = 4;

/// The extended attribute that programs set.
const XATTR: &str = "user.mark";

/// The ways of fallocate(2) that file systems on FUSE have.
const ALLOCATIONS: [FallocateFlags; 4] = [
    FallocateFlags::empty(),
    FallocateFlags::KEEP_SIZE,
    FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE),
    FallocateFlags::ZERO_RANGE,
];

/// Times that programs set are before this many seconds of the epoch; others are the present.
const SET_TIMES: u64 = 1000;

/// An act, with all that is random in it.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Rename(String, String),
    RenameWith(String, String, RenameFlags),
    RenameDir(String, String),
    Link(String, String),
    Symlink(String, String),
    Readlink(String),
    Create(String),
    Write(String, u8, usize),
    Append(String, u8),
    Truncate(String, u64),
    Unlink(String),
    Mkdir(String),
    Rmdir(String),
    Chmod(String, u32),
    Chown(String, u32),
    SetTime(String, u64),
    SetXattr(String, u8),
    RemoveXattr(String),
    Xattr(String),
    Stat(String),
    List(String),
    Read(String),
    Open(usize, String),
    OpenToAppend(usize, String),
    OpenUnnamed(usize),
    LinkOpen(usize, String),
    WriteOpen(usize, u64, u8),
    ReadOpen(usize),
    StatOpen(usize),
    TruncateOpen(usize, u64),
    Allocate(usize, FallocateFlags, u64, u64),
    CopyRange(usize, usize, u64, u64),
    SyncOpen(usize),
    CloseOpen(usize),
}

impl Act {
    pub(crate) fn any(dice: &mut Rng) -> Self {
        let byte = dice.u8(b'a'..=b'z');
        let slot = dice.usize(..SLOTS);
        let (from, to) = (file(dice), file(dice));
        let dir = |dice: &mut Rng| DIRS[dice.usize(..DIRS.len())].to_owned();
        let offset_and_size = |dice: &mut Rng| (dice.u64(..9000), dice.u64(1..9000));
        match dice.u64(..70) {
            0..=6 => Self::Rename(from, to),
            7 => Self::RenameWith(from, to, RenameFlags::EXCHANGE),
            8 => Self::RenameWith(from, to, RenameFlags::NOREPLACE),
            9 | 10 => Self::RenameDir(dir(dice), dir(dice)),
            11..=13 => Self::Link(from, to),
            14 => Self::Symlink(from, to),
            15 => Self::Readlink(from),
            16 | 17 => Self::Create(from),
            18..=20 => Self::Write(from, byte, size(dice)),
            21 => Self::Append(from, byte),
            22 => Self::Truncate(from, dice.u64(..9000)),
            23 | 24 => Self::Unlink(from),
            25..=29 => Self::Mkdir(dir(dice)),
            30 => Self::Rmdir(dir(dice)),
            31 => Self::Chmod(from, [0o600, 0o640, 0o755][dice.usize(..3)]),
            32 => Self::SetTime(from, dice.u64(..SET_TIMES)),
            33 => Self::SetXattr(from, byte),
            34 => Self::Xattr(from),
            35..=38 => Self::Stat(from),
            39..=41 => Self::List(if dice.u64(..2) == 0 { String::new() } else { dir(dice) }),
            42..=44 => Self::Read(from),
            45..=47 => Self::Open(slot, from),
            48 => Self::OpenUnnamed(slot),
            49 => Self::LinkOpen(slot, to),
            50..=52 => Self::WriteOpen(slot, dice.u64(..9000), byte),
            53..=55 => Self::ReadOpen(slot),
            56 => Self::StatOpen(slot),
            57 => Self::TruncateOpen(slot, dice.u64(..9000)),
            58 => Self::SyncOpen(slot),
            59 => Self::Chmod(dir(dice), [0o700, 0o750, 0o755][dice.usize(..3)]),
            60 => Self::Chown(if dice.bool() { from } else { dir(dice) }, dice.u32(..3) * 1000),
            61 => Self::RemoveXattr(from),
            62 => Self::SetXattr(dir(dice), byte),
            63 => Self::Xattr(dir(dice)),
            64 => Self::Stat(dir(dice)),
            65 => Self::OpenToAppend(slot, from),
            66 | 67 => {
                let (offset, size) = offset_and_size(dice);
                Self::Allocate(slot, ALLOCATIONS[dice.usize(..ALLOCATIONS.len())], offset, size)
            }
            68 => {
                let (offset, size) = offset_and_size(dice);
                Self::CopyRange(slot, dice.usize(..SLOTS), offset, size)
            }
            _ => Self::CloseOpen(slot),
        }
    }

    /// Whether nothing changes by it.
    pub(crate) fn only_asks(&self) -> bool {
        matches!(self, Self::Readlink(_) | Self::Xattr(_) | Self::Stat(_) | Self::List(_) | Self::Read(_))
    }

    /// Whether it is about a file that is open.
    pub(crate) fn is_of_an_open_file(&self) -> bool {
        matches!(
            self,
            Self::LinkOpen(..)
                | Self::WriteOpen(..)
                | Self::ReadOpen(_)
                | Self::StatOpen(_)
                | Self::TruncateOpen(..)
                | Self::Allocate(..)
                | Self::CopyRange(..)
                | Self::SyncOpen(_)
        )
    }

    /// Whether it may be ENOSPC on a full branch, or lets later writes be so (docs/reliability.md).
    pub(crate) fn is_refused_on_a_full_branch(&self) -> bool {
        matches!(self, Self::Link(..) | Self::LinkOpen(..) | Self::SetXattr(..) | Self::RemoveXattr(_))
    }

    pub(crate) fn is_rename(&self) -> bool {
        matches!(self, Self::Rename(..) | Self::RenameWith(..) | Self::RenameDir(..))
    }

    /// The open file that may need more space by it.
    pub(crate) fn grows_open(&self) -> Option<usize> {
        match self {
            Self::WriteOpen(slot, ..) | Self::Allocate(slot, ..) | Self::CopyRange(_, slot, ..) => {
                Some(*slot)
            }
            _ => None,
        }
    }

    /// Does it below `top`, where `open` are the open files; the answer is what shows of it.
    pub(crate) fn take(&self, top: &Path, open: &mut [Option<File>; SLOTS]) -> io::Result<String> {
        let at = |name: &str| top.join(name);
        match self {
            Self::Rename(from, to) | Self::RenameDir(from, to) => fs::rename(at(from), at(to))?,
            Self::RenameWith(from, to, flags) => renameat_with(CWD, at(from), CWD, at(to), *flags)?,
            Self::Link(from, to) => fs::hard_link(at(from), at(to))?,
            Self::Symlink(target, name) => symlink(target, at(name))?,
            Self::Readlink(name) => return Ok(fs::read_link(at(name))?.display().to_string()),
            Self::Create(name) => drop(File::create_new(at(name))?),
            Self::Write(name, byte, size) => fs::write(at(name), vec![*byte; *size])?,
            Self::Append(name, byte) => {
                io::Write::write_all(&mut OpenOptions::new().append(true).open(at(name))?, &[*byte; 100])?;
            }
            Self::Truncate(name, size) => {
                OpenOptions::new().write(true).open(at(name))?.set_len(*size)?;
            }
            Self::Unlink(name) => fs::remove_file(at(name))?,
            Self::Mkdir(name) => fs::create_dir(at(name))?,
            Self::Rmdir(name) => fs::remove_dir(at(name))?,
            Self::Chmod(name, mode) => fs::set_permissions(at(name), Permissions::from_mode(*mode))?,
            Self::Chown(name, user) => chown(at(name), Some(*user), Some(*user))?,
            Self::SetTime(name, seconds) => {
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(*seconds);
                OpenOptions::new().write(true).open(at(name))?.set_modified(time)?;
            }
            Self::SetXattr(name, byte) => setxattr(at(name), XATTR, &[*byte; 20], XattrFlags::empty())?,
            Self::RemoveXattr(name) => removexattr(at(name), XATTR)?,
            Self::Xattr(name) => return mark(&at(name)),
            Self::Stat(name) => return attributes(&fs::symlink_metadata(at(name))?),
            Self::List(name) => return list(&at(name)),
            Self::Read(name) => return Ok(digest(&fs::read(at(name))?)),
            Self::Open(slot, name) => {
                open[*slot] = Some(OpenOptions::new().read(true).write(true).open(at(name))?);
            }
            Self::OpenToAppend(slot, name) => {
                open[*slot] = Some(OpenOptions::new().read(true).append(true).open(at(name))?);
            }
            Self::OpenUnnamed(slot) => {
                let mut options = OpenOptions::new();
                options.custom_flags(i32::try_from(OFlags::TMPFILE.bits()).unwrap());
                open[*slot] = Some(options.read(true).write(true).open(top)?);
            }
            Self::CloseOpen(slot) => open[*slot] = None,
            Self::CopyRange(from, to, offset, size) => return copy_range(open, (*from, *to), *offset, *size),
            Self::LinkOpen(slot, _)
            | Self::WriteOpen(slot, ..)
            | Self::ReadOpen(slot)
            | Self::StatOpen(slot)
            | Self::TruncateOpen(slot, _)
            | Self::Allocate(slot, ..)
            | Self::SyncOpen(slot) => {
                return open[*slot].as_ref().map_or(Ok(String::new()), |file| self.take_with(file, top));
            }
        }
        Ok(String::new())
    }

    /// Does it with the open file that it is about.
    fn take_with(&self, file: &File, top: &Path) -> io::Result<String> {
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
            Self::TruncateOpen(_, size) => file.set_len(*size)?,
            Self::Allocate(_, flags, offset, size) => fallocate(file, *flags, *offset, *size)?,
            Self::SyncOpen(_) => file.sync_all()?,
            other => unreachable!("{other:?} is not about an open file"),
        }
        Ok(String::new())
    }
}

/// Copies from the start of an open file to `offset` of another; the answer is how much.
fn copy_range(
    open: &[Option<File>; SLOTS],
    (from, to): (usize, usize),
    offset: u64,
    size: u64,
) -> io::Result<String> {
    let (Some(from), Some(to)) = (&open[from], &open[to]) else { return Ok(String::new()) };
    let (mut at, mut end) = (0, offset);
    while at < size {
        let left = usize::try_from(size - at).unwrap();
        if copy_file_range(from, Some(&mut at), to, Some(&mut end), left)? == 0 {
            break;
        }
    }
    Ok(at.to_string())
}

/// Mostly small, so that many calls are made.
fn size(dice: &mut Rng) -> usize {
    let most = if dice.u64(..8) == 0 { 400_000 } else { 20_000 };
    dice.usize(..most)
}

fn file(dice: &mut Rng) -> String {
    // More are at the top.
    let dir = DIRS.get(dice.usize(..DIRS.len() + 2)).map_or(String::new(), |dir| format!("{dir}/"));
    format!("{dir}f{}", dice.u64(..FILES))
}

/// Attributes that are the same on every file system. A time counts if a program set it.
pub(crate) fn attributes(stat: &fs::Metadata) -> io::Result<String> {
    let mode = stat.mode();
    let owner = stat.uid();
    if stat.is_dir() {
        return Ok(format!("directory {mode:o} of {owner}"));
    }
    let set = stat.modified()?.duration_since(SystemTime::UNIX_EPOCH).map_or(u64::MAX, |time| time.as_secs());
    let time = if set < SET_TIMES { format!(", of {set}") } else { String::new() };
    Ok(format!("{mode:o} of {owner}, {} bytes, {} links{time}", stat.len(), stat.nlink()))
}

/// The extended attribute of `path`.
pub(crate) fn mark(path: &Path) -> io::Result<String> {
    let mut value = [0; 64];
    let size = getxattr(path, XATTR, &mut value[..])?;
    Ok(String::from_utf8_lossy(&value[..size]).into_owned())
}

/// The names in `dir`, each as often as it is listed.
pub(crate) fn list(dir: &Path) -> io::Result<String> {
    let names: io::Result<Vec<_>> = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect();
    let mut names = names?;
    names.sort();
    Ok(names.join(OsStr::new(" ")).to_string_lossy().into_owned())
}

/// The runs of equal bytes.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let runs = bytes.chunk_by(|one, next| one == next);
    runs.map(|run| format!("{}{:?}", run.len(), char::from(run[0]))).collect::<Vec<_>>().join(" ")
}
