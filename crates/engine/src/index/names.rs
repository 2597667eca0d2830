//! Under which name an object was last seen on a branch that does not open objects by number (`search.rs`).
//!
//! Only a memory: what it says is looked at before it is believed, and losing it costs one look through the branch.

use fsstack_pool::{BranchId, Ino};

use super::{Index, Relaxed};

/// A name in a directory that is known by its own number; [`Ino`] 0 is the branch's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) branch: BranchId,
    /// By which look, or since which.
    pub(crate) look: u64,
    pub(crate) parent: Ino,
    pub(crate) name: Vec<u8>,
}

/// Which database has something: one that fails is replaced by another, which does not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptBy([u8; 16]);

impl Index {
    /// Remembers these, and forgets them in `rows`: by which database. On disk within a second. None: they were not kept.
    pub(crate) fn note_names(&self, rows: &mut Vec<(Ino, Name)>) -> Option<KeptBy> {
        self.shared.existing()?;
        let noted = self.shared.with(|store| store.note_names(rows).map(|()| KeptBy(store.id)));
        self.shared.dirty.store(true, Relaxed);
        self.start();
        rows.clear();
        noted
    }

    /// A look that saw all of the branch is over: what it has not seen is not there.
    pub(crate) fn forget_names(&self, branch: BranchId, look: u64) {
        self.shared.with(|store| store.forget_names(branch, look));
        self.shared.dirty.store(true, Relaxed);
    }

    /// The database that is asked now.
    pub(crate) fn monitor(&self) -> Option<KeptBy> {
        self.shared.store.load().as_ref().map(|store| KeptBy(store.id))
    }

    /// Where the object with the number `natural` was seen last.
    pub(crate) fn name(&self, natural: Ino) -> Option<Name> {
        self.shared.with(|store| store.name(natural)).flatten()
    }
}
