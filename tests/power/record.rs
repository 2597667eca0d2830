//! Records the content of each disk after each call that changes or syncs something there, and the earliest state that
//! a cut can leave.
//!
//! After a change the disk's journal is made to commit without file data, as a cut right after a commit leaves it. A
//! cut at any moment leaves each disk in one of the states between its last sync by the pool and now. A sync of an
//! unchanged file or directory forces nothing, on ext4 and on XFS. The data of a file is stored by its own sync only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use fsstack_sys::Call;
use fsstack_sys::witness::{Observer, Reach};
use rustix::fs::{AtFlags, FileType, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, fstat, utimensat};

use crate::disk::{Disk, Format, Home, Image, PAGE};
use crate::model::Progress;
use crate::shown::FOLDER;

/// A disk at one moment.
#[derive(Clone, Debug)]
pub(crate) struct DiskState {
    image: Image,
    /// [`Self::image`] after replay of its journal.
    replayed: OnceLock<Image>,
    /// The call that led to it, and what it changed.
    pub(crate) what: String,
    /// The hidden folder is not empty.
    pub(crate) is_left: bool,
}

impl DiskState {
    /// The file system as a mount after the cut makes it. Its journal is replayed once, whatever the state of the other
    /// disks.
    pub(crate) fn image(&self, home: &Home, at: usize, format: Format) -> &Image {
        self.replayed.get_or_init(|| {
            let disk = home.mount(at, &self.image, format);
            disk.unmount_kept()
        })
    }
}

/// A moment: the number of each disk's state, and of the earliest one that a cut can leave.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Vec<usize>,
    pub(crate) floor: Vec<usize>,
    /// States of the index from the earliest that a cut can leave to the present one.
    pub(crate) index: RangeInclusive<usize>,
    pub(crate) progress: Progress,
}

/// Recorded states.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) disks: Vec<Vec<DiskState>>,
    pub(crate) index: Vec<IndexState>,
    pub(crate) moments: Vec<Moment>,
}

/// The state directory's files.
pub(crate) type Files = Vec<(PathBuf, Vec<u8>)>;

/// A state of the index's file system.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum IndexState {
    /// Content of its disk.
    OnDisk(Image),
    /// Files as the daemon sees them: on disk if everything was written back now.
    Cached(Files),
}

/// Key of an object's state.
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
    states: Vec<DiskState>,
    floor: usize,
    /// The state in which an object was last changed.
    changed: BTreeMap<u64, usize>,
    /// Files that were written since their last sync, and that of the file system.
    unstored: BTreeSet<u64>,
}

struct Inner {
    disks: Vec<Watched>,
    index: WatchedIndex,
    moments: Vec<Moment>,
    progress: Progress,
}

/// The index's file system is synced by the database, outside the observed calls. Its disk's content survives a cut for
/// certain; later writes may or may not.
struct WatchedIndex {
    disk: Disk,
    states: Vec<IndexState>,
    /// The last state that is on disk.
    floor: usize,
    image: Image,
    files: Files,
}

impl WatchedIndex {
    fn of(disk: Disk) -> Self {
        let (image, files) = (disk.image(), files_below(disk.path()));
        let states = vec![IndexState::OnDisk(image.clone()), IndexState::Cached(files.clone())];
        Self { disk, states, floor: 0, image, files }
    }

    /// Records changes, if there are any.
    fn look(&mut self) -> bool {
        let (image, files) = (self.disk.image(), files_below(self.disk.path()));
        let is_stored = self.image != image;
        if is_stored {
            self.floor = self.states.len();
            self.states.push(IndexState::OnDisk(image.clone()));
            self.image = image;
        }
        let is_written = self.files != files;
        if is_written && !is_stored {
            // Without a sync, pages are written back in any order.
            self.states.push(IndexState::Cached(every_other_page(&self.files, &files)));
        }
        if is_stored || is_written {
            self.states.push(IndexState::Cached(files.clone()));
            self.files = files;
        }
        is_stored || is_written
    }
}

/// Files with every other changed page written back.
fn every_other_page(old: &Files, new: &Files) -> Files {
    let mix = |(path, bytes): &(PathBuf, Vec<u8>)| {
        let before = old.iter().find(|(known, _)| known == path).map_or(&[][..], |(_, bytes)| bytes);
        let mut mixed = bytes.clone();
        let changed =
            |(at, page): &(usize, &mut [u8])| before.get(at * PAGE..at * PAGE + page.len()) != Some(&**page);
        for (at, page) in mixed.chunks_mut(PAGE).enumerate().filter(changed).step_by(2) {
            let was = before.get(at * PAGE..).unwrap_or_default();
            page.fill(0);
            let len = was.len().min(page.len());
            page[..len].copy_from_slice(&was[..len]);
        }
        (path.clone(), mixed)
    };
    new.iter().map(mix).collect()
}

/// Observer of the pool's calls.
pub(crate) struct Recorder(Mutex<Inner>);

impl Recorder {
    /// Records these disks, whose content is on disk, and the index's disk.
    pub(crate) fn of(disks: Vec<Disk>, index: Disk, progress: Progress) -> Self {
        let watched = disks.into_iter().map(|disk| {
            let mut watched = Watched {
                device: fs::metadata(disk.path()).unwrap().dev(),
                disk,
                scan: Scan::new(),
                states: Vec::new(),
                floor: 0,
                changed: BTreeMap::new(),
                unstored: BTreeSet::new(),
            };
            watched.keep("as it was".to_owned());
            watched
        });
        let disks = watched.collect();
        let mut inner = Inner { disks, index: WatchedIndex::of(index), moments: Vec::new(), progress };
        inner.pass();
        Self(Mutex::new(inner))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the program begins an operation, or got its answer.
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
        inner.index.disk.unmount();
        Kept { disks, index: inner.index.states, moments: inner.moments }
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
    /// Records changes, if there are any.
    fn look(&mut self, call: &str) -> bool {
        let mut changed = false;
        for watched in &mut self.disks {
            changed |= watched.look(call);
        }
        self.index.look() | changed
    }

    fn pass(&mut self) {
        self.moments.push(Moment {
            now: self.disks.iter().map(|watched| watched.states.len() - 1).collect(),
            floor: self.disks.iter().map(|watched| watched.floor).collect(),
            index: self.index.floor..=self.index.states.len() - 1,
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
        let sizes: BTreeMap<u64, u64> = self.scan.values().map(|mark| (mark.ino, mark.size)).collect();
        let is_file = |mark: &&Mark| FileType::from_raw_mode(mark.mode).is_file();
        let written = scan
            .values()
            .filter(is_file)
            .filter(|mark| sizes.get(&mark.ino).copied().unwrap_or(0) != mark.size);
        self.unstored.extend(written.map(|mark| mark.ino));
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

    /// Records the present content as a state, with the journal committed.
    fn keep(&mut self, what: String) {
        commit(self.disk.path());
        self.scan = scan(self.disk.path());
        let folder = Path::new(FOLDER);
        let is_left = self.scan.keys().any(|path| path.parent() == Some(folder));
        self.states.push(DiskState { image: self.disk.image(), replayed: OnceLock::new(), what, is_left });
    }

    fn synced(&mut self, ino: u64, reach: Reach) {
        let since = self.changed.get(&ino).is_some_and(|at| self.floor < *at);
        let unknown = !self.scan.values().any(|mark| mark.ino == ino);
        let stores = self.unstored.remove(&ino);
        if reach == Reach::FileSystem {
            self.unstored.clear();
        }
        if reach == Reach::FileSystem || since || stores || unknown {
            // Data was committed with it.
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
pub(crate) fn commit(root: &Path) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let same = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let root = File::open(root).unwrap();
    let times = Timestamps { last_access: now, last_modification: same };
    utimensat(&root, c"", &times, AtFlags::EMPTY_PATH).unwrap();
    rustix::fs::fsync(&root).unwrap();
}

/// All files below `root`.
pub(crate) fn files_below(root: &Path) -> Files {
    let mut found = Files::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                waiting.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                found.push((path.strip_prefix(root).unwrap().to_owned(), bytes));
            }
        }
    }
    found
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
    let described = |sign: char, path: &Path| {
        format!("{sign}{}", if path.as_os_str().is_empty() { Path::new(".") } else { path }.display())
    };
    let gone = old.keys().filter(|path| !new.contains_key(*path)).map(|path| described('-', path));
    let others = new.iter().filter_map(|(path, mark)| match old.get(path) {
        None => Some(described('+', path)),
        Some(was) if was != mark => Some(described('~', path)),
        Some(_) => None,
    });
    gone.chain(others).collect::<Vec<_>>().join(" ")
}
