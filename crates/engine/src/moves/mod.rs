//! Moves of files to other branches: because a branch is full, or because a job has files leave it.

pub(crate) mod allocation;
pub(crate) mod batch;
pub(crate) mod clone_metadata;
pub(crate) mod directories;
pub(crate) mod job_move;
pub(crate) mod movers;
pub(crate) mod moving;
pub(crate) mod naming;
pub(crate) mod reasons;
pub(crate) mod refusals;
pub(crate) mod relocate;
pub(crate) mod special;
pub(crate) mod transfer;

use movers::Movers;
use refusals::Refusals;

/// State of moves: which files leave their branch, which threads move them, which files may not be moved.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    pub(crate) movers: Movers,
    pub(crate) refusals: Refusals,
}
