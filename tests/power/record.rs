//! Keeps what is on each disk after each call that changes or syncs something there, and from which moment on a cut cannot
//! leave less.
//!
//! After a change the disk's journal is made to commit, without the data of files: that is what a cut right after a commit
//! leaves. A cut at any moment leaves each disk in one of the states between its last sync by the pool and now. A sync of a
//! file or directory that was not changed since the last one forces nothing, on ext4 and on XFS.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fsstack_sys::Call;
use fsstack_sys::witness::{Observer, Reach};
use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, fstat, utimensat};

use crate::disk::{Disk, Image};
use crate::model::Progress;
use crate::shown::FOLDER;

/// A disk at one moment.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) image: Image,
    /// The call that led to it, and what it changed.
    pub(crate) what: String,
    /// Something is in the hidden folder.
    pub(crate) is_left: bool,
}

/// A moment: the number of each disk's state, and of the earliest one that a cut may leave.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Vec<usize>,
    pub(crate) floor: Vec<usize>,
    pub(crate) index: usize,
    pub(crate) progress: Progress,
}

/// What is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) disks: Vec<Vec<State>>,
    pub(crate) index: Vec<Image>,
    pub(crate) moments: Vec<Moment>,
}

/// What tells one state of an object from another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    ino: u64,
    ctime: (i64, i64),
    mode: u32,
    size: u64,
}

type Scan = BTreeMap<PathBuf, Mark>;

struct Watched {
    disk: Disk,
    device: u64,
    scan: Scan,
    states: Vec<State>,
    floor: usize,
    /// The state in which an object was changed last.
    changed: BTreeMap<u64, usize>,
}

struct Inner {
    disks: Vec<Watched>,
    index: Disk,
    kept_index: Vec<Image>,
    moments: Vec<Moment>,
    progress: Progress,
}

/// Looks on at the pool's calls.
pub(crate) struct Recorder(Mutex<Inner>);

impl Recorder {
    /// Of these disks, which are on disk as they are, and of the index's.
    pub(crate) fn of(disks: Vec<Disk>, index: Disk, progress: Progress) -> Self {
        let watched = disks.into_iter().map(|disk| {
            let mut watched = Watched {
                device: fs::metadata(disk.path()).unwrap().dev(),
                disk,
                scan: Scan::new(),
                states: Vec::new(),
                floor: 0,
                changed: BTreeMap::new(),
            };
            watched.keep("as it was".to_owned());
            watched
        });
        let disks = watched.collect();
        let kept_index = vec![index.image()];
        let mut inner = Inner { disks, index, kept_index, moments: Vec::new(), progress };
        inner.pass();
        Self(Mutex::new(inner))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program begins an act, or has its answer.
    pub(crate) fn progress(&self, progress: Progress) {
        let mut inner = self.inner();
        inner.look("");
        inner.progress = progress;
        inner.pass();
    }

    pub(crate) fn into_kept(self) -> Kept {
        let inner = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let disks = inner.disks.into_iter().map(|watched| {
            watched.disk.unmount();
            watched.states
        });
        let disks = disks.collect();
        inner.index.unmount();
        Kept { disks, index: inner.kept_index, moments: inner.moments }
    }
}

impl Observer for Recorder {
    fn made(&self, call: Call) {
        let mut inner = self.inner();
        if inner.look(&format!("{call:?}").to_lowercase()) {
            inner.pass();
        }
    }

    fn synced(&self, fd: BorrowedFd<'_>, reach: Reach) {
        let stat = fstat(fd).unwrap();
        let mut inner = self.inner();
        inner.look("");
        let Some(watched) = inner.disks.iter_mut().find(|watched| watched.device == stat.st_dev) else {
            return;
        };
        watched.synced(stat.st_ino, reach);
        inner.pass();
    }
}

impl Inner {
    /// Keeps what was changed, if anything was.
    fn look(&mut self, call: &str) -> bool {
        let mut changed = false;
        for watched in &mut self.disks {
            changed |= watched.look(call);
        }
        // The index's file system is written by the database: what is on disk is what a cut leaves.
        let image = self.index.image();
        if self.kept_index.last() != Some(&image) {
            self.kept_index.push(image);
            changed = true;
        }
        changed
    }

    fn pass(&mut self) {
        self.moments.push(Moment {
            now: self.disks.iter().map(|watched| watched.states.len() - 1).collect(),
            floor: self.disks.iter().map(|watched| watched.floor).collect(),
            index: self.kept_index.len() - 1,
            progress: self.progress,
        });
    }
}

impl Watched {
    fn look(&mut self, call: &str) -> bool {
        let scan = scan(self.disk.path());
        let what = differences(&self.scan, &scan);
        if what.is_empty() {
            return false;
        }
        let next = self.states.len();
        for (path, mark) in &self.scan {
            if scan.get(path) != Some(mark) {
                self.changed.insert(mark.ino, next);
            }
        }
        for (path, mark) in &scan {
            if self.scan.get(path) != Some(mark) {
                self.changed.insert(mark.ino, next);
            }
        }
        self.keep(format!("{call}: {what}"));
        true
    }

    /// What is there now is a state, committed.
    fn keep(&mut self, what: String) {
        commit(self.disk.path());
        self.scan = scan(self.disk.path());
        let folder = Path::new(FOLDER);
        let is_left = self.scan.keys().any(|path| path.parent() == Some(folder));
        self.states.push(State { image: self.disk.image(), what, is_left });
    }

    fn synced(&mut self, ino: u64, reach: Reach) {
        let since = self.changed.get(&ino).is_some_and(|at| self.floor < *at);
        let unknown = !self.scan.values().any(|mark| mark.ino == ino);
        if reach == Reach::FileSystem || since || unknown {
            // (With it came data.)
            let path = self
                .scan
                .iter()
                .find(|(_, mark)| mark.ino == ino)
                .map(|(path, _)| path.display().to_string());
            self.keep(format!("sync {}", path.unwrap_or_default()));
            self.floor = self.states.len() - 1;
        }
    }
}

/// Makes the journal commit all changes of names and attributes so far.
fn commit(root: &Path) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let same = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let root = File::open(root).unwrap();
    let times = Timestamps { last_access: now, last_modification: same };
    utimensat(&root, c"", &times, AtFlags::EMPTY_PATH).unwrap();
    rustix::fs::fsync(&root).unwrap();
}

fn scan(root: &Path) -> Scan {
    let mut found = Scan::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let Ok(meta) = path.symlink_metadata() else { continue };
        if meta.is_dir() {
            waiting.extend(fs::read_dir(&path).into_iter().flatten().map(|entry| entry.unwrap().path()));
        }
        let ctime = (meta.ctime(), meta.ctime_nsec());
        let mark = Mark { ino: meta.ino(), ctime, mode: meta.mode(), size: meta.size() };
        found.insert(path.strip_prefix(root).unwrap().to_owned(), mark);
    }
    found
}

fn differences(old: &Scan, new: &Scan) -> String {
    let told = |sign: char, path: &Path| {
        format!("{sign}{}", if path.as_os_str().is_empty() { Path::new(".") } else { path }.display())
    };
    let gone = old.keys().filter(|path| !new.contains_key(*path)).map(|path| told('-', path));
    let others = new.iter().filter_map(|(path, mark)| match old.get(path) {
        None => Some(told('+', path)),
        Some(was) if was != mark => Some(told('~', path)),
        Some(_) => None,
    });
    gone.chain(others).collect::<Vec<_>>().join(" ")
}
