//! What this process has made on the machine, written down before it is made.
//!
//! One file a process, named by its number and start time. A process that is killed leaves its file
//! behind; the next one that uses the lab (or `sweep`) finds that the owner is gone and undoes every
//! line, last first. Undoing what is not there is no error, so a line may be written too early and
//! struck out too late, never the other way round. Concurrent sweepers are kept apart by a lock file;
//! a live owner's file is never touched.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};

use crate::daemon::Process;
use crate::gluster::server;
use crate::{disks, ganesha, mounts, network};

/// Something that must not outlive its maker.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Thing {
    /// Whatever is mounted there.
    Mount(PathBuf),
    /// A file.
    File(PathBuf),
    /// A directory and all in it; refused while anything is mounted below.
    Dir(PathBuf),
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
}

impl Thing {
    /// What it is called in a book, and where it is.
    fn parts(&self) -> (&'static str, &Path) {
        match self {
            Self::Mount(path) => ("mount", path),
            Self::File(path) => ("file", path),
            Self::Dir(path) => ("dir", path),
            Self::Namespace(path) => ("namespace", path),
            Self::Server(path) => ("server", path),
            Self::Loop(path) => ("loop", path),
            Self::Zfs(path) => ("zfs", path),
            Self::Ganesha(path) => ("ganesha", path),
        }
    }

    fn of(kind: &[u8], path: PathBuf) -> Option<Self> {
        Some(match kind {
            b"mount" => Self::Mount(path),
            b"file" => Self::File(path),
            b"dir" => Self::Dir(path),
            b"namespace" => Self::Namespace(path),
            b"server" => Self::Server(path),
            b"loop" => Self::Loop(path),
            b"zfs" => Self::Zfs(path),
            b"ganesha" => Self::Ganesha(path),
            _ => return None,
        })
    }
}

/// A thing in the ledger: undone and struck out when this drops.
#[derive(Debug)]
#[must_use = "the thing is undone when this drops"]
pub struct Entry {
    thing: Thing,
    undone: bool,
}

impl Entry {
    /// Announces a mount at `target`.
    pub fn mount(target: &Path) -> Result<Self> {
        Self::of(Thing::Mount(target.to_owned()))
    }

    /// Announces a file.
    pub fn file(path: &Path) -> Result<Self> {
        Self::of(Thing::File(path.to_owned()))
    }

    /// Announces a directory and makes it, readable by everybody.
    pub fn dir(path: &Path) -> Result<Self> {
        let entry = Self::of(Thing::Dir(path.to_owned()))?;
        fs::create_dir_all(path).with_context(|| path.display().to_string())?;
        fs::set_permissions(path, Permissions::from_mode(0o755))?;
        Ok(entry)
    }

    /// Announces a directory and makes it; one that is there already is somebody else's, and is refused.
    pub fn new_dir(path: &Path) -> Result<Self> {
        let taken = || format!("{} is there already: whoever made it may be at work in it", path.display());
        ensure!(path.symlink_metadata().is_err(), taken());
        let mut entry = Self::of(Thing::Dir(path.to_owned()))?;
        if let Err(e) = fs::create_dir(path) {
            // Not ours to remove.
            entry.undone = true;
            strike(&entry.thing)?;
            return Err(e).with_context(taken);
        }
        fs::set_permissions(path, Permissions::from_mode(0o755))?;
        Ok(entry)
    }

    /// Announces the nfs-ganesha that has its files in `home`.
    pub(crate) fn ganesha(home: &Path) -> Result<Self> {
        Self::of(Thing::Ganesha(home.to_owned()))
    }

    /// Undoes it now, and says what went wrong.
    pub fn undo(mut self) -> Result<()> {
        self.settle()
    }

    /// Leaves it standing after this process, for `take_down(name)`.
    pub fn keep(mut self, name: &str) -> Result<()> {
        append(&kept(name)?, '+', &self.thing)?;
        self.undone = true;
        strike(&self.thing)
    }

    fn of(thing: Thing) -> Result<Self> {
        sweep_once();
        append(&own_book()?, '+', &thing)?;
        Ok(Self { thing, undone: false })
    }

    fn settle(&mut self) -> Result<()> {
        if !self.undone {
            self.undone = true;
            let done = undo(&self.thing);
            if !stands(&self.thing) {
                // Also where force was needed: that is told, but nothing is left to do.
                strike(&self.thing)?;
            }
            return done;
        }
        Ok(())
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Err(e) = self.settle() {
            say(&format!("lab: {e:#}"));
        }
    }
}

/// Before the first thing is made.
fn sweep_once() {
    static SWEPT: OnceLock<()> = OnceLock::new();
    SWEPT.get_or_init(|| {
        if let Err(e) = sweep() {
            say(&format!("the lab could not clear what an earlier run left: {e:#}"));
        }
    });
}

/// What stands after this process, under a name, until it is taken down by that name.
///
/// For things that are repaired and added to by one run after another. Each is written down before it is
/// made; one that is written down already keeps its place, so that the order in which things are undone stays.
#[derive(Clone, Debug)]
pub struct Standing {
    book: PathBuf,
}

impl Standing {
    /// The book of that name.
    pub fn named(name: &str) -> Result<Self> {
        Ok(Self { book: kept(name)? })
    }

    /// A book of that name that ends with this process: a killed one's is swept with its other things.
    pub fn of_this_process(name: &str) -> Result<Self> {
        sweep_once();
        let mut book = own_book()?.into_os_string();
        book.push(format!(".{name}"));
        Ok(Self { book: book.into() })
    }

    /// Announces a mount at `target`.
    pub fn mount(&self, target: &Path) -> Result<()> {
        self.note(Thing::Mount(target.to_owned()))
    }

    /// Announces a directory and makes it, readable by everybody.
    pub fn dir(&self, path: &Path) -> Result<()> {
        self.note(Thing::Dir(path.to_owned()))?;
        fs::create_dir_all(path).with_context(|| path.display().to_string())
    }

    /// Announces a network namespace.
    pub fn namespace(&self, path: &Path) -> Result<()> {
        self.note(Thing::Namespace(path.to_owned()))
    }

    /// Announces the server of a GlusterFS lab.
    pub fn server(&self, home: &Path) -> Result<()> {
        self.note(Thing::Server(home.to_owned()))
    }

    /// Announces the loop device of an image.
    pub fn loop_device(&self, image: &Path) -> Result<()> {
        self.note(Thing::Loop(image.to_owned()))
    }

    /// Announces the zfs-fuse of some disks.
    pub fn zfs(&self, home: &Path) -> Result<()> {
        self.note(Thing::Zfs(home.to_owned()))
    }

    /// Unmounts one target and strikes it out.
    pub fn unmount(&self, target: &Path) -> Result<()> {
        let detached = mounts::detach(target);
        if mounts::at(target)?.is_none() {
            return append(&self.book, '-', &Thing::Mount(target.to_owned()));
        }
        detached
    }

    /// Undoes everything, last first. Returns how many things there were.
    pub fn take_down(&self) -> Result<usize> {
        undo_all(&self.book)
    }

    fn note(&self, thing: Thing) -> Result<()> {
        if outstanding(&self.book)?.contains(&thing) {
            return Ok(());
        }
        append(&self.book, '+', &thing)
    }
}

/// The lab's directory: FSSTACK_LAB_DIR, or one per user under the system's temporary directory.
pub fn state_dir() -> Result<PathBuf> {
    let own = rustix::process::getuid().as_raw();
    let dir = match std::env::var_os("FSSTACK_LAB_DIR") {
        Some(given) => PathBuf::from(given),
        None => std::env::temp_dir().join(format!("fsstack-lab-{own}")),
    };
    DirBuilder::new().recursive(true).mode(0o755).create(&dir).with_context(|| dir.display().to_string())?;
    let found = fs::symlink_metadata(&dir)?;
    ensure!(found.is_dir() && found.uid() == own, "{} is not ours", dir.display());
    Ok(dir.canonicalize()?)
}

/// A path under the lab's directory that no other pool uses.
pub fn fresh(what: &str) -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(state_dir()?.join(format!("{what}-{}-{next}", std::process::id())))
}

/// Undoes what runs that are no more have left. Returns how many such runs there were.
pub fn sweep() -> Result<usize> {
    let dir = dir()?;
    let lock = File::create(dir.join(".lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let mut swept = 0;
    let mut failed = Vec::new();
    for entry in fs::read_dir(&dir)? {
        let book = entry?.path();
        if owner(&book).is_none_or(Process::lives) {
            continue;
        }
        swept += 1;
        failed.extend(undo_all(&book).err().map(|e| format!("{e:#}")));
    }
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(swept)
}

/// Undoes all that was kept under `name`. Returns how many things there were.
pub fn take_down(name: &str) -> Result<usize> {
    undo_all(&kept(name)?)
}

/// The book of what is kept under `name`.
fn kept(name: &str) -> Result<PathBuf> {
    Ok(dir()?.join(format!("{name}.kept")))
}

fn dir() -> Result<PathBuf> {
    let dir = state_dir()?.join("ledger");
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

fn own_book() -> Result<PathBuf> {
    let pid = i32::try_from(std::process::id())?;
    let me = Process::of(pid).context("our own process")?;
    Ok(dir()?.join(format!("{}-{}", me.pid, me.started)))
}

fn owner(book: &Path) -> Option<Process> {
    let (pid, started) = book.file_name()?.to_str()?.split_once('-')?;
    // Its further books have names after a dot.
    let started = started.split('.').next()?;
    Some(Process { pid: pid.parse().ok()?, started: started.parse().ok()? })
}

/// Writers of one book, in this process: a line is whole or not there.
static WRITING: Mutex<()> = Mutex::new(());

fn append(book: &Path, sign: char, thing: &Thing) -> Result<()> {
    let (kind, path) = thing.parts();
    let line = [format!("{sign}{kind}\t").as_bytes(), path.as_os_str().as_bytes(), b"\n"].concat();
    let _one_at_a_time = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(OpenOptions::new().create(true).append(true).open(book)?.write_all(&line)?)
}

fn strike(thing: &Thing) -> Result<()> {
    let book = own_book()?;
    append(&book, '-', thing)?;
    if outstanding(&book)?.is_empty() {
        let _one_at_a_time = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have written since; then the book stays.
        if outstanding(&book)?.is_empty() {
            fs::remove_file(&book)?;
        }
    }
    Ok(())
}

fn outstanding(book: &Path) -> Result<Vec<Thing>> {
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
            bail!("{} is not one of our ledgers", book.display());
        };
        match sign {
            b'+' => things.push(thing),
            _ => things.retain(|known| *known != thing),
        }
    }
    Ok(things)
}

fn undo_all(book: &Path) -> Result<usize> {
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

fn stands(thing: &Thing) -> bool {
    match thing {
        Thing::Mount(path) => !matches!(mounts::at(path), Ok(None)),
        Thing::File(path) | Thing::Dir(path) | Thing::Namespace(path) => path.symlink_metadata().is_ok(),
        Thing::Server(home) => server::stands(home),
        Thing::Loop(image) => !matches!(disks::device_of(image), Ok(None)),
        Thing::Zfs(home) => disks::zfs_stands(home),
        Thing::Ganesha(home) => ganesha::stands(home),
    }
}

fn undo(thing: &Thing) -> Result<()> {
    let (path, done) = match thing {
        Thing::Mount(path) => return mounts::detach(path),
        Thing::Namespace(path) => return network::remove_namespace(path),
        Thing::Server(home) => return server::remove(home),
        Thing::Loop(image) => return disks::detach(image),
        Thing::Zfs(home) => return disks::end_zfs(home),
        Thing::Ganesha(home) => return ganesha::end(home),
        Thing::File(path) => (path, fs::remove_file(path)),
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

/// Cleanup runs in Drop, where an error can only be shown.
fn say(line: &str) {
    let _nobody_listens = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_entry_leaves_nothing() {
        let path = fresh("ledger-test").unwrap();
        let entry = Entry::dir(&path).unwrap();
        fs::write(path.join("file"), "x").unwrap();
        assert!(outstanding(&own_book().unwrap()).unwrap().contains(&entry.thing));
        drop(entry);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_dead_run_left_is_swept() {
        let path = fresh("ledger-dead").unwrap();
        fs::create_dir(&path).unwrap();
        // No process has this number: it is above the kernel's limit.
        append(&dir().unwrap().join("4194305-1"), '+', &Thing::Dir(path.clone())).unwrap();
        sweep().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_of_somebody_else_is_refused_and_stays() {
        let path = fresh("ledger-new").unwrap();
        let first = Entry::new_dir(&path).unwrap();
        assert!(Entry::new_dir(&path).unwrap_err().to_string().contains("is there already"));
        assert!(path.exists());
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_run_loses_its_further_books_too() {
        let path = fresh("ledger-book").unwrap();
        fs::create_dir(&path).unwrap();
        let book = dir().unwrap().join("4194305-2.disks");
        append(&book, '+', &Thing::Dir(path.clone())).unwrap();
        sweep().unwrap();
        assert!(!path.exists() && !book.exists());
    }

    #[test]
    fn what_is_kept_is_taken_down_by_name() {
        let path = fresh("ledger-kept").unwrap();
        let name = format!("test-{}", std::process::id());
        Entry::dir(&path).unwrap().keep(&name).unwrap();
        assert!(path.exists());
        assert_eq!(take_down(&name).unwrap(), 1);
        assert!(!path.exists());
        assert_eq!(take_down(&name).unwrap(), 0);
    }
}
