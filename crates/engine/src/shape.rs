//! The shape of the directory tree: held shared by whoever gives a branch a directory that it lacks, exclusively
//! by whoever removes or renames a directory, on all branches.
//!
//! A walk down to a directory holds nothing, so a rename above it can lead it astray. Whatever it then does not
//! find is looked for once more with the shape held: only what is missing then is gone. A thread knows whether it
//! holds the shape already, since the same walk serves those who rename.

use std::cell::Cell;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::{OpError, Result};
use crate::health::holder::Holder;
use crate::pool::Pool;

/// How long one attempt to take it lasts.
const TRY: Duration = Duration::from_millis(20);
/// How long it is waited for while a branch is out of reach: whoever holds it may be stuck there.
const PATIENCE: Duration = Duration::from_millis(500);

thread_local! {
    static HELD: Cell<bool> = const { Cell::new(false) };
}

/// The lock. Order: before any inode's state; after an open file's place.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    lock: RwLock<()>,
    /// Who holds it.
    holders: Mutex<Vec<Holder>>,
}

/// The shape stays as it is, or is this thread's to change, until this drops.
#[must_use = "the shape is free again when this drops"]
pub(crate) struct Held<'a, G> {
    _guard: G,
    shape: &'a Shape,
}

impl Shape {
    /// Keeps it as it is. Not for a thread that holds it.
    ///
    /// # Errors
    /// EIO if who changes it does not come back from a branch that hangs.
    pub(crate) fn read(&self, pool: &Pool) -> Result<Held<'_, RwLockReadGuard<'_, ()>>> {
        patiently(pool, || self.lock.try_read_for(TRY), || self.is_stuck()).map(|guard| self.held_by(guard))
    }

    /// Takes it for a change. Not for a thread that holds it.
    ///
    /// # Errors
    /// EIO if who keeps it does not come back from a branch that hangs.
    pub(crate) fn write(&self, pool: &Pool) -> Result<Held<'_, RwLockWriteGuard<'_, ()>>> {
        // Who waits for it to change it keeps others from sharing it: only for a moment each time.
        patiently(pool, || self.lock.try_write_for(TRY), || self.is_stuck()).map(|guard| self.held_by(guard))
    }

    /// Takes it for a change, unless somebody keeps it for longer than `patience`. Not for a thread that holds it.
    pub(crate) fn try_write(&self, patience: Duration) -> Option<Held<'_, RwLockWriteGuard<'_, ()>>> {
        let came = Instant::now();
        loop {
            match self.lock.try_write_for(TRY) {
                Some(guard) => return Some(self.held_by(guard)),
                None if came.elapsed() > patience => return None,
                None => std::thread::sleep(Duration::from_millis(1)), // whoever wants to share it does
            }
        }
    }

    /// Whether the calling thread holds it.
    pub(crate) fn is_held_here() -> bool {
        HELD.get()
    }

    fn held_by<G>(&self, guard: G) -> Held<'_, G> {
        HELD.set(true);
        self.holders.lock().push(Holder::here());
        Held { _guard: guard, shape: self }
    }

    /// Whether one of those who hold it may never come back.
    fn is_stuck(&self) -> bool {
        self.holders.lock().iter().any(Holder::is_stuck)
    }
}

impl<G> Drop for Held<'_, G> {
    fn drop(&mut self) {
        HELD.set(false);
        let (here, mut holders) = (Holder::here(), self.shape.holders.lock());
        if let Some(at) = holders.iter().position(|holder| holder.is(&here)) {
            holders.swap_remove(at);
        }
    }
}

/// Tries until it succeeds.
///
/// # Errors
/// EIO if a branch hangs, and who is waited for may be in it, or if that thread `is_stuck` in what was given up, though all
/// branches be in order by now.
pub(crate) fn patiently<G>(
    pool: &Pool,
    attempt: impl Fn() -> Option<G>,
    is_stuck: impl Fn() -> bool,
) -> Result<G> {
    let came = Instant::now();
    loop {
        if let Some(guard) = attempt() {
            return Ok(guard);
        }
        if came.elapsed() > PATIENCE && (is_stuck() || pool.branches.iter().any(|branch| !branch.is_open())) {
            return Err(OpError::UNSURE);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
