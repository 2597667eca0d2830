//! Branches whose objects have numbers that do not tell the branch (GlusterFS): while one of them is not in the pool, nothing
//! that has such a number and is not found is known to be gone.

use fsstack_pool::BranchId;

use super::Index;
use super::store::Store;
use crate::branch::Branch;
use crate::pool::Pool;

impl Index {
    /// `branch` is part of the pool, now and maybe later.
    pub(super) fn note_hashed(&self, branch: &Branch) {
        if !self.shared.exports || branch.by_number.is_some() || branch.kind.is_local() {
            return;
        }
        let known = self.shared.with(Store::hashed).is_some_and(|known| known.contains(&branch.id));
        if !known && self.shared.existing().is_some() {
            self.shared.with(|store| store.note_hashed(branch.id));
        }
    }

    /// Whether a number that tells no branch may be of something on a branch that is not in the pool now.
    pub(crate) fn lacks_hashed(&self, pool: &Pool) -> bool {
        let lacks = |id: &BranchId| pool.branches.iter().all(|branch| branch.id != *id);
        self.shared.with(Store::hashed).unwrap_or_default().iter().any(lacks)
    }
}
