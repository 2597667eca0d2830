//! Cleanup journal: things that this process makes on the machine, recorded before they are made.
//!
//! There is one file per process, named by its number and start time, and locked while it lives: an owner in another
//! PID namespace is thereby distinguished from a dead one. A killed process leaves its file; the next user of the lab
//! (or `sweep`) finds it unlocked and undoes every line, last first. Undoing a missing thing is no error, so a line may
//! be written too early and removed too late, never the reverse. A lock file serialises sweepers, and a live owner's
//! file is never touched. A process that has created its file but not yet locked it may lose the empty file to a
//! sweeper, and creates another.

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

/// An entry of the cleanup journal; undone and removed on drop.
#[derive(Debug)]
#[must_use = "the thing is undone when this drops"]
pub struct Entry {
    thing: Thing,
    undone: bool,
}

impl Entry {
    /// Records a mount at `target`.
    pub fn mount(target: &Path) -> Result<Self> {
        Self::of(Thing::Mount(target.to_owned()))
    }

    /// Records a file.
    pub fn file(path: &Path) -> Result<Self> {
        Self::of(Thing::File(path.to_owned()))
    }

    /// Records a directory and makes it, readable by all users.
    pub fn dir(path: &Path) -> Result<Self> {
        let entry = Self::of(Thing::Dir(path.to_owned()))?;
        fs::create_dir_all(path).with_context(|| path.display().to_string())?;
        fs::set_permissions(path, Permissions::from_mode(0o755))?;
        Ok(entry)
    }

    /// Records a directory and makes it; refused if it exists, because it is not ours.
    pub fn new_dir(path: &Path) -> Result<Self> {
        let taken = || format!("{} is there already: its maker may be using it", path.display());
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

    /// Records a directory of a kernel file system and makes it.
    pub(crate) fn kernel_dir(path: &Path) -> Result<Self> {
        let entry = Self::of(Thing::KernelDir(path.to_owned()))?;
        fs::create_dir(path).with_context(|| path.display().to_string())?;
        Ok(entry)
    }

    /// Records the nfs-ganesha with its files in `home`.
    pub(crate) fn ganesha(home: &Path) -> Result<Self> {
        Self::of(Thing::Ganesha(home.to_owned()))
    }

    /// Records the rules that hold a disk to a rate.
    pub(crate) fn disk_limit(device: &Path) -> Result<Self> {
        Self::of(Thing::DiskLimit(device.to_owned()))
    }

    /// Undoes it now and returns the error, if any.
    pub fn undo(mut self) -> Result<()> {
        self.settle()
    }

    /// Keeps it after this process, until `take_down(name)`.
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
                // Also after an error that says force was needed, because nothing is left to undo.
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

/// Sweeps once, before the first entry.
fn sweep_once() {
    static SWEPT: OnceLock<()> = OnceLock::new();
    SWEPT.get_or_init(|| {
        if let Err(e) = sweep() {
            say(&format!("the lab could not clear what an earlier run left: {e:#}"));
        }
    });
}

/// Journal of things that outlive this process, under a name, until they are taken down by it.
///
/// For things that successive runs repair and extend. Each is recorded before it is made. A recorded one keeps its
/// position, so that the order of undoing is preserved.
#[derive(Clone, Debug)]
pub struct Standing {
    book: PathBuf,
}

impl Standing {
    /// The journal of that name.
    pub fn named(name: &str) -> Result<Self> {
        Ok(Self { book: kept(name)? })
    }

    /// A journal of that name that ends with this process: a killed process's is swept with its other entries.
    pub fn of_this_process(name: &str) -> Result<Self> {
        sweep_once();
        let mut book = own_book()?.into_os_string();
        book.push(format!(".{name}"));
        Ok(Self { book: book.into() })
    }

    /// Records a mount at `target`.
    pub fn mount(&self, target: &Path) -> Result<()> {
        self.note(Thing::Mount(target.to_owned()))
    }

    /// Records a directory and makes it, readable by all users.
    pub fn dir(&self, path: &Path) -> Result<()> {
        self.note(Thing::Dir(path.to_owned()))?;
        fs::create_dir_all(path).with_context(|| path.display().to_string())
    }

    /// Records a network namespace.
    pub fn namespace(&self, path: &Path) -> Result<()> {
        self.note(Thing::Namespace(path.to_owned()))
    }

    /// Records the server of a GlusterFS lab.
    pub fn server(&self, home: &Path) -> Result<()> {
        self.note(Thing::Server(home.to_owned()))
    }

    /// Records the loop device of an image.
    pub fn loop_device(&self, image: &Path) -> Result<()> {
        self.note(Thing::Loop(image.to_owned()))
    }

    /// Records the zfs-fuse of some disks.
    pub fn zfs(&self, home: &Path) -> Result<()> {
        self.note(Thing::Zfs(home.to_owned()))
    }

    /// Unmounts one target and removes its entry.
    pub fn unmount(&self, target: &Path) -> Result<()> {
        let detached = mounts::detach(target);
        if mounts::at(target)?.is_none() {
            return append(&self.book, '-', &Thing::Mount(target.to_owned()));
        }
        detached
    }

    /// Undoes everything, last first. Returns the number of entries.
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

/// The lab's directory: FSSTACK_LAB_DIR, or one per user in the system's temporary directory.
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

/// A path in the lab's directory that no other pool uses, in any PID namespace.
pub fn fresh(what: &str) -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let me = myself()?;
    Ok(state_dir()?.join(format!("{what}-{}-{:x}-{next}", me.pid, me.started)))
}

/// Undoes what dead runs left. Returns their number.
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

/// Undoes what was kept under `name`. Returns the number of entries.
pub fn take_down(name: &str) -> Result<usize> {
    undo_all(&kept(name)?)
}

/// The journal of what is kept under `name`.
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

    /// A process number above the kernel's limit, so no process has it.
    fn book_of_nobody(end: &str) -> PathBuf {
        dir().unwrap().join(format!("4194305-{}{end}", std::process::id()))
    }

    /// Complete from the first moment, because other processes sweep too.
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
        // No visible process has this number; only the lock shows that the owner lives.
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
