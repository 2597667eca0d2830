//! The shape of the directory tree: held shared by whoever gives a branch a directory that it lacks, exclusively
//! by whoever removes or renames a directory, on all branches.
//!
//! A walk down to a directory holds nothing, so a rename above it can lead it astray. Whatever it then does not
//! find is looked for once more with the shape held: only what is missing then is gone. A thread knows whether it
//! holds the shape already, since the same walk serves those who rename.

use std::cell::Cell;
use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::{OpError, Result};
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
pub(crate) struct Shape(RwLock<()>);

/// The shape stays as it is, or is this thread's to change, until this drops.
#[must_use = "the shape is free again when this drops"]
pub(crate) struct Held<G> {
    _guard: G,
}

impl Shape {
    /// Keeps it as it is. Not for a thread that holds it.
    ///
    /// # Errors
    /// EIO if who changes it does not come back from a branch that hangs.
    pub(crate) fn read(&self, pool: &Pool) -> Result<Held<RwLockReadGuard<'_, ()>>> {
        patiently(pool, || self.0.try_read_for(TRY)).map(Held::by)
    }

    /// Takes it for a change. Not for a thread that holds it.
    ///
    /// # Errors
    /// EIO if who keeps it does not come back from a branch that hangs.
    pub(crate) fn write(&self, pool: &Pool) -> Result<Held<RwLockWriteGuard<'_, ()>>> {
        // Who waits for it to change it keeps others from sharing it: only for a moment each time.
        patiently(pool, || self.0.try_write_for(TRY)).map(Held::by)
    }

    /// Takes it for a change, unless somebody keeps it for longer than `patience`. Not for a thread that holds it.
    pub(crate) fn try_write(&self, patience: Duration) -> Option<Held<RwLockWriteGuard<'_, ()>>> {
        let came = Instant::now();
        loop {
            match self.0.try_write_for(TRY) {
                Some(guard) => return Some(Held::by(guard)),
                None if came.elapsed() > patience => return None,
                None => std::thread::sleep(Duration::from_millis(1)), // whoever wants to share it does
            }
        }
    }

    /// Whether the calling thread holds it.
    pub(crate) fn is_held_here() -> bool {
        HELD.get()
    }
}

impl<G> Held<G> {
    fn by(guard: G) -> Self {
        HELD.set(true);
        Self { _guard: guard }
    }
}

impl<G> Drop for Held<G> {
    fn drop(&mut self) {
        HELD.set(false);
    }
}

/// Tries until it succeeds.
///
/// # Errors
/// EIO if a branch hangs, and who is waited for may be in it.
pub(crate) fn patiently<G>(pool: &Pool, attempt: impl Fn() -> Option<G>) -> Result<G> {
    let came = Instant::now();
    loop {
        if let Some(guard) = attempt() {
            return Ok(guard);
        }
        if came.elapsed() > PATIENCE && pool.branches.iter().any(|branch| !branch.is_open()) {
            return Err(OpError::UNSURE);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
