//! Branches that were part of the pool and are not now, and giving one up (`crates/identity/src/index/away.rs`).

use fsstack_identity::index::AwayBranch;
use fsstack_pool::BranchId;

use crate::bad_change::BadChange;
use crate::recovery::give_up::give_up;
use crate::union::Union;

impl Union {
    /// Returns the branches that were part of the pool while it was exported, and are not now.
    pub fn away(&self) -> Vec<AwayBranch> {
        let pool = self.tree.pool.load();
        self.tree.index.away(|id| pool.has(id))
    }

    /// The branch `id` will not come back: handles of what was there are stale from now on, and records of interrupted changes that
    /// wait for it alone go. On disk when this returns, if the index is. It may be one that the pool does not know of: an index that
    /// was lost has forgotten it.
    ///
    /// # Errors
    /// The branch is in the pool, or one of the pool's keeps a record for it; the pool is not exported and nothing waits for the branch, or has nothing that would remember it.
    pub fn give_up_branch(&self, id: BranchId) -> Result<(), BadChange> {
        // No branch comes or goes meanwhile.
        let _membership = self.changes.change_branches()?;
        let pool = self.tree.pool.load();
        if let Some(branch) = pool.branches.iter().find(|branch| branch.id == id) {
            return Err(BadChange::InPool(branch.path.display().to_string()));
        }
        let waited = give_up(&pool, id)?;
        if !pool.settings.nfs_export {
            return if waited { Ok(()) } else { Err(BadChange::NotExported) };
        }
        self.tree.index.give_up(id).ok_or(BadChange::NotKept)?;
        tracing::info!(%id, "branch forgotten; file handles of its objects are stale");
        Ok(())
    }
}
