//! What a program does with a pool, one call or two at a time.

use std::path::{Path, PathBuf};

use fsstack_engine::ops::{Change, New};
use fsstack_sys::OFlags;
use fsstack_sys::at::RenameFlags;

use crate::engine::{Answer, Engine};

/// One act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// A new file, with its content.
    Create(PathBuf, String),
    Mkdir(PathBuf, u32),
    Append(PathBuf, String),
    Chmod(PathBuf, u32),
    Remove(PathBuf),
    Rmdir(PathBuf),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf),
    Exchange(PathBuf, PathBuf),
    Fsync(PathBuf),
    FsyncDir(PathBuf),
    Syncfs,
}

pub(crate) fn create(path: &str, text: &str) -> Act {
    Act::Create(path.into(), text.to_owned())
}

pub(crate) fn mkdir(path: &str) -> Act {
    Act::Mkdir(path.into(), 0o700)
}

pub(crate) fn append(path: &str, text: &str) -> Act {
    Act::Append(path.into(), text.to_owned())
}

pub(crate) fn chmod(path: &str, mode: u32) -> Act {
    Act::Chmod(path.into(), mode)
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

pub(crate) fn fsync_dir(path: &str) -> Act {
    Act::FsyncDir(path.into())
}

impl Act {
    pub(crate) fn is_sync(&self) -> bool {
        matches!(self, Self::Fsync(_) | Self::FsyncDir(_) | Self::Syncfs)
    }

    /// The names that it takes away, gives or replaces.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        match self {
            Self::Create(path, _) | Self::Mkdir(path, _) | Self::Remove(path) | Self::Rmdir(path) => {
                vec![path]
            }
            Self::Rename(from, to) | Self::Exchange(from, to) => vec![from, to],
            Self::Link(_, to) => vec![to],
            Self::Append(..) | Self::Chmod(..) | Self::Fsync(_) | Self::FsyncDir(_) | Self::Syncfs => vec![],
        }
    }

    /// Does it.
    pub(crate) fn run(&self, pool: &Engine) -> Answer<()> {
        match self {
            Self::Create(path, text) => {
                pool.create(path, 0o640)?;
                pool.write(path, Some(0), text.as_bytes())
            }
            Self::Mkdir(path, mode) => pool.make(path, New::Dir(*mode)),
            Self::Append(path, text) => pool.write(path, None, text.as_bytes()),
            Self::Chmod(path, mode) => pool.setattr(path, Change { mode: Some(*mode), ..Change::default() }),
            Self::Remove(path) => pool.unlink(path),
            Self::Rmdir(path) => pool.rmdir(path),
            Self::Link(from, to) => pool.link(from, to),
            Self::Rename(from, to) => pool.rename(from, to, RenameFlags::empty()),
            Self::Exchange(one, other) => pool.rename(one, other, RenameFlags::EXCHANGE),
            Self::Fsync(path) => {
                let handle = pool.open(path, OFlags::WRONLY)?;
                let synced = pool.union.fsync(handle, false).map_err(|e| e.errno());
                pool.union.release(handle);
                synced
            }
            Self::FsyncDir(path) => {
                let ino = pool.ino(path)?;
                let handle = pool.union.opendir(ino, OFlags::empty()).map_err(|e| e.errno())?;
                let synced = pool.union.fsyncdir(ino, handle, false).map_err(|e| e.errno());
                pool.union.releasedir(handle);
                synced
            }
            Self::Syncfs => pool.union.syncfs().map_err(|e| e.errno()),
        }
    }

    /// As somebody would type it below the pool.
    pub(crate) fn typed(&self) -> String {
        let root = |path: &Path| {
            if path.as_os_str().is_empty() { ".".to_owned() } else { path.display().to_string() }
        };
        match self {
            Self::Create(path, text) => format!("printf '{}' > {}", short(text), root(path)),
            Self::Mkdir(path, mode) => format!("mkdir -m {mode:o} {}", root(path)),
            Self::Append(path, text) => format!("printf '{}' >> {}", short(text), root(path)),
            Self::Chmod(path, mode) => format!("chmod {mode:o} {}", root(path)),
            Self::Remove(path) => format!("rm {}", root(path)),
            Self::Rmdir(path) => format!("rmdir {}", root(path)),
            Self::Link(from, to) => format!("ln {} {}", root(from), root(to)),
            Self::Rename(from, to) => format!("mv -T {} {}", root(from), root(to)),
            Self::Exchange(one, other) => format!("mv --exchange -T {} {}", root(one), root(other)),
            Self::Fsync(path) | Self::FsyncDir(path) => format!("sync {}", root(path)),
            Self::Syncfs => "sync -f .".to_owned(),
        }
    }
}

/// Long contents are of one letter.
fn short(text: &str) -> String {
    if text.len() <= 40 { text.to_owned() } else { format!("{} KiB of {:?}", text.len() >> 10, &text[..1]) }
}
