//! A catalogue that is being kept: how far each branch is known now, and the threads that write it, one a branch.

use std::collections::HashMap;
use std::sync::Arc;

use fsstack_sync::atomic::{AtomicBool, Ordering::Relaxed};
use fsstack_sync::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use fsstack_sync::{Condvar, Mutex};
use fsstack_sys::thread::ThreadId;

use crate::Result;
use crate::offline::OfflineTable;
use crate::store::{BranchRow, Catalogue, CatalogueError};

/// Changes of the catalogue are on disk after this time.
pub const FLUSH_AFTER: Duration = Duration::from_secs(5);

/// How far a branch of the pool is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Knowledge {
    /// All of its names are known.
    pub complete: bool,
    /// A walk over it has not ended.
    pub walking: bool,
    /// Changed names are being looked at.
    pub looking: bool,
    /// Time up to which the names are known: seconds since the epoch; 0: never.
    pub as_of: u64,
}

/// A catalogue that is being kept.
#[derive(Debug)]
pub struct Upkeep {
    /// The catalogue.
    pub catalogue: Catalogue,
    /// Objects of branches out of reach that the kernel knows.
    pub offline: OfflineTable,
    known: Mutex<HashMap<u16, Knowledge>>,
    dirty: AtomicBool,
    flushed: Mutex<Instant>,
    /// The database has failed: it is written no more.
    failed: AtomicBool,
    /// It was said that the catalogue is full.
    said_full: AtomicBool,
    writers: Arc<Writers>,
}

/// The threads that write the catalogue. Apart from it: one that has ended does not hold it.
#[derive(Debug, Default)]
struct Writers {
    threads: Mutex<Threads>,
    ended: Condvar,
}

/// Threads that write the catalogue.
#[derive(Debug, Default)]
struct Threads {
    /// Number of them, also of those that have not begun.
    count: usize,
    begun: Vec<ThreadId>,
}

/// A thread that writes the catalogue is at work until this drops.
#[derive(Debug)]
pub struct AtWork {
    writers: Arc<Writers>,
    thread: Option<ThreadId>,
}

impl AtWork {
    /// The calling thread is the one that is at work.
    pub fn begun(&mut self) {
        let own = ThreadId::own();
        self.thread = Some(own);
        self.writers.threads.lock().begun.push(own);
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let mut threads = self.writers.threads.lock();
        threads.begun.retain(|thread| Some(*thread) != self.thread);
        threads.count -= 1;
        drop(threads);
        self.writers.ended.notify_all();
    }
}

impl Upkeep {
    /// Keeps `catalogue`.
    pub fn new(catalogue: Catalogue) -> Self {
        Self {
            catalogue,
            offline: OfflineTable::default(),
            known: Mutex::default(),
            dirty: AtomicBool::new(false),
            flushed: Mutex::new(Instant::now()),
            failed: AtomicBool::new(false),
            said_full: AtomicBool::new(false),
            writers: Arc::default(),
        }
    }

    /// How far the branch is known.
    pub fn known(&self, branch: u16) -> Option<Knowledge> {
        self.known.lock().get(&branch).copied()
    }

    /// Sets how far the branch is known.
    pub fn set_known(&self, branch: u16, known: Knowledge) {
        self.known.lock().insert(branch, known);
    }

    /// The branch has left the pool: what is known of it is on disk. `whole`: no change of it is pending.
    ///
    /// # Errors
    /// The database failed.
    pub fn leave(&self, branch: u16, whole: bool) -> Result<()> {
        let Some(known) = self.known(branch) else { return Ok(()) };
        self.catalogue.change(|batch| {
            let Some(row) = batch.branch(branch)? else { return Ok(()) };
            let complete = known.complete && whole;
            batch.set_branch(branch, &BranchRow { complete, trusted: false, as_of: known.as_of, ..row })
        })?;
        // Last: until then the row says that it is incomplete.
        self.known.lock().remove(&branch);
        self.catalogue.flush()
    }

    /// A thread begins to write the catalogue.
    pub fn begin(&self) -> AtWork {
        self.writers.threads.lock().count += 1;
        AtWork { writers: self.writers.clone(), thread: None }
    }

    /// Does `act` to each thread that has begun and has not ended.
    pub fn each_thread(&self, act: impl FnMut(ThreadId)) {
        // Locked: the number of a thread that has ended may be that of another one.
        self.writers.threads.lock().begun.iter().copied().for_each(act);
    }

    /// Waits until no thread writes the catalogue. False: one still does after `timeout`.
    pub fn wait_ended(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut threads = self.writers.threads.lock();
        while threads.count > 0 && !self.writers.ended.wait_until(&mut threads, until).timed_out() {}
        threads.count == 0
    }

    /// Something was changed that is not on disk yet.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Relaxed)
    }

    /// Records that something was changed.
    pub fn note_change(&self) {
        self.dirty.store(true, Relaxed);
    }

    /// Brings changes to disk if the last time was long enough ago.
    ///
    /// # Errors
    /// The database failed.
    pub fn flush_if_due(&self) -> Result<()> {
        // Another thread is at it.
        let Some(mut flushed) = self.flushed.try_lock() else { return Ok(()) };
        if flushed.elapsed() < FLUSH_AFTER || !self.dirty.swap(false, Relaxed) {
            return Ok(());
        }
        let done = self.catalogue.flush();
        *flushed = Instant::now();
        done
    }

    /// The catalogue is full. True the first time.
    pub fn say_full(&self) -> bool {
        !self.said_full.swap(true, Relaxed)
    }

    /// The database has failed. True the first time.
    pub fn fail(&self) -> bool {
        self.known.lock().values_mut().for_each(|known| known.complete = false);
        !self.failed.swap(true, Relaxed)
    }

    /// Whether the database has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Ends cleanly: what is known of each branch is on disk. The next mount may rely on it if nothing but the pool changed the
    /// branches, which is `exclusive`.
    ///
    /// # Errors
    /// The database failed.
    pub fn close(&self, exclusive: bool) -> Result<()> {
        if self.has_failed() {
            return Ok(());
        }
        let known = self.known.lock().clone();
        self.catalogue.change(|batch| {
            for (branch, known) in known {
                if let Some(row) = batch.branch(branch)? {
                    let Knowledge { complete, as_of, .. } = known;
                    let trusted = complete && exclusive;
                    batch.set_branch(branch, &BranchRow { complete, trusted, as_of, ..row })?;
                }
            }
            Ok::<_, CatalogueError>(())
        })?;
        self.catalogue.flush()
    }
}

impl Catalogue {
    /// The next mount relies on nothing that was known before this one: branches may change without this catalogue.
    ///
    /// # Errors
    /// The database failed.
    pub fn trust_nothing(&self) -> Result<()> {
        let rows = self.branches()?;
        if rows.iter().any(|(_, row)| row.trusted) {
            self.change(|batch| {
                rows.into_iter()
                    .try_for_each(|(id, row)| batch.set_branch(id, &BranchRow { trusted: false, ..row }))
            })?;
            self.flush()?;
        }
        Ok(())
    }
}

/// Seconds since the epoch.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
