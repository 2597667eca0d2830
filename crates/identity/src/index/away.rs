//! Branches that were part of the pool and are not now.
//!
//! Handles of their objects get an I/O error, never ESTALE. Most numbers contain the branch's id, except where the
//! branch's own inode numbers fill 64 bits (GlusterFS). While such a branch is away, a number of that form that is not
//! found may be on it. The operator can give a branch up: its objects are then gone. If it comes back nevertheless, it
//! is a branch as before.

use std::path::PathBuf;

use fsstack_branch::branch::Branch;
use fsstack_pool::{BranchId, Ino};

use super::Index;
use super::store::Store;
use crate::number;

/// A branch that was part of the pool while it was exported, and is not now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwayBranch {
    /// The id that is stored on it.
    pub id: BranchId,
    /// Path where it was last; empty if that was not recorded.
    pub path: PathBuf,
}

impl Index {
    /// Records `branch` as a member, if the pool is exported or the branch was given up.
    pub(super) fn note_member(&self, branch: &Branch) {
        if (self.shared.exports || self.is_gone(branch.id)) && self.shared.existing().is_some() {
            self.shared.with(|store| note(store, branch, self.shared.exports));
        }
    }

    /// Returns the branches that were part of the pool while it was exported, and are not now.
    pub fn away(&self, is_here: impl Fn(BranchId) -> bool) -> Vec<AwayBranch> {
        let known = self.shared.with(Store::members).unwrap_or_default();
        let away = known.into_iter().filter(|(id, _)| !is_here(*id));
        away.map(|(id, path)| AwayBranch { id, path }).collect()
    }

    /// The branch `id` is given up, on disk if the index is. None: nothing would remember it.
    pub fn give_up(&self, id: BranchId) -> Option<()> {
        self.shared.existing()?;
        self.shared.with(|store| store.give_up(id))?;
        self.admit(std::iter::empty());
        Some(())
    }

    /// True if a number that contains no branch id may belong to an object on a branch that is away.
    pub fn lacks_hashed(&self, is_here: impl Fn(BranchId) -> bool) -> bool {
        self.shared.read(Store::hashed).unwrap_or_default().into_iter().any(|id| !is_here(id))
    }

    /// True if the operator has given the branch up.
    fn is_gone(&self, branch: BranchId) -> bool {
        self.shared.read(|store| store.is_gone(branch)).unwrap_or(false)
    }

    /// True if the number belongs to a branch that was given up.
    pub fn is_of_a_gone_branch(&self, natural: Ino) -> bool {
        number::branch_of(natural).is_some_and(|branch| self.is_gone(branch))
    }
}

fn note(store: &Store, branch: &Branch, exports: bool) -> super::store::DbResult<()> {
    store.note_member(branch.id, &branch.path)?;
    let has_long_numbers = exports && branch.by_number.is_none() && !branch.kind.is_local();
    if has_long_numbers && !store.hashed()?.contains(&branch.id) {
        store.note_hashed(branch.id)?;
    }
    Ok(())
}
