//! The index: where objects are whose number does not lead to them. These are files that were moved to another branch,
//! and directories with further copies. Each has its number in a mark on the branch (`mark.rs`). The index leads
//! from the number to the object, and from the object to its number without a read of the mark.
//!
//! It is a database in the pool's state directory, made with its first entry. A moved file's entry is on disk before
//! the file gets its name on the new branch. A directory's is on disk within a second; after a crash the branches are
//! scanned for directories.
//!
//! The index is rebuilt from the marks when it is lost, damaged, of another pool, or an earlier copy. Equal session ids
//! in the index and on a branch prove that it has all marks of the branch (`signed.rs`). Until all marks of a branch
//! are known, each object there is asked for its mark, and a number that leads nowhere is an I/O error, never "gone". A
//! new object then gets a number that no object had (`identify.rs`): its own may belong to an object that is not found
//! yet. The same holds for a branch that is away if the index was lost meanwhile: the others remember it (`roots.rs`).
//!
//! An entry of the index counts only when the object is there: an entry left by an object that was removed out of band means
//! nothing. Once another object is known by its number it goes, on disk, as that cannot be seen while the branch is away.

mod away;
mod branch_marks;
#[cfg(test)]
mod damage;
mod dir_path;
mod file;
mod filter;
mod health;
mod members;
mod names;
mod pending;
mod roots;
mod scan;
mod signed;
mod store;
mod unwritten;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use fsstack_pool::Ino;
use fsstack_sync::atomic::{AtomicBool, Ordering::Relaxed};
use fsstack_sync::ranked::{HeldRank, RENAMES};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Condvar, Mutex, RwLock, RwLockReadGuard};
use smallvec::SmallVec;

use crate::marked_branch::MarkedBranch;
use crate::number::{self, Identity};
use crate::poolid::PoolId;
pub use away::AwayBranch;
pub use branch_marks::BranchMarks;
pub use dir_path::DirPath;
use filter::Filter;
pub use health::IndexHealth;
pub use names::{KeptBy, Name};
use pending::PendingFiles;
use roots::Members;
use scan::Jobs;
pub use scan::open_path;
use signed::{ALL, FILES, signed_by};
pub use store::IndexEntry;
use store::{DbResult, EntryKind, Store, StoreError, StoreWhen};
use unwritten::Unwritten;
pub use unwritten::learn_further;

/// Interval at which the index writes what was deferred.
const DEFERRED_WRITES_INTERVAL: Duration = Duration::from_secs(1);

/// Where the objects with one number are, as the index has it.
pub type Places = SmallVec<[IndexEntry; 1]>;

/// The index; its thread ends with it.
#[derive(Debug)]
pub struct Index {
    shared: Arc<SharedIndex>,
    thread: Mutex<Option<fsstack_sync::thread::JoinHandle<()>>>,
}

#[derive(Debug)]
struct SharedIndex {
    /// The file; None: in memory only.
    file: Option<PathBuf>,
    exports: bool,
    pool: Option<PoolId>,
    /// Branches that this pool has or had: for an index that is made anew.
    members: Mutex<Members>,
    /// The branches' roots do not have the latest members yet.
    roots_due: AtomicBool,
    /// A branch that is away may have files' marks that are not in the index.
    lacks_away: AtomicBool,
    store: ArcSwapOption<Store>,
    /// Held while the index is made or rebuilt.
    making: Mutex<()>,
    filter: Filter,
    branches: Mutex<Vec<Weak<MarkedBranch>>>,
    jobs: Mutex<Jobs>,
    wake: Condvar,
    /// Held shared by threads that rename something, until they have reported it; exclusively to declare a branch scanned.
    /// Order: before `making`.
    renames: RwLock<()>,
    /// Some changes are not on disk yet.
    dirty: AtomicBool,
    /// Files that are not in the database yet.
    pending: PendingFiles,
    /// Numbers whose changes are not on disk yet.
    unwritten: Unwritten,
}

impl Index {
    /// Opens the index of the pool `id`, as it was left.
    pub fn open(id: Option<PoolId>, state_dir: Option<&Path>, exports: bool) -> Self {
        let folder = state_dir.zip(id).map(|(dir, id)| dir.join(id.to_string()));
        let (file, store) = folder.map_or((None, None), |folder| file::open(&folder, exports));
        let filter = Filter::default();
        if store.is_some() {
            filter.open();
        }
        let shared = SharedIndex {
            file,
            exports,
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
            pending: PendingFiles::default(),
            unwritten: Unwritten::default(),
        };
        let index = Self { shared: Arc::new(shared), thread: Mutex::default() };
        if index.shared.store.load().is_some() {
            index.start();
        }
        index
    }

    /// Takes `branch` in, which joins the pool: scans it unless the index has all of its marks.
    pub fn join(&self, branch: &Arc<MarkedBranch>) {
        let shared = &self.shared;
        shared.branches.lock().push(Arc::downgrade(branch));
        self.note_member(branch);
        let by = match signed_by(branch) {
            Ok(Some(by)) => by,
            // Unsigned: no file there is marked. Directories may be, as pools that are not exported mark them without
            // signing.
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
            // From now on directories are marked without an entry in the index.
            shared.cover(branch);
        }
        if level < shared.most() {
            self.scan(branch);
        }
    }

    fn scan(&self, branch: &Arc<MarkedBranch>) {
        if self.shared.existing().is_some() {
            self.shared.jobs.lock().add(branch, Vec::new());
            self.start();
            self.shared.wake.notify_one();
        }
    }

    /// Starts the thread that scans branches, and each second writes deferred changes. It is not woken for one of those: the next one
    /// would wait until it is on disk.
    fn start(&self) {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = self.shared.clone();
            // Often called by a thread that serves a request, whose identity and scheduling the new one must not keep.
            let builder = fsstack_sync::thread::Builder::new().name("index".into());
            let started = fsstack_branch::thread::start(builder, move || shared.work());
            match started {
                Ok(handle) => *thread = Some(handle),
                Err(error) => tracing::error!(%error, "index: cannot start its thread; it stays incomplete"),
            }
        }
    }

    /// True if the index surely has nothing about the number `ino`.
    pub fn knows_nothing_of(&self, ino: Ino) -> bool {
        !self.shared.filter.may_have(ino)
    }

    /// The number `ino` is that of a live object, and does not lead to it: from now on the index may have something about it.
    pub fn note_number(&self, ino: Ino) {
        self.shared.filter.put(ino);
    }

    /// Returns the identity in force of the file born at `birth` that would have the number `natural`, if the index has
    /// it.
    pub fn known(&self, natural: Ino, birth: u32) -> Option<Identity> {
        let shared = &self.shared;
        shared.pending.known(natural, birth, || shared.read(|store| store.known(natural, birth)).flatten())
    }

    /// Returns where the objects with the number `ino` are.
    pub fn places(&self, ino: Ino) -> Places {
        if self.knows_nothing_of(ino) {
            return Places::new();
        }
        let shared = &self.shared;
        shared.pending.places(ino, || shared.read(|store| store.places(ino)).unwrap_or_default())
    }

    /// Records of files that they get copies on `branch`: (file, number that the copy would have, birth time). On disk when this
    /// returns. False: it could not be recorded.
    pub fn note_files(&self, branch: &MarkedBranch, files: &[(Identity, Ino, u32)]) -> bool {
        let noted = self.shared.put(StoreWhen::Now, EntryKind::File, files);
        // Last: the branch must bear the session of the index that has the entry, or of a later one.
        self.shared.cover(branch);
        self.start();
        noted
    }

    /// True if entries outlive the daemon.
    pub fn lasts(&self) -> bool {
        self.shared.store.load().as_ref().is_some_and(|store| store.durable)
    }

    /// True if the pool is exported: clients hold numbers, which must stay valid whatever happens.
    pub fn exports(&self) -> bool {
        self.shared.exports
    }

    /// Like [`Self::note_files`], for an entry that a mark can give again: on disk within a second.
    pub fn learn_file(&self, id: Identity, natural: Ino, birth: u32) {
        self.shared.put_soon((id, natural, birth));
        self.start();
    }

    /// Like [`Self::learn_file`], of several files, and on disk when this returns: (file, number, birth time).
    pub fn learn_files_now(&self, files: &[(Identity, Ino, u32)]) {
        let is_new = |(id, natural, birth): &&(Identity, Ino, u32)| self.known(*natural, *birth) != Some(*id);
        let new: Vec<_> = files.iter().filter(is_new).copied().collect();
        if !new.is_empty() {
            self.shared.put(StoreWhen::Now, EntryKind::File, &new);
            self.start();
        }
    }

    /// In a pool that is exported, records that the directory `id` has a copy on `branch` that would have the number `natural` and is
    /// about to be marked. False: there was nothing to record.
    pub fn note_dir(&self, branch: &MarkedBranch, id: Identity, natural: Ino) -> bool {
        self.shared.exports && self.guard_dir(branch, id, natural)
    }

    /// Like [`Self::note_dir`], in any pool: no other object gets the directory's number.
    pub fn guard_dir(&self, branch: &MarkedBranch, id: Identity, natural: Ino) -> bool {
        if id.ino == natural {
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

    /// Returns the guard of a rename: until it drops, no branch is declared scanned. [`Self::renamed`] must be called
    /// before.
    pub fn renaming(&self) -> RwLockReadGuard<'_, ()> {
        // The thread has this rank only while it waits for the lock: no thread waits without end for one that shares it.
        let _waits = HeldRank::<RENAMES>::in_order();
        self.shared.renames.read()
    }

    /// Has a renamed directory of `branch` scanned again under its new `path`, if the branch is being scanned: the scan
    /// may have missed its content.
    pub fn renamed(&self, branch: &Arc<MarkedBranch>, path: impl Fn() -> Option<Vec<u8>>) {
        if branch.marks.ask_files.load(Relaxed) || branch.marks.ask_dirs.load(Relaxed) {
            self.shared.jobs.lock().add(branch, path().unwrap_or_default());
            self.start();
            self.shared.wake.notify_one();
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.close();
    }
}

impl Index {
    /// Closes the index at unmount: all is on disk, and the next mount may rely on it.
    pub fn close(&self) {
        self.shared.jobs.lock().stop();
        self.shared.wake.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ended = thread.join();
        }
        self.set_closed(true);
    }
}

impl Index {
    /// Brings all to disk for another program, which may rely on it as on an index that was closed; [`Self::go_on`] if this one goes
    /// on instead. Nothing is renamed or moved meanwhile.
    pub fn rest(&self) {
        self.shared.tend();
        self.set_closed(true);
    }

    /// The index is at work again.
    pub fn go_on(&self) {
        if self.shared.exports {
            self.set_closed(false);
        }
    }

    fn set_closed(&self, closed: bool) {
        if let Some(store) = self.shared.store.load_full()
            && let Err(error) = self.shared.write_pending(&store).and_then(|()| store.set_closed(closed))
        {
            tracing::warn!(%error, "index: clean close failed; the next mount scans the branches");
        }
    }
}

impl SharedIndex {
    /// Runs `ask` on the index, if there is one, with all that was put into it. An index that fails is rebuilt.
    fn with<T>(&self, ask: impl FnOnce(&Store) -> DbResult<T>) -> Option<T> {
        self.read(|store| self.write_pending(store).and_then(|()| ask(store)))
    }

    /// Like [`Self::with`], without what is pending.
    fn read<T>(&self, ask: impl FnOnce(&Store) -> DbResult<T>) -> Option<T> {
        let store = self.store.load_full()?;
        ask(&store).inspect_err(|error| self.start_over(&store, error)).ok()
    }

    fn write_pending(&self, store: &Store) -> DbResult<()> {
        self.pending.write(|files| store.note(StoreWhen::Soon, EntryKind::File, files))
    }

    /// Puts an entry of a file into the index with others, within a second.
    fn put_soon(&self, file: (Identity, Ino, u32)) {
        // The filter first, as below.
        [file.0.ino, file.1].into_iter().for_each(|ino| self.filter.put(ino));
        if self.existing().is_none() {
            return;
        }
        let are_many = self.pending.add(file);
        // Last: what the thread writes meanwhile may lack it.
        self.dirty.store(true, Relaxed);
        if are_many {
            self.with(|_| Ok(()));
        }
    }

    fn put(&self, when: StoreWhen, sort: EntryKind, rows: &[(Identity, Ino, u32)]) -> bool {
        // The filter first: a query in between asks the database, which answers as before.
        for (id, natural, _) in rows {
            self.filter.put(id.ino);
            self.filter.put(*natural);
        }
        if when == StoreWhen::Soon {
            self.dirty.store(true, Relaxed);
        }
        self.existing().is_some() && self.with(|store| store.note(when, sort, rows)).is_some()
    }

    /// Returns the index, and makes it if there is none.
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

    /// Replaces the index that has `failed`, and has it rebuilt from the marks.
    fn start_over(&self, failed: &Arc<Store>, error: &StoreError) {
        let making = self.making.lock();
        if !self.is_current(failed) {
            return; // another thread has done it
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
            // Its disk may be full for a moment. The next mount uses the file for branches that still bear its session.
            self.make_in(None);
        }
        self.note_members();
        for branch in &branches {
            self.jobs.lock().add(branch, Vec::new());
        }
        drop(making);
        self.wake.notify_one();
    }

    /// Runs the index's thread until the index is closed.
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
                    self.wake.wait_until(&mut jobs, Instant::now() + DEFERRED_WRITES_INTERVAL);
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

    /// Brings all to disk.
    fn flush(&self) {
        self.unwritten.settle(|| _ = self.with(Store::flush));
    }

    /// Writes what was deferred.
    fn tend(&self) {
        // The roots come last: a branch may hang.
        if self.dirty.swap(false, Relaxed) {
            self.flush();
        }
        if self.roots_due.swap(false, Relaxed) {
            self.write_roots();
        }
    }
}

/// The birth of an object, as the index remembers it: the same whether generations are exact or not.
pub fn birth(stat: &fsstack_sys::Stat) -> u32 {
    number::generation(&fsstack_sys::Stat { version: None, ..*stat })
}
