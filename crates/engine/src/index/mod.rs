//! Objects whose number does not tell where they are: files that were moved to another branch, and directories that
//! have further copies. What they are known by is marked on them (`inode/mark.rs`); the index is the way from the
//! number to the object, and from the object to its number without a look at the mark.
//!
//! It is a database in the pool's state directory. What a file is known by is on disk before the file gets its name
//! on the new branch; directories are on disk within a second, and are looked for after a crash. The index is made
//! when there is something to put into it, and anew from the marks when it is lost, damaged, of another pool, or an
//! earlier copy: that a branch's marks are all in it is known by what both say (`signed.rs`). Until a branch's marks are
//! all known, every object there is asked for its mark, a number that leads nowhere is an I/O error, never "gone", and what is
//! made has a number that nothing had (`identify.rs`): its own may be that of something that is not found yet. The
//! same goes for a branch that is away, if the index was lost meanwhile: the others remember it (`roots.rs`).
//!
//! An entry of the index counts only when the object is there: an entry left by an object that was removed out of band means
//! nothing.

mod away;
#[cfg(test)]
mod damage;
mod dir_path;
mod file;
mod filter;
mod health;
mod members;
mod names;
mod pages;
mod roots;
mod scan;
mod signed;
mod store;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use fsstack_pool::Ino;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use smallvec::SmallVec;

use crate::inode::number::{self, Identity};
use crate::member::Member;
use crate::poolid::PoolId;
use crate::settings::Settings;
pub use away::AwayBranch;
pub(crate) use dir_path::DirPath;
use filter::Filter;
pub use health::IndexHealth;
pub(crate) use names::{KeptBy, Name};
use roots::Members;
use scan::Jobs;
pub(crate) use scan::open_path;
use signed::{ALL, FILES, signed_by};
pub(crate) use store::IndexEntry;
use store::{EntryKind, Store, StoreError, StoreWhen};

/// Where the objects with one number are, as the index has it.
pub(crate) type Places = SmallVec<[IndexEntry; 1]>;

/// State of a branch's marks.
#[derive(Debug, Default)]
pub(crate) struct BranchMarks {
    /// Not all marks of files are in the index: each file is asked.
    pub(crate) ask_files: AtomicBool,
    /// Not all marks of directories are in the index.
    pub(crate) ask_dirs: AtomicBool,
    /// The branch bears the index's session: a mark may be put there.
    signed: AtomicBool,
}

/// The index; its thread ends with it.
#[derive(Debug)]
pub(crate) struct Index {
    shared: Arc<SharedIndex>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

#[derive(Debug)]
struct SharedIndex {
    /// The file; None: in memory only.
    file: Option<PathBuf>,
    exports: bool,
    pool: Option<PoolId>,
    /// Branches that this pool has or had: for an index that is made anew.
    members: Mutex<Members>,
    /// The branches' roots do not say that yet.
    roots_due: AtomicBool,
    /// A branch that is away may have files' marks that are not in the index.
    lacks_away: AtomicBool,
    store: ArcSwapOption<Store>,
    /// One makes it anew at a time.
    making: Mutex<()>,
    filter: Filter,
    branches: Mutex<Vec<Weak<Member>>>,
    jobs: Mutex<Jobs>,
    wake: Condvar,
    /// Held shared by threads that rename something, until they have reported it; exclusively to declare a branch scanned.
    /// Order: before `making`.
    renames: RwLock<()>,
    /// Something is not on disk yet.
    dirty: AtomicBool,
}

impl Index {
    /// The index of the pool `id`, as it was left.
    pub(crate) fn open(id: Option<PoolId>, settings: &Settings) -> Self {
        let folder = settings.state_dir.as_ref().zip(id).map(|(dir, id)| dir.join(id.to_string()));
        let (file, store) = folder.map_or((None, None), |folder| file::open(&folder, settings.nfs_export));
        let filter = Filter::default();
        if store.is_some() {
            filter.open();
        }
        let shared = SharedIndex {
            file,
            exports: settings.nfs_export,
            pool: id,
            members: Mutex::default(),
            roots_due: AtomicBool::new(false),
            lacks_away: AtomicBool::new(false),
            store: ArcSwapOption::new(store.map(Arc::new)),
            making: Mutex::default(),
            filter,
            branches: Mutex::default(),
            jobs: Mutex::default(),
            wake: Condvar::new(),
            renames: RwLock::default(),
            dirty: AtomicBool::new(false),
        };
        let index = Self { shared: Arc::new(shared), thread: Mutex::default() };
        if index.shared.store.load().is_some() {
            index.start();
        }
        index
    }

    /// `branch` is part of the pool.
    pub(crate) fn join(&self, branch: &Arc<Member>) {
        let shared = &self.shared;
        shared.branches.lock().push(Arc::downgrade(branch));
        self.note_member(branch);
        let by = match signed_by(branch) {
            Ok(Some(by)) => by,
            // No file there is marked. Directories may be: pools that are not exported do not say so.
            Ok(None) if !shared.exports => return,
            Ok(None) => {
                shared.has_no_file(branch);
                branch.marks.ask_dirs.store(true, Relaxed);
                return self.scan(branch);
            }
            Err(error) => {
                tracing::warn!(%error, branch = %branch.path.display(), "index: cannot read whether the branch has marks; each file is asked");
                branch.marks.ask_files.store(true, Relaxed);
                branch.marks.ask_dirs.store(shared.exports, Relaxed);
                return self.scan(branch);
            }
        };
        let level = shared.level_of(branch, by);
        branch.marks.ask_files.store(level < FILES, Relaxed);
        branch.marks.ask_dirs.store(level < ALL && shared.exports, Relaxed);
        if level > shared.most() {
            // From now on directories are marked without a word to the index.
            shared.cover(branch);
        }
        if level < shared.most() {
            self.scan(branch);
        }
    }

    fn scan(&self, branch: &Arc<Member>) {
        if self.shared.existing().is_some() {
            self.shared.jobs.lock().add(branch, Vec::new());
            self.start();
        }
    }

    /// The thread that scans, and writes what need not be written at once.
    fn start(&self) {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = self.shared.clone();
            // Often by a thread that serves a request.
            let builder = std::thread::Builder::new().name("index".into());
            let started = fsstack_branch::thread::start(builder, move || shared.work());
            match started {
                Ok(handle) => *thread = Some(handle),
                Err(error) => tracing::error!(%error, "index: cannot start its thread; it stays incomplete"),
            }
        }
        self.shared.wake.notify_one();
    }

    /// Nothing was ever moved, as far as `ino` goes.
    pub(crate) fn knows_nothing_of(&self, ino: Ino) -> bool {
        !self.shared.filter.may_have(ino)
    }

    /// The identity in force for the file born at `birth` that would have the number `natural`.
    pub(crate) fn known(&self, natural: Ino, birth: u32) -> Option<Identity> {
        self.shared.with(|store| store.known(natural, birth)).flatten()
    }

    /// Where the objects with the number `ino` are.
    pub(crate) fn places(&self, ino: Ino) -> Places {
        if self.knows_nothing_of(ino) {
            return Places::new();
        }
        self.shared.with(|store| store.places(ino)).unwrap_or_default()
    }

    /// The file `id` gets a copy on `branch` that would have the number `natural`: on disk when this returns.
    /// False: it could not be noted.
    pub(crate) fn note_file(&self, branch: &Member, id: Identity, natural: Ino, birth: u32) -> bool {
        let noted = self.shared.put(StoreWhen::Now, EntryKind::File, &[(id, natural, birth)]);
        // Last: the branch is to bear the session of the index that it was put into, or of a later one.
        self.shared.cover(branch);
        self.start();
        noted
    }

    /// Like [`Self::note_file`], for an object that was just made and is about to be marked: on disk within a second. (After
    /// a crash before that, it is found by its mark.)
    pub(crate) fn note_new(&self, branch: &Member, id: Identity, natural: Ino, birth: u32) {
        self.shared.cover(branch);
        self.learn_file(id, natural, birth);
    }

    /// Entries outlive the daemon.
    pub(crate) fn lasts(&self) -> bool {
        self.shared.store.load().as_ref().is_some_and(|store| store.durable)
    }

    /// Numbers must stay valid for all their holders, whatever happens.
    pub(crate) fn exports(&self) -> bool {
        self.shared.exports
    }

    /// Like [`Self::note_file`], for an entry that can be found out again: on disk within a second.
    pub(crate) fn learn_file(&self, id: Identity, natural: Ino, birth: u32) {
        self.shared.put(StoreWhen::Soon, EntryKind::File, &[(id, natural, birth)]);
        self.start();
    }

    /// The directory `id` has a copy on `branch` that would have the number `natural`, and is about to be marked so. False: that
    /// was known.
    pub(crate) fn note_dir(&self, branch: &Member, id: Identity, natural: Ino) -> bool {
        if !self.shared.exports || id.ino == natural {
            return false;
        }
        self.shared.cover(branch);
        let known =
            self.places(id.ino).iter().any(|known| known.id == id && known.naturals.contains(&natural));
        if !known {
            self.shared.put(StoreWhen::Soon, EntryKind::Dir, &[(id, natural, 0)]);
            self.start();
        }
        !known
    }

    /// The object `id` is no more, or not at `natural` any more.
    pub(crate) fn forget(&self, id: Identity, natural: Option<Ino>) {
        if !self.knows_nothing_of(id.ino) {
            self.shared.with(|store| store.forget(id, natural));
            self.shared.dirty.store(true, Relaxed);
        }
    }

    /// A rename is about to begin: until this drops, no branch is declared scanned. ([`Self::renamed`] is called before.)
    pub(crate) fn renaming(&self) -> RwLockReadGuard<'_, ()> {
        self.shared.renames.read()
    }

    /// A directory got another path, below the root of `branch`: what is in it may have been passed by.
    pub(crate) fn renamed(&self, branch: &Arc<Member>, path: impl Fn() -> Option<Vec<u8>>) {
        if branch.marks.ask_files.load(Relaxed) || branch.marks.ask_dirs.load(Relaxed) {
            self.shared.jobs.lock().add(branch, path().unwrap_or_default());
            self.start();
        }
    }
}

impl BranchMarks {
    /// A number that leads nowhere on this branch leads nowhere.
    pub(crate) fn are_known(&self) -> bool {
        !self.ask_files.load(Relaxed) && !self.ask_dirs.load(Relaxed)
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.close();
    }
}

impl Index {
    /// The pool is unmounted: all is on disk, and the next mount may rely on it.
    pub(crate) fn close(&self) {
        self.shared.jobs.lock().stop();
        self.shared.wake.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ended = thread.join();
        }
        if let Some(store) = self.shared.store.load().as_ref()
            && let Err(error) = store.set_closed(true)
        {
            tracing::warn!(%error, "index: clean close failed; the next mount scans the branches");
        }
    }
}

impl SharedIndex {
    /// Asks the index, if there is one. One that fails is made anew.
    fn with<T>(&self, ask: impl FnOnce(&Store) -> Result<T, StoreError>) -> Option<T> {
        let store = self.store.load_full()?;
        ask(&store).inspect_err(|error| self.start_over(&store, error)).ok()
    }

    fn put(&self, when: StoreWhen, sort: EntryKind, rows: &[(Identity, Ino, u32)]) -> bool {
        // First the filter: a query meanwhile looks into the database and finds nothing yet.
        for (id, natural, _) in rows {
            self.filter.put(id.ino);
            self.filter.put(*natural);
        }
        if when == StoreWhen::Soon {
            self.dirty.store(true, Relaxed);
        }
        self.existing().is_some() && self.with(|store| store.note(when, sort, rows)).is_some()
    }

    /// The index, made if there is none.
    fn existing(&self) -> Option<Arc<Store>> {
        if let Some(store) = self.store.load_full() {
            return Some(store);
        }
        let _create_guard = self.making.lock();
        if self.store.load().is_none() {
            self.make();
        }
        self.store.load_full()
    }

    fn make(&self) {
        self.make_in(self.file.as_deref());
    }

    fn make_in(&self, file: Option<&Path>) {
        let id = PoolId::fresh().0;
        let made = match file {
            None => Store::make(None, id),
            Some(file) => file::make(file, id).or_else(|error| {
                tracing::error!(%error, file = %file.display(), "index cannot be stored in state-dir; it is lost at unmount");
                Store::make(None, id)
            }),
        };
        match made {
            Ok(store) => self.store.store(Some(Arc::new(store))),
            Err(error) => tracing::error!(%error, "no index: moved files and file handles may not be found"),
        }
    }

    fn is_current(&self, store: &Arc<Store>) -> bool {
        self.store.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, store))
    }

    /// The index failed: it is made anew, from the marks.
    fn start_over(&self, failed: &Arc<Store>, error: &StoreError) {
        let making = self.making.lock();
        if !self.is_current(failed) {
            return; // somebody has done it
        }
        tracing::error!(%error, "index failed; rebuilding it from the marks on the branches");
        let branches: Vec<_> = self.branches.lock().iter().filter_map(Weak::upgrade).collect();
        for branch in &branches {
            branch.marks.ask_files.store(true, Relaxed);
            branch.marks.ask_dirs.store(self.exports, Relaxed);
        }
        self.store.store(None);
        branches.iter().for_each(|branch| branch.marks.signed.store(false, Relaxed));
        if error.is_damage() {
            self.make();
        } else {
            // Its disk may be full for a moment: the file is good at the next mount, for branches that it is still the one of.
            self.make_in(None);
        }
        self.note_members();
        for branch in &branches {
            self.jobs.lock().add(branch, Vec::new());
        }
        drop(making);
        self.wake.notify_one();
    }

    /// Work of the thread until the index is closed.
    fn work(&self) {
        if let Some(store) = self.store.load_full() {
            match store.numbers(|ino| self.filter.put(ino)) {
                Ok(()) => self.filter.close(),
                Err(error) => self.start_over(&store, &error),
            }
        }
        loop {
            self.tend();
            let job = {
                let mut jobs = self.jobs.lock();
                if !jobs.stopped() && jobs.is_empty() {
                    self.wake.wait_until(&mut jobs, Instant::now() + Duration::from_secs(1));
                }
                if jobs.stopped() {
                    break;
                }
                jobs.take()
            };
            if let Some(job) = job {
                self.run(job);
            }
        }
    }

    /// Deferred work.
    fn tend(&self) {
        // A root may hang.
        if self.dirty.swap(false, Relaxed) {
            self.with(Store::flush);
        }
        if self.roots_due.swap(false, Relaxed) {
            self.write_roots();
        }
    }
}

/// The birth of an object, as the index remembers it: the same whether generations are exact or not.
pub(crate) fn birth(stat: &fsstack_sys::Stat) -> u32 {
    number::generation(&fsstack_sys::Stat { version: None, ..*stat })
}
