//! Things that this process has made on the machine, recorded before they are made.
//!
//! One file a process, named by its number and start time, and locked while it lives: so an owner in another PID namespace
//! is distinguished from one that is gone. A process that is killed leaves its file behind; the next one that uses the lab
//! (or `sweep`) finds it unlocked and undoes every line, last first. Undoing a missing thing is no error, so a line may be
//! written too early and struck out too late, never the other way round. Concurrent sweepers are kept apart by a lock file;
//! a live owner's file is never touched. A process that has made its file and not locked it yet may lose it, empty, to a
//! sweeper: it makes another.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, flock};

use crate::mounts;
use book::{Thing, append, is_owned, myself, outstanding, own_book, stands, strike, undo, undo_all};

mod book;

/// A thing in the cleanup journal: undone and struck out when this drops.
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

    /// Announces a directory of a file system of the kernel's and makes it.
    pub(crate) fn kernel_dir(path: &Path) -> Result<Self> {
        let entry = Self::of(Thing::KernelDir(path.to_owned()))?;
        fs::create_dir(path).with_context(|| path.display().to_string())?;
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
                // Also where force was needed: that is reported, and nothing is left to do.
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

/// Thing that outlives this process, under a name, until it is taken down by that name.
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

/// A path under the lab's directory that no other pool uses, of whatever PID namespace.
pub fn fresh(what: &str) -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let me = myself()?;
    Ok(state_dir()?.join(format!("{what}-{}-{:x}-{next}", me.pid, me.started)))
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
        if !is_owned(&book) {
            continue;
        }
        let Some(_held) = book::of_nobody(&book)? else { continue };
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

/// Cleanup runs in Drop, where an error can only be shown.
fn say(line: &str) {
    let _nobody_listens = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No process has this number: it is above the kernel's limit.
    fn book_of_nobody(end: &str) -> PathBuf {
        dir().unwrap().join(format!("4194305-{}{end}", std::process::id()))
    }

    /// Whole from the first moment: others sweep too.
    fn left_by_a_dead_run(book: &Path, thing: &Path) {
        let draft = book.with_file_name(format!("draft of {}", std::process::id()));
        fs::write(&draft, format!("+dir\t{}\n", thing.display())).unwrap();
        fs::rename(draft, book).unwrap();
    }

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
    fn leftovers_of_a_dead_run_are_swept() {
        let path = fresh("ledger-dead").unwrap();
        fs::create_dir(&path).unwrap();
        left_by_a_dead_run(&book_of_nobody("1"), &path);
        sweep().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn things_of_a_run_in_another_pid_namespace_stay_while_it_lives() {
        let path = fresh("ledger-elsewhere").unwrap();
        fs::create_dir(&path).unwrap();
        // A number that nobody here has: only the lock tells that somebody does.
        let book = book_of_nobody("3");
        append(&book, '+', &Thing::Dir(path.clone())).unwrap();
        sweep().unwrap();
        assert!(path.exists());
        book::let_go(&book);
        sweep().unwrap();
        assert!(!path.exists() && !book.exists());
    }

    #[test]
    fn a_directory_of_another_user_is_refused_and_stays() {
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
        let book = book_of_nobody("2.disks");
        left_by_a_dead_run(&book, &path);
        sweep().unwrap();
        assert!(!path.exists() && !book.exists());
    }

    #[test]
    fn standing_things_are_taken_down_by_name() {
        let path = fresh("ledger-kept").unwrap();
        let name = format!("test-{}", std::process::id());
        Entry::dir(&path).unwrap().keep(&name).unwrap();
        assert!(path.exists());
        assert_eq!(take_down(&name).unwrap(), 1);
        assert!(!path.exists());
        assert_eq!(take_down(&name).unwrap(), 0);
    }
}
