//! Changing the pool's branches while it is mounted.
//!
//! A request works on the snapshot of the pool that it began with. So a change is made in steps, and between two of
//! them every request that may not know of the last step is waited for ([`Union::settle`]).

use fsstack_pool::{BranchIx, BranchMode, Floor};

use crate::union::Union;

/// Why the branches stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChange {
    /// There is no such branch.
    #[error("no branch of this pool is in slot {0}")]
    NoBranch(BranchIx),
}

impl Union {
    /// The branch `ix` may be changed as `mode` says, from the next request on; files that are open for writing
    /// stay so.
    ///
    /// # Errors
    /// There is no such branch.
    pub fn set_branch_mode(&self, ix: BranchIx, mode: BranchMode) -> Result<(), BadChange> {
        let pool = self.pool.load();
        let branch = pool.live(ix).ok_or(BadChange::NoBranch(ix))?;
        branch.set_mode(mode);
        tracing::info!(branch = %branch.path.display(), %mode, "the branch's mode was changed");
        Ok(())
    }

    /// The branch keeps `floor` free, and `min_inodes` inodes; None: as much as the pool's settings say.
    ///
    /// # Errors
    /// There is no such branch.
    pub fn set_branch_floor(
        &self,
        ix: BranchIx,
        floor: Option<Floor>,
        min_inodes: Option<u64>,
    ) -> Result<(), BadChange> {
        let pool = self.pool.load();
        let branch = pool.live(ix).ok_or(BadChange::NoBranch(ix))?;
        branch.set_limits(floor, min_inodes);
        tracing::info!(branch = %branch.path.display(), "the branch's floor was changed");
        Ok(())
    }
}
