//! Answer of the branches to the question which of them have a copy of a directory.

use fsstack_pool::BranchIx;
use smallvec::SmallVec;

use super::clock::Moment;
use super::copies::bit;

/// Copies of a directory, as a lookup found them.
#[derive(Clone, Debug)]
pub struct Copies {
    /// Branch and the branch's inode number, in the pool's order.
    pub found: SmallVec<[(BranchIx, u64); 4]>,
    /// Branches that could not be asked: a bit each.
    pub unsure: u64,
    /// When the question was put: of what was changed later it says nothing.
    asked: Moment,
}

impl Copies {
    /// Empty result of a query that begins now.
    pub fn asked_now() -> Self {
        Self { found: SmallVec::new(), unsure: 0, asked: Moment::now() }
    }

    /// These there are. That there are no others was not asked.
    pub fn known(found: impl IntoIterator<Item = (BranchIx, u64)>) -> Self {
        Self { found: found.into_iter().collect(), unsure: 0, asked: Moment::KNOWN }
    }

    /// When the question was put.
    pub(crate) fn asked(&self) -> Moment {
        self.asked
    }

    /// The branch could not be asked.
    pub fn unsure_of(&mut self, branch: BranchIx) {
        self.unsure |= bit(branch);
    }

    /// Whether the branch could not be asked.
    pub fn is_unsure_of(&self, branch: BranchIx) -> bool {
        self.unsure & bit(branch) != 0
    }
}
