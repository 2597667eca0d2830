//! The shape of the directory tree: held shared by whoever gives a branch a directory that it lacks, exclusively
//! by whoever removes or renames a directory, on all branches.
//!
//! A walk down to a directory holds nothing, so a rename above it can lead it astray. Whatever it then does not
//! find is looked for once more with the shape held: only what is missing then is gone. A thread knows whether it
//! holds the shape already, since the same walk serves those who rename.

use std::cell::Cell;
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

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
    pub(crate) fn read(&self) -> Held<RwLockReadGuard<'_, ()>> {
        Held::by(self.0.read())
    }

    /// Takes it for a change. Not for a thread that holds it.
    pub(crate) fn write(&self) -> Held<RwLockWriteGuard<'_, ()>> {
        Held::by(self.0.write())
    }

    /// Takes it for a change, unless somebody keeps it for longer than `patience`. Not for a thread that holds it.
    pub(crate) fn try_write(&self, patience: Duration) -> Option<Held<RwLockWriteGuard<'_, ()>>> {
        self.0.try_write_for(patience).map(Held::by)
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
