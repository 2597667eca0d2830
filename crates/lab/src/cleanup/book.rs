//! Files of the cleanup journal: their format, locking, and how an entry is undone.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::dir;
use crate::daemon::Process;
use crate::gluster::server;
use crate::{disk_limit, disks, ganesha, mounts, network};

/// Something that must not outlive its creator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Thing {
    /// Mount at that path.
    Mount(PathBuf),
    /// A file.
    File(PathBuf),
    /// A directory and all in it; refused while anything is mounted below.
    Dir(PathBuf),
    /// A directory of a kernel file system, whose files vanish with it: a cgroup, a tracing instance.
    KernelDir(PathBuf),
    /// A network namespace, by its path under /run/netns.
    Namespace(PathBuf),
    /// The GlusterFS server of the lab whose home this is.
    Server(PathBuf),
    /// The loop device of an image.
    Loop(PathBuf),
    /// The zfs-fuse of the disks whose home this is.
    Zfs(PathBuf),
    /// The nfs-ganesha whose home this is.
    Ganesha(PathBuf),
    /// Rules that hold a disk to a rate, by its directory in sysfs.
    DiskLimit(PathBuf),
}

impl Thing {
    /// Kind in a journal, and path.
    fn parts(&self) -> (&'static str, &Path) {
        match self {
            Self::Mount(path) => ("mount", path),
            Self::File(path) => ("file", path),
            Self::Dir(path) => ("dir", path),
            Self::KernelDir(path) => ("kernel-dir", path),
            Self::Namespace(path) => ("namespace", path),
            Self::Server(path) => ("server", path),
            Self::Loop(path) => ("loop", path),
            Self::Zfs(path) => ("zfs", path),
            Self::Ganesha(path) => ("ganesha", path),
            Self::DiskLimit(path) => ("disk-limit", path),
        }
    }

    fn of(kind: &[u8], path: PathBuf) -> Option<Self> {
        Some(match kind {
            b"mount" => Self::Mount(path),
            b"file" => Self::File(path),
            b"dir" => Self::Dir(path),
            b"kernel-dir" => Self::KernelDir(path),
            b"namespace" => Self::Namespace(path),
            b"server" => Self::Server(path),
            b"loop" => Self::Loop(path),
            b"zfs" => Self::Zfs(path),
            b"ganesha" => Self::Ganesha(path),
            b"disk-limit" => Self::DiskLimit(path),
            _ => return None,
        })
    }
}

pub(super) fn myself() -> Result<Process> {
    Process::of(i32::try_from(std::process::id())?).context("our own process")
}

pub(super) fn own_book() -> Result<PathBuf> {
    let me = myself()?;
    Ok(dir()?.join(format!("{}-{}", me.pid, me.started)))
}

/// True for a process's journal, false for a kept one. A process's further journals have names after a dot.
pub(super) fn is_owned(book: &Path) -> bool {
    let owner = || book.file_name()?.to_str()?.split('.').next()?.split_once('-');
    owner().is_some_and(|(pid, started)| pid.parse::<i32>().is_ok() && started.parse::<u64>().is_ok())
}

/// Journals that this process has written, locked if they are its own. A writer holds all of them, so a line is written
/// completely or not at all.
static HELD: Mutex<BTreeMap<PathBuf, File>> = Mutex::new(BTreeMap::new());

pub(super) fn append(book: &Path, sign: char, thing: &Thing) -> Result<()> {
    let (kind, path) = thing.parts();
    let line = [format!("{sign}{kind}\t").as_bytes(), path.as_os_str().as_bytes(), b"\n"].concat();
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let known = held.remove(book).filter(is_there).map(Ok);
    let mut file = known.unwrap_or_else(|| open(book))?;
    let written = file.write_all(&line);
    held.insert(book.to_owned(), file);
    Ok(written?)
}

fn open(book: &Path) -> Result<File> {
    loop {
        let file = OpenOptions::new().create(true).append(true).open(book)?;
        if is_owned(book) {
            flock(&file, FlockOperation::LockExclusive)?;
        }
        if is_there(&file) {
            return Ok(file);
        }
    }
}

/// Takes a process's journal that no process holds.
pub(super) fn of_nobody(book: &Path) -> Result<Option<File>> {
    let file = match File::open(book) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        // Its owner may have removed its last line, and created another of that name.
        locked => Ok(locked.map(|()| Some(file).filter(is_there))?),
    }
}

/// Closes it, as the end of this process would.
#[cfg(test)]
pub(super) fn let_go(book: &Path) {
    HELD.lock().unwrap_or_else(PoisonError::into_inner).remove(book);
}

/// True if it still has a name: an empty journal is removed with its last line.
fn is_there(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
}

pub(super) fn strike(thing: &Thing) -> Result<()> {
    let book = own_book()?;
    append(&book, '-', thing)?;
    if outstanding(&book)?.is_empty() {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        // If another thread has written since, the journal stays.
        if outstanding(&book)?.is_empty() {
            match fs::remove_file(&book) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
                _ => held.remove(&book),
            };
        }
    }
    Ok(())
}

pub(super) fn outstanding(book: &Path) -> Result<Vec<Thing>> {
    let text = match fs::read(book) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let mut things = Vec::new();
    for line in text.split(|&b| b == b'\n') {
        let Some((&sign, rest)) = line.split_first() else { continue };
        let Some(tab) = rest.iter().position(|&b| b == b'\t') else { continue };
        let (kind, path) = rest.split_at(tab);
        let path = PathBuf::from(OsStr::from_bytes(path.get(1..).unwrap_or_default()));
        let Some(thing) = Thing::of(kind, path) else {
            bail!("{} is not a cleanup journal", book.display());
        };
        match sign {
            b'+' => things.push(thing),
            _ => things.retain(|known| *known != thing),
        }
    }
    Ok(things)
}

pub(super) fn undo_all(book: &Path) -> Result<usize> {
    let things = outstanding(book)?;
    let failed: Vec<String> =
        things.iter().rev().filter_map(|thing| undo(thing).err()).map(|e| format!("{e:#}")).collect();
    let gone = things.iter().all(|thing| !stands(thing));
    if gone && book.exists() {
        fs::remove_file(book)?;
    }
    ensure!(gone || failed.is_empty(), "{}", failed.join("; "));
    Ok(things.len())
}

pub(super) fn stands(thing: &Thing) -> bool {
    match thing {
        Thing::Mount(path) => !matches!(mounts::at(path), Ok(None)),
        Thing::File(path) | Thing::Dir(path) | Thing::KernelDir(path) | Thing::Namespace(path) => {
            path.symlink_metadata().is_ok()
        }
        Thing::Server(home) => server::stands(home),
        Thing::Loop(image) => !matches!(disks::device_of(image), Ok(None)),
        Thing::Zfs(home) => disks::zfs_stands(home),
        Thing::Ganesha(home) => ganesha::stands(home),
        Thing::DiskLimit(device) => disk_limit::stands(device),
    }
}

pub(super) fn undo(thing: &Thing) -> Result<()> {
    let (path, done) = match thing {
        Thing::Mount(path) => return mounts::detach(path),
        Thing::Namespace(path) => return network::remove_namespace(path),
        Thing::Server(home) => return server::remove(home),
        Thing::Loop(image) => return disks::detach(image),
        Thing::Zfs(home) => return disks::end_zfs(home),
        Thing::Ganesha(home) => return ganesha::end(home),
        Thing::DiskLimit(device) => return disk_limit::remove(device),
        Thing::File(path) => (path, fs::remove_file(path)),
        Thing::KernelDir(path) => (path, fs::remove_dir(path)),
        Thing::Dir(path) => {
            let inside = mounts::below(path)?;
            ensure!(inside.is_empty(), "{}: {} mounts are in it", path.display(), inside.len());
            (path, fs::remove_dir_all(path))
        }
    };
    match done {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e).with_context(|| path.display().to_string()),
        _ => Ok(()),
    }
}
