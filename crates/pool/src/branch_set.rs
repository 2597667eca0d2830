//! Sets of branches by slot.

use crate::ids::BranchIx;

/// A set of branches of one pool, which has 64 at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BranchSet(u64);

impl BranchSet {
    /// No branch.
    pub const EMPTY: Self = Self(0);
    /// Every branch.
    pub const ALL: Self = Self(u64::MAX);

    /// True if the branch is in it.
    pub fn contains(self, branch: BranchIx) -> bool {
        1_u64.checked_shl(branch.0.into()).is_some_and(|bit| self.0 & bit != 0)
    }

    /// Adds a branch.
    pub fn insert(&mut self, branch: BranchIx) {
        self.0 |= 1_u64.checked_shl(branch.0.into()).unwrap_or(0);
    }

    /// Branches that are in either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Branches that are in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Branches that are not in it.
    #[must_use]
    pub fn others(self) -> Self {
        Self(!self.0)
    }

    /// True if no branch is in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<BranchIx> for BranchSet {
    fn from_iter<T: IntoIterator<Item = BranchIx>>(branches: T) -> Self {
        let mut set = Self::EMPTY;
        branches.into_iter().for_each(|branch| set.insert(branch));
        set
    }
}
