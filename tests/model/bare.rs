//! Test bed without a mount: the engine on three temporary directories.

use std::path::{Path, PathBuf};

use fsstack_engine::ops::{Change, New};
use tempfile::TempDir;

use crate::act::Step;
use crate::engine::{Answer, Engine, settings};
use crate::test_bed::TestBed;
use crate::tree::{DIR_MODE, FILE_MODE, NOWHERE, Node, SPAN, Seen, Told, VALUE};

/// The engine and its branches.
pub(crate) struct Bare {
    engine: Engine,
    _branches: [TempDir; 3],
}

impl Bare {
    /// Three empty branches with the placement `create`.
    pub(crate) fn fresh(create: &str) -> Self {
        let branches = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        let engine = Engine::over(branches.iter().map(TempDir::path), settings(create));
        Self { engine, _branches: branches }
    }

    fn change(&mut self, step: &Step) -> Answer<()> {
        let on = &mut self.engine;
        match step {
            Step::Create(path) => on.create(path, FILE_MODE),
            Step::Mkdir(path) => on.make(path, New::Dir(DIR_MODE)),
            Step::Symlink(path) => {
                let target = std::ffi::CString::new(NOWHERE).unwrap();
                on.make(path, New::Symlink(&target))
            }
            Step::Link(from, to) => on.link(from, to),
            Step::Write(path, offset, byte) => on.write(path, Some(*offset), &[*byte; SPAN]),
            Step::Append(path, byte) => on.write(path, None, &[*byte; SPAN]),
            Step::Truncate(path, size) => on.setattr(path, Change { size: Some(*size), ..Change::default() }),
            Step::Copy(from, to) => on.copy_range(from, to),
            Step::Rename(from, to, flags) => on.rename(from, to, *flags),
            Step::Unlink(path) => on.unlink(path),
            Step::Rmdir(path) => on.rmdir(path),
            Step::Chmod(path, mode) => on.setattr(path, Change { mode: Some(*mode), ..Change::default() }),
            Step::SetXattr(path, name, byte) => on.setxattr(path, name, &[*byte; VALUE]),
            Step::RemoveXattr(path, name) => on.removexattr(path, name),
            Step::Crash => {
                on.crash();
                Ok(())
            }
            Step::Remount => {
                on.remount();
                Ok(())
            }
            Step::List(..) => Ok(()),
        }
    }
}

impl TestBed for Bare {
    fn take(&mut self, step: &Step) -> Told {
        if let Step::List(path, room) = step {
            let mut names = self.engine.list(path, *room)?;
            names.sort();
            return Ok(names);
        }
        self.change(step).map(|()| Vec::new())
    }

    fn seen(&self) -> Seen {
        seen(&self.engine)
    }
}

/// The whole tree.
pub(crate) fn seen(engine: &Engine) -> Seen {
    let mut seen = Seen::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(dir) = waiting.pop() {
        for name in engine.list(&dir, usize::MAX).unwrap() {
            let path = dir.join(name);
            let node = node(engine, &path);
            if matches!(node, Node::Directory { .. }) {
                waiting.push(path.clone());
            }
            assert_eq!(seen.insert(path.clone(), node), None, "{} is listed twice", path.display());
        }
    }
    seen
}

fn node(engine: &Engine, path: &Path) -> Node {
    let stat = engine.find(path).unwrap().attr.stat;
    let (mode, links) = (stat.mode & 0o7777, u64::from(stat.nlink));
    match stat.kind() {
        fsstack_sys::Kind::Dir => Node::Directory { mode, xattrs: engine.xattrs(path).unwrap() },
        fsstack_sys::Kind::Symlink => Node::Symlink { target: engine.readlink(path).unwrap(), links },
        _ => {
            let bytes = engine.read(path).unwrap();
            assert_eq!(stat.size, bytes.len() as u64, "{}", path.display());
            Node::File { mode, xattrs: engine.xattrs(path).unwrap(), links, bytes }
        }
    }
}
