//! Operations of a program on a pool, one or two at a time.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fsstack_engine::files::Sync;
use fsstack_engine::jobs::{DrainOrder, HiddenCopies, JobState, Manner};
use fsstack_engine::ops::{Change, New, WriteTerms};
use fsstack_engine::{Caller, OpError};
use fsstack_pool::EntryNameBuf;
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{Errno, OFlags};

use crate::engine::{Answer, Engine};
use crate::shown::shown;

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Creates a file with this content.
    Create(PathBuf, String),
    /// Creates a file without a name, writes this content, and links it.
    Unnamed(PathBuf, String),
    Mkdir(PathBuf, u32),
    /// Makes a symlink to this target.
    Symlink(PathBuf, String),
    Fifo(PathBuf),
    Append(PathBuf, String),
    /// Cuts a file to this size.
    Truncate(PathBuf, usize),
    Chmod(PathBuf, u32),
    /// Gives it an owner, and the group of the same number.
    Chown(PathBuf, u32),
    /// Sets the attribute [`NOTE`].
    Note(PathBuf, String),
    /// Gives a further user the group's rights.
    Grant(PathBuf, u32),
    /// Appends with O_SYNC.
    Synced(PathBuf, String),
    Remove(PathBuf),
    Rmdir(PathBuf),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf),
    Exchange(PathBuf, PathBuf),
    Fsync(PathBuf),
    Fdatasync(PathBuf),
    /// COMMIT of an NFS client: the kernel knows only the handle.
    Commit(PathBuf),
    FsyncDir(PathBuf),
    Syncfs,
    /// Looks every name up.
    Look,
    /// Adds a branch to the mounted pool.
    Join(usize),
    /// Empties a branch.
    Drain(usize),
}

pub(crate) fn create(path: &str, text: &str) -> Act {
    Act::Create(path.into(), text.to_owned())
}

pub(crate) fn unnamed(path: &str, text: &str) -> Act {
    Act::Unnamed(path.into(), text.to_owned())
}

pub(crate) fn mkdir(path: &str) -> Act {
    Act::Mkdir(path.into(), 0o700)
}

pub(crate) fn symlink(path: &str, target: &str) -> Act {
    Act::Symlink(path.into(), target.to_owned())
}

pub(crate) fn fifo(path: &str) -> Act {
    Act::Fifo(path.into())
}

pub(crate) fn truncate(path: &str, size: usize) -> Act {
    Act::Truncate(path.into(), size)
}

pub(crate) fn note(path: &str, value: &str) -> Act {
    Act::Note(path.into(), value.to_owned())
}

pub(crate) fn append(path: &str, text: &str) -> Act {
    Act::Append(path.into(), text.to_owned())
}

pub(crate) fn chmod(path: &str, mode: u32) -> Act {
    Act::Chmod(path.into(), mode)
}

pub(crate) fn chown(path: &str, owner: u32) -> Act {
    Act::Chown(path.into(), owner)
}

pub(crate) fn grant(path: &str, user: u32) -> Act {
    Act::Grant(path.into(), user)
}

pub(crate) fn synced(path: &str, text: &str) -> Act {
    Act::Synced(path.into(), text.to_owned())
}

pub(crate) fn fdatasync(path: &str) -> Act {
    Act::Fdatasync(path.into())
}

pub(crate) fn remove(path: &str) -> Act {
    Act::Remove(path.into())
}

pub(crate) fn rmdir(path: &str) -> Act {
    Act::Rmdir(path.into())
}

pub(crate) fn rename(from: &str, to: &str) -> Act {
    Act::Rename(from.into(), to.into())
}

pub(crate) fn exchange(one: &str, other: &str) -> Act {
    Act::Exchange(one.into(), other.into())
}

pub(crate) fn link(from: &str, to: &str) -> Act {
    Act::Link(from.into(), to.into())
}

pub(crate) fn fsync(path: &str) -> Act {
    Act::Fsync(path.into())
}

pub(crate) fn commit(path: &str) -> Act {
    Act::Commit(path.into())
}

pub(crate) fn fsync_dir(path: &str) -> Act {
    Act::FsyncDir(path.into())
}

impl Act {
    pub(crate) fn is_sync(&self) -> bool {
        matches!(
            self,
            Self::Fsync(_)
                | Self::Fdatasync(_)
                | Self::Commit(_)
                | Self::FsyncDir(_)
                | Self::Syncfs
                | Self::Synced(..)
        )
    }

    pub(crate) fn sets_attributes(&self) -> bool {
        matches!(self, Self::Chmod(..) | Self::Chown(..) | Self::Grant(..) | Self::Note(..))
    }

    /// Names that it removes, makes or replaces.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        match self {
            Self::Create(path, _)
            | Self::Unnamed(path, _)
            | Self::Mkdir(path, _)
            | Self::Symlink(path, _)
            | Self::Fifo(path)
            | Self::Remove(path)
            | Self::Rmdir(path) => {
                vec![path]
            }
            Self::Rename(from, to) | Self::Exchange(from, to) => vec![from, to],
            Self::Link(_, to) => vec![to],
            Self::Append(..)
            | Self::Truncate(..)
            | Self::Chmod(..)
            | Self::Chown(..)
            | Self::Note(..)
            | Self::Grant(..)
            | Self::Synced(..)
            | Self::Fsync(_)
            | Self::Fdatasync(_)
            | Self::Commit(_)
            | Self::FsyncDir(_)
            | Self::Syncfs
            | Self::Look
            | Self::Join(_)
            | Self::Drain(_) => vec![],
        }
    }

    /// Runs it.
    pub(crate) fn run(&self, pool: &Engine) -> Answer<()> {
        match self {
            Self::Create(path, text) => {
                pool.create(path, 0o640)?;
                pool.write(path, Some(0), text.as_bytes())
            }
            Self::Unnamed(path, text) => create_unnamed(pool, path, text),
            Self::Mkdir(path, mode) => pool.make(path, New::Dir(*mode)),
            Self::Symlink(path, target) => {
                let target = CString::new(target.as_str()).map_err(|_| Errno::INVAL)?;
                pool.make(path, New::Symlink(&target))
            }
            Self::Fifo(path) => pool.make(path, New::Node(FIFO | 0o640, 0)),
            Self::Append(path, text) => pool.write(path, None, text.as_bytes()),
            Self::Truncate(path, size) => {
                pool.setattr(path, Change { size: Some(*size as u64), ..Change::default() })
            }
            Self::Chmod(path, mode) => pool.setattr(path, Change { mode: Some(*mode), ..Change::default() }),
            Self::Chown(path, id) => {
                pool.setattr(path, Change { uid: Some(*id), gid: Some(*id), ..Change::default() })
            }
            Self::Note(path, value) => pool.setxattr(path, NOTE, value.as_bytes()),
            Self::Grant(path, user) => {
                pool.setxattr(path, ACL, &acl_for(pool.find(path)?.attr.stat.mode, *user))
            }
            Self::Synced(path, text) => {
                let handle = pool.open(path, OFlags::WRONLY | OFlags::SYNC)?;
                let end = pool.find(path)?.attr.stat.size;
                let terms = WriteTerms { sync: Some(Sync::All), ..WriteTerms::default() };
                let written = pool.union.write(handle, end, text.as_bytes(), terms);
                pool.union.release(handle);
                written.map(drop).map_err(|e| e.errno())
            }
            Self::Remove(path) => pool.unlink(path),
            Self::Rmdir(path) => pool.rmdir(path),
            Self::Link(from, to) => pool.link(from, to),
            Self::Rename(from, to) => pool.rename(from, to, RenameFlags::empty()),
            Self::Exchange(one, other) => pool.rename(one, other, RenameFlags::EXCHANGE),
            Self::Fsync(path) | Self::Fdatasync(path) => {
                let handle = pool.open(path, OFlags::WRONLY)?;
                let data_only = matches!(self, Self::Fdatasync(_));
                let synced = pool.union.fsync(handle, data_only).map_err(|e| e.errno());
                pool.union.release(handle);
                synced
            }
            Self::Commit(path) => commit_by_handle(pool, path),
            Self::FsyncDir(path) => fsync_names(pool, path),
            Self::Syncfs => pool.union.syncfs().map_err(|e| e.errno()),
            Self::Look => shown(pool).map(drop).map_err(|_| Errno::IO),
            // Done by the process that has the branches.
            Self::Join(_) => Ok(()),
            Self::Drain(at) => drain(pool, *at),
        }
    }

    /// The shell command for it, run below the pool.
    pub(crate) fn typed(&self) -> String {
        let root = |path: &Path| {
            if path.as_os_str().is_empty() { ".".to_owned() } else { path.display().to_string() }
        };
        match self {
            Self::Create(path, text) => format!("printf '{}' > {}", short(text), root(path)),
            Self::Unnamed(path, text) => {
                let path = root(path);
                format!("# O_TMPFILE in the directory of {path}, write '{}', linkat to {path}", short(text))
            }
            Self::Mkdir(path, mode) => format!("mkdir -m {mode:o} {}", root(path)),
            Self::Symlink(path, target) => format!("ln -s {target} {}", root(path)),
            Self::Fifo(path) => format!("mkfifo -m 640 {}", root(path)),
            Self::Append(path, text) => format!("printf '{}' >> {}", short(text), root(path)),
            Self::Truncate(path, size) => format!("truncate -s {size} {}", root(path)),
            Self::Chmod(path, mode) => format!("chmod {mode:o} {}", root(path)),
            Self::Chown(path, id) => format!("chown {id}:{id} {}", root(path)),
            Self::Note(path, value) => format!("setfattr -n user.note -v '{value}' {}", root(path)),
            Self::Grant(path, user) => format!("setfacl -m u:{user}:rX {}", root(path)),
            Self::Synced(path, text) => {
                format!("printf '{}' | dd of={} oflag=append,sync conv=notrunc", short(text), root(path))
            }
            Self::Remove(path) => format!("rm {}", root(path)),
            Self::Rmdir(path) => format!("rmdir {}", root(path)),
            Self::Link(from, to) => format!("ln {} {}", root(from), root(to)),
            Self::Rename(from, to) => format!("mv -T {} {}", root(from), root(to)),
            Self::Exchange(one, other) => format!("mv --exchange -T {} {}", root(one), root(other)),
            Self::Fsync(path) | Self::FsyncDir(path) => format!("sync {}", root(path)),
            Self::Fdatasync(path) => format!("sync -d {}", root(path)),
            Self::Commit(path) => format!("sync {}   # by an NFS client of the pool", root(path)),
            // The kernel does not pass syncfs(2) on to a FUSE server.
            Self::Syncfs => "# every branch is synced, as by `fsstack copy`".to_owned(),
            Self::Look => "ls -lR .".to_owned(),
            Self::Join(at) => format!("fsstack branch add: branch {at}"),
            Self::Drain(at) => format!("fsstack branch drain: branch {at}"),
        }
    }
}

fn drain(pool: &Engine, at: usize) -> Answer<()> {
    let from = pool.union.pool().branches[at].ix;
    let (hidden, manner) = (HiddenCopies::Stop, Manner::default());
    let order = DrainOrder { from, to: Vec::new(), hidden, manner, window: None };
    let job = pool.union.start_drain(order).map_err(|_| Errno::INVAL)?;
    loop {
        match pool.union.jobs().iter().find(|known| known.id == job.id).map(|job| job.state) {
            Some(state) if !state.is_over() => std::thread::sleep(std::time::Duration::from_millis(1)),
            Some(JobState::Done) => return Ok(()),
            _ => return Err(Errno::IO),
        }
    }
}

/// COMMIT of an NFS client.
fn commit_by_handle(pool: &Engine, path: &Path) -> Answer<()> {
    let errno = |error: OpError| error.errno();
    let ino = pool.ino(path)?;
    pool.forget_all();
    pool.union.lookup_self(ino).map_err(errno)?;
    let opened = pool.union.open(ino, OFlags::WRONLY, Caller::DAEMON).map_err(errno);
    let synced = opened.and_then(|opened| {
        let synced = pool.union.fsync(opened.handle, false).map_err(errno);
        pool.union.release(opened.handle);
        synced
    });
    pool.union.forget(ino, 1);
    synced
}

fn fsync_names(pool: &Engine, path: &Path) -> Answer<()> {
    let ino = pool.ino(path)?;
    let handle = pool.union.opendir(ino, OFlags::empty()).map_err(|e| e.errno())?;
    let synced = pool.union.fsyncdir(ino, handle, false).map_err(|e| e.errno());
    pool.union.releasedir(handle);
    synced
}

fn create_unnamed(pool: &Engine, path: &Path, text: &str) -> Answer<()> {
    let errno = |error: OpError| error.errno();
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    let (parent, name) = (pool.ino(above)?, EntryNameBuf::from_bytes(name.as_bytes()).unwrap());
    let made = pool.union.tmpfile(parent, 0o640, OFlags::RDWR, Caller::DAEMON).map_err(errno)?;
    let (ino, handle) = (made.entry.ino, made.opened.handle);
    let written = pool.union.write(handle, 0, text.as_bytes(), WriteTerms::default());
    let linked = written.and_then(|_| pool.union.link(ino, parent, name.as_name()));
    pool.union.release(handle);
    pool.union.forget(ino, 1 + u64::from(linked.is_ok()));
    linked.map(drop).map_err(errno)
}

/// Attribute with a file's ACL.
pub(crate) const ACL: &CStr = c"system.posix_acl_access";
/// Attribute of files and directories.
pub(crate) const NOTE: &CStr = c"user.note";
/// Type of a fifo in a mode.
const FIFO: u32 = 0o010_000;

/// An ACL for a file with `mode`, which gives `user` the group's rights.
pub(crate) fn acl_for(mode: u32, user: u32) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let (owner, group, others) = (mode >> 6 & 7, mode >> 3 & 7, mode & 7);
    let entries =
        [(1, owner, NONE), (2, group, user), (4, group, NONE), (16, group, NONE), (32, others, NONE)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        let word = tag | rights << 16;
        list.extend_from_slice(&u32::to_le_bytes(word));
        list.extend_from_slice(&u32::to_le_bytes(id));
    }
    list
}

/// Abbreviates long contents, which repeat one letter.
fn short(text: &str) -> String {
    if text.len() <= 40 { text.to_owned() } else { format!("{} KiB of {:?}", text.len() >> 10, &text[..1]) }
}
