//! The tree that a pool shows, and leftovers on its branches.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fsstack_sys::Kind;
use tempfile::TempDir;

use crate::engine::{Engine, settings};
use crate::scenario::Scenario;

/// Object under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Dir { mode: u32, xattrs: BTreeMap<CString, Vec<u8>> },
    File { mode: u32, links: u32, text: String },
    Symlink(PathBuf),
}

/// A whole tree.
pub(crate) type Tree = BTreeMap<PathBuf, Entry>;

/// A pool of three branches.
pub(crate) struct TestBed {
    pub(crate) engine: Engine,
    branches: Vec<TempDir>,
}

impl TestBed {
    /// Three branches, filled by `prepare` before they are mounted.
    pub(crate) fn fresh(prepare: fn(&[&Path; 3])) -> Self {
        let branches: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        prepare(&branches.each_ref().map(TempDir::path));
        let engine = Engine::over(branches.iter().map(TempDir::path), settings("ff"));
        Self { engine, branches: branches.into() }
    }

    /// The tree that the pool shows.
    pub(crate) fn seen(&self) -> Tree {
        seen(&self.engine)
    }

    /// Branches that hold `name`, read from the branches.
    pub(crate) fn holders(&self, name: &str) -> Vec<usize> {
        (0..3).filter(|at| self.branches[*at].path().join(name).exists()).collect()
    }

    /// Leftovers on the branches.
    pub(crate) fn dirt(&self, seen: &Tree, scenario: &Scenario) -> Option<String> {
        let branches: Vec<&Path> = self.branches.iter().map(TempDir::path).collect();
        dirt(&branches, seen, scenario)
    }

    #[track_caller]
    pub(crate) fn assert_clean(&self, seen: &Tree, scenario: &Scenario) {
        assert_eq!(self.dirt(seen, scenario), None, "{}", scenario.name);
    }
}

/// The tree that the pool shows.
pub(crate) fn seen(engine: &Engine) -> Tree {
    let mut tree = Tree::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(dir) = waiting.pop() {
        for name in engine.list(&dir, usize::MAX).unwrap() {
            let path = dir.join(name);
            let stat = engine.find(&path).unwrap().attr.stat;
            let mode = stat.mode & 0o7777;
            let entry = match stat.kind() {
                Kind::Dir => Entry::Dir { mode, xattrs: engine.xattrs(&path).unwrap() },
                Kind::Symlink => Entry::Symlink(engine.readlink(&path).unwrap()),
                _ => Entry::File { mode, links: stat.nlink, text: text(engine.read(&path).unwrap()) },
            };
            if matches!(entry, Entry::Dir { .. }) {
                waiting.push(path.clone());
            }
            assert_eq!(tree.insert(path.clone(), entry), None, "{} is listed twice", path.display());
        }
    }
    tree
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// Names on the branches that the pool does not show, files on two branches at once, and copies of directories with
/// different attributes.
pub(crate) fn dirt(branches: &[&Path], seen: &Tree, scenario: &Scenario) -> Option<String> {
    let mut holders: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for branch in branches {
        let mut waiting = vec![branch.to_path_buf()];
        while let Some(dir) = waiting.pop() {
            for entry in fs::read_dir(&dir).unwrap() {
                let on_branch = entry.unwrap().path();
                let path = on_branch.strip_prefix(branch).unwrap().to_owned();
                let meta = on_branch.symlink_metadata().unwrap();
                let shown = seen.get(&path);
                let Some(shown) = shown else { return Some(format!("left over: {}", on_branch.display())) };
                match shown {
                    Entry::Dir { mode, xattrs } if meta.is_dir() => {
                        let kept = rustix::fs::lgetxattr(&on_branch, c"user.kept", &mut [0; 8][..]).is_ok();
                        let like = meta.mode() & 0o7777 == *mode && kept == xattrs.contains_key(c"user.kept");
                        if !like && !scenario.name.starts_with("chmod") {
                            return Some(format!("not like the directory: {}", on_branch.display()));
                        }
                        waiting.push(on_branch);
                    }
                    Entry::Dir { .. } => return Some(format!("hidden: {}", on_branch.display())),
                    Entry::File { .. } | Entry::Symlink(_) => *holders.entry(path).or_default() += 1,
                }
            }
        }
    }
    // Earlier copies may remain where an operation failed, and so may a replaced file on another branch where it was
    // interrupted: hidden, and removed with the file.
    let had_copies = ["duplicates", "hidden_copy", "rename_over_a_file", "exchange_files"];
    let had_copies = had_copies.iter().any(|name| scenario.name.contains(name));
    let twice = holders.into_iter().find(|(_, count)| *count > 1 && !had_copies);
    twice.map(|(path, count)| format!("{} is on {count} branches", path.display()))
}
