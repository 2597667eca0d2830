//! Acts of a program, below a directory, by relative paths.

use fastrand::Rng;
use rustix::fs::{FallocateFlags, FileType, RenameFlags};

use crate::shown::{ACLS, SET_TIMES};

/// Directories, besides the one that all is in.
const DIRS: [&str; 4] = ["p", "q", "p/s", "r"];

/// Names of files in each directory.
const FILES: u64 = 8;

/// Files, and directories, that a program holds open.
pub(crate) const SLOTS: usize = 4;

/// The ways of fallocate(2) that file systems on FUSE have.
const ALLOCATIONS: [FallocateFlags; 4] = [
    FallocateFlags::empty(),
    FallocateFlags::KEEP_SIZE,
    FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE),
    FallocateFlags::ZERO_RANGE,
];

/// Modes of files, and of directories.
const MODES: [u32; 8] = [0o600, 0o640, 0o644, 0o666, 0o755, 0o4755, 0o2755, 0o6777];
const DIR_MODES: [u32; 8] = [0o700, 0o750, 0o755, 0o777, 0o777, 0o1777, 0o2775, 0o3777];

/// Users that act, and that objects belong to.
pub(crate) const USERS: [u32; 3] = [0, 1000, 2000];

/// An act, with all that is random in it.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Rename(String, String),
    RenameWith(String, String, RenameFlags),
    RenameDir(String, String),
    Link(String, String),
    Symlink(String, String),
    Readlink(String),
    Special(String, FileType),
    Create(String, u32),
    Write(String, u8, usize),
    Append(String, u8),
    Truncate(String, u64),
    Unlink(String),
    Mkdir(String, u32),
    Rmdir(String),
    Chmod(String, u32),
    Chown(String, u32, u32),
    SetTime(String, u64),
    SetXattr(String, u8),
    RemoveXattr(String),
    Xattr(String),
    SetAcl(String, &'static str, u32, u8),
    RemoveAcl(String, &'static str),
    Stat(String),
    List(String),
    Read(String),
    Open(usize, String),
    OpenNew(usize, String, u32),
    OpenToAppend(usize, String),
    OpenUnnamed(usize),
    LinkOpen(usize, String),
    WriteOpen(usize, u64, u8),
    ReadOpen(usize),
    StatOpen(usize),
    ChmodOpen(usize, u32),
    TruncateOpen(usize, u64),
    Allocate(usize, FallocateFlags, u64, u64),
    CopyRange(usize, usize, u64, u64),
    SyncOpen(usize),
    CloseOpen(usize),
    OpenDir(usize, String),
    ListOpenDir(usize),
    StatOpenDir(usize),
    ChmodOpenDir(usize, u32),
    CreateIn(usize, String),
    MkdirIn(usize, String),
    UnlinkIn(usize, String),
    RenameIn(usize, String, usize, String),
}

impl Act {
    pub(crate) fn any(dice: &mut Rng) -> Self {
        let byte = dice.u8(b'a'..=b'z');
        let slot = dice.usize(..SLOTS);
        let (from, to) = (file(dice), file(dice));
        match dice.u64(..90) {
            0..=6 => Self::Rename(from, to),
            7 => Self::RenameWith(from, to, RenameFlags::EXCHANGE),
            8 => Self::RenameWith(from, to, RenameFlags::NOREPLACE),
            9 | 10 => Self::RenameDir(dir(dice), dir(dice)),
            11..=13 => Self::Link(from, to),
            14 => Self::Symlink(from, to),
            15 => Self::Readlink(from),
            16 | 17 => Self::Create(from, mode(dice)),
            18..=20 => Self::Write(from, byte, size(dice)),
            21 => Self::Append(from, byte),
            22 => Self::Truncate(from, dice.u64(..9000)),
            23 | 24 => Self::Unlink(from),
            25..=29 => Self::Mkdir(dir(dice), dir_mode(dice)),
            30 => Self::Rmdir(dir(dice)),
            31 => Self::Chmod(from, mode(dice)),
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
            59..=87 => Self::any_other(dice, slot, from, byte),
            _ => Self::CloseOpen(slot),
        }
    }

    /// One of rights, attributes, open files or open directories.
    fn any_other(dice: &mut Rng, slot: usize, from: String, byte: u8) -> Self {
        let either = |dice: &mut Rng, file: String| if dice.bool() { file } else { dir(dice) };
        let offset_and_size = |dice: &mut Rng| (dice.u64(..9000), dice.u64(1..9000));
        match dice.u64(59..88) {
            59 => Self::Chmod(dir(dice), dir_mode(dice)),
            60 | 61 => Self::Chown(either(dice, from), user(dice), user(dice)),
            62 => Self::RemoveXattr(from),
            63 => Self::SetXattr(dir(dice), byte),
            64 => Self::Xattr(dir(dice)),
            65 => Self::Stat(dir(dice)),
            66 => Self::OpenToAppend(slot, from),
            67 | 68 => {
                let (offset, size) = offset_and_size(dice);
                Self::Allocate(slot, ALLOCATIONS[dice.usize(..ALLOCATIONS.len())], offset, size)
            }
            69 => {
                let (offset, size) = offset_and_size(dice);
                Self::CopyRange(slot, dice.usize(..SLOTS), offset, size)
            }
            70 | 71 => Self::SetAcl(from, ACLS[0], user(dice), dice.u8(..8)),
            72 => Self::SetAcl(dir(dice), ACLS[dice.usize(..ACLS.len())], user(dice), dice.u8(..8)),
            73 => Self::RemoveAcl(either(dice, from), ACLS[dice.usize(..ACLS.len())]),
            74 => Self::Special(from, if dice.bool() { FileType::Fifo } else { FileType::Socket }),
            75 | 76 => Self::OpenNew(slot, from, mode(dice)),
            77 => Self::ChmodOpen(slot, mode(dice)),
            78 | 79 => Self::OpenDir(slot, dir(dice)),
            80 | 81 => Self::ListOpenDir(slot),
            82 => Self::StatOpenDir(slot),
            83 => Self::ChmodOpenDir(slot, dir_mode(dice)),
            84 => Self::CreateIn(slot, name(dice)),
            85 => Self::MkdirIn(slot, if dice.bool() { "s".to_owned() } else { name(dice) }),
            86 => Self::UnlinkIn(slot, name(dice)),
            _ => Self::RenameIn(slot, name(dice), dice.usize(..SLOTS), name(dice)),
        }
    }

    /// Whether nothing changes by it.
    pub(crate) fn only_asks(&self) -> bool {
        matches!(
            self,
            Self::Readlink(_)
                | Self::Xattr(_)
                | Self::Stat(_)
                | Self::List(_)
                | Self::Read(_)
                | Self::OpenDir(..)
        )
    }

    /// Whether it is about what is open.
    pub(crate) fn is_of_what_is_open(&self) -> bool {
        matches!(self, Self::LinkOpen(..))
            || self.file_in_use().is_some()
            || self.dirs_in_use().next().is_some()
    }

    /// The open directories that it works in.
    pub(crate) fn dirs_in_use(&self) -> impl Iterator<Item = usize> {
        let (first, second) = match self {
            Self::ListOpenDir(slot)
            | Self::StatOpenDir(slot)
            | Self::ChmodOpenDir(slot, _)
            | Self::CreateIn(slot, _)
            | Self::MkdirIn(slot, _)
            | Self::UnlinkIn(slot, _) => (Some(*slot), None),
            Self::RenameIn(from, _, to, _) => (Some(*from), Some(*to)),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// The open file that it works with.
    pub(crate) fn file_in_use(&self) -> Option<usize> {
        match self {
            Self::WriteOpen(slot, ..)
            | Self::ReadOpen(slot)
            | Self::StatOpen(slot)
            | Self::ChmodOpen(slot, _)
            | Self::TruncateOpen(slot, _)
            | Self::Allocate(slot, ..)
            | Self::CopyRange(_, slot, ..)
            | Self::SyncOpen(slot) => Some(*slot),
            _ => None,
        }
    }

    /// Where it puts a file that it opens.
    pub(crate) fn opens(&self) -> Option<usize> {
        match self {
            Self::Open(slot, _)
            | Self::OpenNew(slot, ..)
            | Self::OpenToAppend(slot, _)
            | Self::OpenUnnamed(slot) => Some(*slot),
            _ => None,
        }
    }

    /// Whether it may be ENOSPC on a full branch, or lets later writes be so (docs/reliability.md).
    pub(crate) fn is_refused_on_a_full_branch(&self) -> bool {
        matches!(
            self,
            Self::Link(..)
                | Self::LinkOpen(..)
                | Self::SetXattr(..)
                | Self::RemoveXattr(_)
                | Self::SetAcl(..)
                | Self::RemoveAcl(..)
        )
    }

    pub(crate) fn is_link(&self) -> bool {
        matches!(self, Self::Link(..) | Self::LinkOpen(..))
    }

    pub(crate) fn is_rename(&self) -> bool {
        matches!(self, Self::Rename(..) | Self::RenameWith(..) | Self::RenameDir(..) | Self::RenameIn(..))
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
}

/// Mostly small, so that many calls are made.
fn size(dice: &mut Rng) -> usize {
    let most = if dice.u64(..8) == 0 { 400_000 } else { 20_000 };
    dice.usize(..most)
}

fn dir(dice: &mut Rng) -> String {
    DIRS[dice.usize(..DIRS.len())].to_owned()
}

fn mode(dice: &mut Rng) -> u32 {
    MODES[dice.usize(..MODES.len())]
}

fn dir_mode(dice: &mut Rng) -> u32 {
    DIR_MODES[dice.usize(..DIR_MODES.len())]
}

fn user(dice: &mut Rng) -> u32 {
    USERS[dice.usize(..USERS.len())]
}

fn name(dice: &mut Rng) -> String {
    format!("f{}", dice.u64(..FILES))
}

fn file(dice: &mut Rng) -> String {
    // More are at the top.
    let above = DIRS.get(dice.usize(..DIRS.len() + 2)).map_or(String::new(), |dir| format!("{dir}/"));
    format!("{above}{}", name(dice))
}
