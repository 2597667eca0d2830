//! Acts that always mean something: they carry indices, taken modulo what exists when they are done.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use crate::tree::Tree;

/// An act as it is drawn: small, independent of the tree, so that it shrinks well.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Create(u8, u8),
    Mkdir(u8, u8),
    Symlink(u8, u8),
    Link(u8, u8, u8),
    Write(u8, u16, u8),
    Truncate(u8, u16),
    Rename(u8, u8, u8),
    RenameNew(u8, u8, u8),
    Unlink(u8),
    Rmdir(u8),
    Crash,
}

/// An act on paths that are there.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create(PathBuf),
    Mkdir(PathBuf),
    Symlink(PathBuf),
    Link(PathBuf, PathBuf),
    Write(PathBuf, u64, u8),
    Truncate(PathBuf, u64),
    Rename(PathBuf, PathBuf, Target),
    Unlink(PathBuf),
    Rmdir(PathBuf),
    /// The daemon is killed and the pool mounted again; nothing for a plain directory.
    Crash,
}

/// What a rename may find at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Anything,
    Nothing,
}

const NAMES: [&str; 6] = ["a", "b", "c", "dir", "e f", "\u{fc}"];

/// Sequences of acts.
pub(crate) fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => any::<(u8, u8)>().prop_map(|(d, n)| Act::Create(d, n)),
        5 => any::<(u8, u8)>().prop_map(|(d, n)| Act::Mkdir(d, n)),
        1 => any::<(u8, u8)>().prop_map(|(d, n)| Act::Symlink(d, n)),
        2 => any::<(u8, u8, u8)>().prop_map(|(f, d, n)| Act::Link(f, d, n)),
        4 => any::<(u8, u16, u8)>().prop_map(|(f, at, byte)| Act::Write(f, at, byte)),
        1 => any::<(u8, u16)>().prop_map(|(f, size)| Act::Truncate(f, size)),
        5 => any::<(u8, u8, u8)>().prop_map(|(e, d, n)| Act::Rename(e, d, n)),
        1 => any::<(u8, u8, u8)>().prop_map(|(e, d, n)| Act::RenameNew(e, d, n)),
        3 => any::<u8>().prop_map(Act::Unlink),
        2 => any::<u8>().prop_map(Act::Rmdir),
        1 => Just(Act::Crash),
    ];
    prop::collection::vec(act, 1..40)
}

impl Act {
    /// The step it means in this tree. Where nothing fits, a name that is not there is used.
    pub(crate) fn choose(self, tree: &Tree) -> Step {
        let entry = |n: u8| pick(&tree.entries(), n).unwrap_or_else(|| "nothing".into());
        let file = |n: u8| pick(&tree.files(), n).unwrap_or_else(|| "nothing".into());
        let at = |dir: u8, name: u8| {
            let dir = pick(&tree.directories(), dir).unwrap_or_default();
            dir.join(NAMES[usize::from(name) % NAMES.len()])
        };
        match self {
            Self::Create(dir, name) => Step::Create(at(dir, name)),
            Self::Mkdir(dir, name) => Step::Mkdir(at(dir, name)),
            Self::Symlink(dir, name) => Step::Symlink(at(dir, name)),
            Self::Link(from, dir, name) => Step::Link(entry(from), at(dir, name)),
            Self::Write(n, offset, byte) => Step::Write(file(n), u64::from(offset), byte),
            Self::Truncate(n, size) => Step::Truncate(file(n), u64::from(size)),
            Self::Rename(from, dir, name) => Step::Rename(entry(from), at(dir, name), Target::Anything),
            Self::RenameNew(from, dir, name) => Step::Rename(entry(from), at(dir, name), Target::Nothing),
            Self::Unlink(n) => Step::Unlink(entry(n)),
            Self::Rmdir(n) => Step::Rmdir(entry(n)),
            Self::Crash => Step::Crash,
        }
    }
}

fn pick(paths: &[PathBuf], n: u8) -> Option<PathBuf> {
    paths.get(usize::from(n) % paths.len().max(1)).map(|path| Path::new(path).to_owned())
}
