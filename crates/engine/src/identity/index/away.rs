//! Branches that were part of the pool and are not now.
//!
//! Handles of their objects get an I/O error, never ESTALE. Most numbers contain the branch's id, except where the
//! branch's own inode numbers fill 64 bits (GlusterFS). While such a branch is away, a number of that form that is not
//! found may be on it. The operator can give a branch up: its objects are then gone. If it comes back nevertheless, it
//! is a branch as before.

use std::path::PathBuf;

use fsstack_branch::branch::Branch;
use fsstack_branch::error::OpError;
use fsstack_pool::{BranchId, Ino};

use super::Index;
use super::store::Store;
use crate::bad_change::BadChange;
use crate::pool::Pool;
use crate::recovery::give_up::give_up;
use crate::tree::Tree;
use crate::tree::inode::number;
use crate::union::Union;

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

    /// True if a number that contains no branch id may belong to an object on a branch that is away.
    pub(crate) fn lacks_hashed(&self, pool: &Pool) -> bool {
        let lacks = |id: &BranchId| pool.branches.iter().all(|branch| branch.id != *id);
        self.shared.with(Store::hashed).unwrap_or_default().iter().any(lacks)
    }

    /// True if the operator has given the branch up.
    fn is_gone(&self, branch: BranchId) -> bool {
        self.shared.with(|store| store.is_gone(branch)).unwrap_or(false)
    }

    /// True if the number belongs to a branch that was given up.
    pub(crate) fn is_of_a_gone_branch(&self, natural: Ino) -> bool {
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

impl Union {
    /// Returns the branches that were part of the pool while it was exported, and are not now.
    pub fn away(&self) -> Vec<AwayBranch> {
        let pool = self.pool.load();
        let known = self.tree.index.shared.with(Store::members).unwrap_or_default();
        let away = known.into_iter().filter(|(id, _)| pool.branches.iter().all(|branch| branch.id != *id));
        away.map(|(id, path)| AwayBranch { id, path }).collect()
    }

    /// The branch `id` will not come back: handles of what was there are stale from now on, and records of interrupted changes that
    /// wait for it alone go. On disk when this returns, if the index is. It may be one that the pool does not know of: an index that
    /// was lost has forgotten it.
    ///
    /// # Errors
    /// The branch is in the pool, or one of the pool's keeps a record for it; the pool is not exported and nothing waits for the branch, or has nothing that would remember it.
    pub fn give_up_branch(&self, id: BranchId) -> Result<(), BadChange> {
        // No branch comes or goes meanwhile.
        let _membership = self.change_branches()?;
        let pool = self.pool.load();
        if let Some(branch) = pool.branches.iter().find(|branch| branch.id == id) {
            return Err(BadChange::InPool(branch.path.display().to_string()));
        }
        let waited = give_up(&pool, id)?;
        if !pool.settings.nfs_export {
            return if waited { Ok(()) } else { Err(BadChange::NotExported) };
        }
        let kept = self
            .tree
            .index
            .shared
            .existing()
            .and_then(|_| self.tree.index.shared.with(|store| store.give_up(id)));
        kept.ok_or(BadChange::NotKept)?;
        self.tree.index.admit(&[]);
        tracing::info!(%id, "branch forgotten; file handles of its objects are stale");
        Ok(())
    }
}

impl Tree {
    /// Error for a number `natural` that no branch of the pool could have made.
    pub(crate) fn of_no_branch(&self, natural: Ino) -> OpError {
        if self.index.is_of_a_gone_branch(natural) { OpError::STALE } else { OpError::UNSURE }
    }
}
