//! Real test beds, with steps by path: a plain directory, or a mounted pool.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use fsstack_lab::Pool;
use rustix::fs::{
    CWD, Mode, OFlags, RawDir, RenameFlags, SeekFrom, XattrFlags, copy_file_range, lgetxattr, llistxattr,
    removexattr, renameat_with, seek, setxattr,
};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::act::Step;
use crate::tree::{DIR_MODE, FILE_MODE, NOWHERE, Node, SPAN, Seen, Told, VALUE, Xattrs};

/// A file system for steps.
pub(crate) trait TestBed {
    /// Runs a step.
    fn take(&mut self, step: &Step) -> Told;
    /// The whole tree.
    fn seen(&self) -> Seen;
}

/// A directory on the file system of the machine's temporary files.
pub(crate) struct Directory(TempDir);

impl Directory {
    pub(crate) fn fresh() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl TestBed for Directory {
    fn take(&mut self, step: &Step) -> Told {
        on_path(self.0.path(), step)
    }

    fn seen(&self) -> Seen {
        walk(self.0.path())
    }
}

/// A mounted pool, whose daemon is killed at `Step::Crash`.
pub(crate) struct PoolGround(Pool);

impl PoolGround {
    pub(crate) fn over(pool: Pool) -> Self {
        Self(pool)
    }
}

impl TestBed for PoolGround {
    fn take(&mut self, step: &Step) -> Told {
        match step {
            Step::Crash => {
                self.0.kill_daemon();
                self.0.remount();
            }
            Step::Remount => self.0.remount(),
            _ => {}
        }
        on_path(self.0.path(), step)
    }

    fn seen(&self) -> Seen {
        walk(self.0.path())
    }
}

fn on_path(root: &Path, step: &Step) -> Told {
    if let Step::List(path, room) = step {
        let mut names = list(&root.join(path), *room).map_err(|e| errno(&e))?;
        names.sort();
        return Ok(names);
    }
    change(root, step).map(|()| Vec::new()).map_err(|e| errno(&e))
}

fn change(root: &Path, step: &Step) -> io::Result<()> {
    match step {
        Step::Create(path) => {
            File::options().write(true).create_new(true).mode(FILE_MODE).open(root.join(path)).map(drop)
        }
        Step::Mkdir(path) => fs::DirBuilder::new().mode(DIR_MODE).create(root.join(path)),
        Step::Symlink(path) => symlink(NOWHERE, root.join(path)),
        Step::Link(from, to) => fs::hard_link(root.join(from), root.join(to)),
        Step::Write(path, offset, byte) => {
            File::options().write(true).open(root.join(path))?.write_all_at(&[*byte; SPAN], *offset)
        }
        Step::Append(path, byte) => {
            File::options().append(true).open(root.join(path))?.write_all(&[*byte; SPAN])
        }
        Step::Truncate(path, size) => File::options().write(true).open(root.join(path))?.set_len(*size),
        Step::Copy(from, to) => copy(&root.join(from), &root.join(to)),
        Step::Rename(from, to, flags) => rename(&root.join(from), &root.join(to), *flags),
        Step::Unlink(path) => fs::remove_file(root.join(path)),
        Step::Rmdir(path) => fs::remove_dir(root.join(path)),
        Step::Chmod(path, mode) => fs::set_permissions(root.join(path), fs::Permissions::from_mode(*mode)),
        Step::SetXattr(path, name, byte) => {
            Ok(setxattr(root.join(path), *name, &[*byte; VALUE], XattrFlags::empty())?)
        }
        Step::RemoveXattr(path, name) => Ok(removexattr(root.join(path), *name)?),
        Step::List(..) | Step::Crash | Step::Remount => Ok(()),
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let from = File::open(from)?;
    let to = File::options().write(true).open(to)?;
    let (mut at, mut there) = (0, 0);
    while 0 < copy_file_range(&from, Some(&mut at), &to, Some(&mut there), 1 << 20)? {}
    Ok(())
}

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
    Ok(renameat_with(CWD, from, CWD, to, flags)?)
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Lists a directory, which is closed and reopened after every `room` names.
fn list(dir: &Path, room: usize) -> io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    let mut at = 0;
    loop {
        let fd = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        seek(&fd, SeekFrom::Start(at))?;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(&fd, &mut buffer);
        let mut taken = 0;
        while taken < room {
            let Some(entry) = entries.next() else { break };
            let entry = entry?;
            at = entry.next_entry_cookie();
            taken += 1;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                names.push(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()).into());
            }
        }
        if taken == 0 {
            return Ok(names);
        }
    }
}

fn walk(root: &Path) -> Seen {
    let mut seen = Seen::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let (mode, links) = (meta.mode() & 0o7777, meta.nlink());
            let node = match meta.file_type() {
                kind if kind.is_dir() => Node::Directory { mode, xattrs: xattrs(&path) },
                kind if kind.is_symlink() => Node::Symlink { target: fs::read_link(&path).unwrap(), links },
                _ => {
                    let bytes = fs::read(&path).unwrap();
                    assert_eq!(meta.len(), bytes.len() as u64, "{}", path.display());
                    Node::File { mode, xattrs: xattrs(&path), links, bytes }
                }
            };
            if matches!(node, Node::Directory { .. }) {
                waiting.push(path.clone());
            }
            let twice = seen.insert(path.strip_prefix(root).unwrap().to_owned(), node);
            assert_eq!(twice, None, "{} is listed twice", path.display());
        }
    }
    seen
}

fn xattrs(path: &Path) -> Xattrs {
    let mut names = vec![0; 4096];
    let len = llistxattr(path, &mut names[..]).unwrap();
    let user = names[..len].split_inclusive(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    user.map(|name| {
        let name = CStr::from_bytes_with_nul(name).unwrap();
        let mut value = vec![0; 4096];
        let len = lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(len);
        (CString::from(name), value)
    })
    .collect()
}
