//! Where steps are really taken: a plain directory, or a mounted pool.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use fsstack_lab::Pool;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::act::{Step, Target};
use crate::tree::{NOWHERE, Node, SPAN, Seen, Told};

/// A file system that steps are taken on.
pub(crate) trait Ground {
    /// Takes a step.
    fn take(&mut self, step: &Step) -> Told;
    /// The whole tree.
    fn seen(&self) -> Seen;
}

/// A directory of whatever file system the machine's temporary files are on.
pub(crate) struct Directory(TempDir);

impl Directory {
    pub(crate) fn fresh() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Ground for Directory {
    fn take(&mut self, step: &Step) -> Told {
        told(on_path(self.0.path(), step))
    }

    fn seen(&self) -> Seen {
        walk(self.0.path())
    }
}

/// A mounted pool, whose daemon dies at `Step::Crash`.
pub(crate) struct PoolGround(Pool);

impl PoolGround {
    pub(crate) fn over(pool: Pool) -> Self {
        Self(pool)
    }
}

impl Ground for PoolGround {
    fn take(&mut self, step: &Step) -> Told {
        if let Step::Crash = step {
            self.0.kill_daemon();
            self.0.remount();
        }
        told(on_path(self.0.path(), step))
    }

    fn seen(&self) -> Seen {
        walk(self.0.path())
    }
}

fn on_path(root: &Path, step: &Step) -> io::Result<()> {
    match step {
        Step::Create(path) => File::create_new(root.join(path)).map(drop),
        Step::Mkdir(path) => fs::create_dir(root.join(path)),
        Step::Symlink(path) => symlink(NOWHERE, root.join(path)),
        Step::Link(from, to) => fs::hard_link(root.join(from), root.join(to)),
        Step::Write(path, offset, byte) => {
            File::options().write(true).open(root.join(path))?.write_all_at(&[*byte; SPAN], *offset)
        }
        Step::Truncate(path, size) => File::options().write(true).open(root.join(path))?.set_len(*size),
        Step::Rename(from, to, target) => {
            let flags = match target {
                Target::Anything => RenameFlags::empty(),
                Target::Nothing => RenameFlags::NOREPLACE,
            };
            Ok(renameat_with(CWD, root.join(from), CWD, root.join(to), flags)?)
        }
        Step::Unlink(path) => fs::remove_file(root.join(path)),
        Step::Rmdir(path) => fs::remove_dir(root.join(path)),
        Step::Crash => Ok(()),
    }
}

fn told(done: io::Result<()>) -> Told {
    done.map_err(|e| Errno::from_io_error(&e).unwrap())
}

fn walk(root: &Path) -> Seen {
    let mut seen = Seen::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let node = match meta.file_type() {
                kind if kind.is_dir() => Node::Directory,
                kind if kind.is_symlink() => Node::Symlink(fs::read_link(&path).unwrap()),
                _ => Node::File { bytes: fs::read(&path).unwrap(), links: meta.nlink() },
            };
            if node == Node::Directory {
                waiting.push(path.clone());
            }
            let twice = seen.insert(path.strip_prefix(root).unwrap().to_owned(), node);
            assert_eq!(twice, None, "{} is listed twice", path.display());
        }
    }
    seen
}
