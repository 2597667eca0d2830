//! Operations that are always meaningful: they contain indices, taken modulo the number of existing objects.

use std::ffi::CStr;
use std::path::PathBuf;

use proptest::prelude::*;
use rustix::fs::RenameFlags;

use crate::tree::Tree;

/// An operation as generated: small and independent of the tree, so that it shrinks well.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Create(u8, u8),
    Mkdir(u8, u8),
    Symlink(u8, u8),
    Link(u8, u8, u8),
    Write(u8, u16, u8),
    Append(u8, u8),
    Truncate(u8, u16),
    Copy(u8, u8),
    Rename(u8, u8, u8),
    RenameNew(u8, u8, u8),
    Exchange(u8, u8),
    Unlink(u8),
    Rmdir(u8),
    Chmod(u8, u8),
    SetXattr(u8, u8, u8),
    RemoveXattr(u8, u8),
    List(u8, u8),
    Crash,
    Remount,
}

/// An operation on paths.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create(PathBuf),
    Mkdir(PathBuf),
    Symlink(PathBuf),
    Link(PathBuf, PathBuf),
    Write(PathBuf, u64, u8),
    Append(PathBuf, u8),
    Truncate(PathBuf, u64),
    /// Copies one file over the beginning of another.
    Copy(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf, RenameFlags),
    Unlink(PathBuf),
    Rmdir(PathBuf),
    Chmod(PathBuf, u32),
    SetXattr(PathBuf, &'static CStr, u8),
    RemoveXattr(PathBuf, &'static CStr),
    /// Lists a directory, reopened after every so many names.
    List(PathBuf, usize),
    /// Kills the daemon and mounts the pool again; no effect on a plain directory.
    Crash,
    /// The pool is unmounted and mounted again.
    Remount,
}

const NAMES: [&str; 6] = ["a", "b", "c", "dir", "e f", "\u{fc}"];
const XATTRS: [&CStr; 2] = [c"user.one", c"user.two"];
/// The owner keeps all rights, because the tests may run as an ordinary user.
const MODES: [u32; 5] = [0o755, 0o700, 0o751, 0o1777, 0o744];

/// Sequences of operations.
pub(crate) fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => any::<(u8, u8)>().prop_map(|(d, n)| Act::Create(d, n)),
        6 => any::<(u8, u8)>().prop_map(|(d, n)| Act::Mkdir(d, n)),
        1 => any::<(u8, u8)>().prop_map(|(d, n)| Act::Symlink(d, n)),
        2 => any::<(u8, u8, u8)>().prop_map(|(f, d, n)| Act::Link(f, d, n)),
        4 => any::<(u8, u16, u8)>().prop_map(|(f, at, byte)| Act::Write(f, at, byte)),
        1 => any::<(u8, u8)>().prop_map(|(f, byte)| Act::Append(f, byte)),
        1 => any::<(u8, u16)>().prop_map(|(f, size)| Act::Truncate(f, size)),
        1 => any::<(u8, u8)>().prop_map(|(from, to)| Act::Copy(from, to)),
        6 => any::<(u8, u8, u8)>().prop_map(|(e, d, n)| Act::Rename(e, d, n)),
        1 => any::<(u8, u8, u8)>().prop_map(|(e, d, n)| Act::RenameNew(e, d, n)),
        3 => any::<(u8, u8)>().prop_map(|(a, b)| Act::Exchange(a, b)),
        3 => any::<u8>().prop_map(Act::Unlink),
        2 => any::<u8>().prop_map(Act::Rmdir),
        2 => any::<(u8, u8)>().prop_map(|(e, mode)| Act::Chmod(e, mode)),
        2 => any::<(u8, u8, u8)>().prop_map(|(e, n, byte)| Act::SetXattr(e, n, byte)),
        1 => any::<(u8, u8)>().prop_map(|(e, n)| Act::RemoveXattr(e, n)),
        1 => any::<(u8, u8)>().prop_map(|(d, room)| Act::List(d, room)),
        1 => Just(Act::Crash),
        1 => Just(Act::Remount),
    ];
    prop::collection::vec(act, 1..48)
}

impl Act {
    /// Resolves to a step in this tree. If nothing fits, a missing name is used.
    pub(crate) fn choose(self, tree: &Tree) -> Step {
        let entry = |n: u8| pick(&tree.entries(), n).unwrap_or_else(|| "nothing".into());
        let file = |n: u8| pick(&tree.files(), n).unwrap_or_else(|| "nothing".into());
        let dir = |n: u8| pick(&tree.directories(), n).unwrap_or_default();
        let at = |n: u8, name: u8| dir(n).join(NAMES[usize::from(name) % NAMES.len()]);
        let xattr = |n: u8| XATTRS[usize::from(n) % XATTRS.len()];
        match self {
            Self::Create(dir, name) => Step::Create(at(dir, name)),
            Self::Mkdir(dir, name) => Step::Mkdir(at(dir, name)),
            Self::Symlink(dir, name) => Step::Symlink(at(dir, name)),
            Self::Link(from, dir, name) => Step::Link(entry(from), at(dir, name)),
            Self::Write(n, offset, byte) => Step::Write(file(n), u64::from(offset), byte),
            Self::Append(n, byte) => Step::Append(file(n), byte),
            Self::Truncate(n, size) => Step::Truncate(file(n), u64::from(size)),
            Self::Copy(from, to) => Step::Copy(file(from), file(to)),
            Self::Rename(from, dir, name) => Step::Rename(entry(from), at(dir, name), RenameFlags::empty()),
            Self::RenameNew(from, dir, name) => {
                Step::Rename(entry(from), at(dir, name), RenameFlags::NOREPLACE)
            }
            Self::Exchange(a, b) => Step::Rename(entry(a), entry(b), RenameFlags::EXCHANGE),
            Self::Unlink(n) => Step::Unlink(entry(n)),
            Self::Rmdir(n) => Step::Rmdir(entry(n)),
            Self::Chmod(n, mode) => Step::Chmod(entry(n), MODES[usize::from(mode) % MODES.len()]),
            Self::SetXattr(n, name, byte) => Step::SetXattr(entry(n), xattr(name), byte),
            Self::RemoveXattr(n, name) => Step::RemoveXattr(entry(n), xattr(name)),
            Self::List(n, room) => Step::List(dir(n), 1 + usize::from(room) % 4),
            Self::Crash => Step::Crash,
            Self::Remount => Step::Remount,
        }
    }
}

fn pick(paths: &[PathBuf], n: u8) -> Option<PathBuf> {
    paths.get(usize::from(n) % paths.len().max(1)).cloned()
}
