//! Names under which objects were last seen, on branches that cannot open by inode number (`search.rs`).
//!
//! A cache: each entry is verified on the branch before it is used, and a lost one costs a walk through the branch.

use fsstack_pool::{BranchId, Ino};

use super::store::{DbResult, NAMES, Store, StoreWhen, table};
use super::{Index, Relaxed};

/// A name in a directory that is known by its own number; [`Ino`] 0 is the branch's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Branch that has it.
    pub branch: BranchId,
    /// Stamp of the walk that saw the name, or of the last walk before it was seen.
    pub look: u64,
    /// Number of the directory that it is in.
    pub parent: Ino,
    /// The name itself.
    pub name: Vec<u8>,
}

/// Id of the database that holds the names: one that fails is replaced by another, which lacks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptBy([u8; 16]);

impl Index {
    /// Moves `rows` into the index, and returns the database that holds them; None if they were not stored. On disk
    /// within a second.
    pub fn note_names(&self, rows: &mut Vec<(Ino, Name)>) -> Option<KeptBy> {
        self.shared.existing()?;
        let noted = self.shared.with(|store| store.note_names(rows).map(|()| KeptBy(store.id)));
        self.shared.dirty.store(true, Relaxed);
        self.start();
        rows.clear();
        noted
    }

    /// Removes the names on `branch` that the walk `look` has not seen. It has seen all of the branch.
    pub fn forget_names(&self, branch: BranchId, look: u64) {
        self.shared.with(|store| store.forget_names(branch, look));
        self.shared.dirty.store(true, Relaxed);
    }

    /// Returns the id of the database in use.
    pub fn kept_by(&self) -> Option<KeptBy> {
        self.shared.store.load().as_ref().map(|store| KeptBy(store.id))
    }

    /// Returns the name under which the object with the number `natural` was last seen.
    pub fn name(&self, natural: Ino) -> Option<Name> {
        self.shared.read(|store| store.name(natural)).flatten()
    }
}

impl Store {
    /// Records where objects were seen.
    pub(super) fn note_names(&self, rows: &[(Ino, Name)]) -> DbResult<()> {
        self.change(StoreWhen::Soon, |tables| {
            let mut names = tables.open_table(NAMES)?;
            for (natural, at) in rows {
                names.insert(natural.0, (at.branch.get(), at.look, at.parent.0, at.name.as_slice()))?;
            }
            Ok(())
        })
    }

    /// Removes names on the branch that other walks than `look` have seen.
    pub(super) fn forget_names(&self, branch: BranchId, look: u64) -> DbResult<()> {
        self.change(StoreWhen::Soon, |tables| {
            let mut names = tables.open_table(NAMES)?;
            names.retain(|_, (at, by, ..)| at != branch.get() || by == look)?;
            Ok(())
        })
    }

    /// Returns where the object with this number was seen last.
    pub(super) fn name(&self, natural: Ino) -> DbResult<Option<Name>> {
        let read = self.begin_read()?;
        let Some(table) = table(&read, NAMES)? else { return Ok(None) };
        let found = table.get(natural.0)?;
        Ok(found.and_then(|found| {
            let (branch, look, parent, name) = found.value();
            Some(Name { branch: BranchId::new(branch)?, look, parent: Ino(parent), name: name.to_vec() })
        }))
    }
}
