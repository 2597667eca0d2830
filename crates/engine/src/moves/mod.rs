//! Moves of files to other branches: because a branch is full, or because a job has files leave it.

pub(crate) mod allocation;
pub(crate) mod batch;
pub(crate) mod batch_exchange;
pub(crate) mod clone_metadata;
pub(crate) mod directories;
pub(crate) mod hidden;
pub(crate) mod job_move;
pub(crate) mod movers;
pub(crate) mod moving;
pub(crate) mod naming;
pub(crate) mod reasons;
pub(crate) mod refusals;
pub(crate) mod relocate;
pub(crate) mod room;
pub(crate) mod set_aside;
pub(crate) mod special;
pub(crate) mod transfer;

use std::sync::{Arc, OnceLock, Weak};

use crate::opened::tables::Files;
use crate::tree::Tree;
use movers::Movers;
use refusals::Refusals;

/// Moves of files: which threads move them, which files may not be moved.
#[derive(Debug)]
pub(crate) struct Moves {
    pub(crate) tree: Arc<Tree>,
    pub(crate) files: Arc<Files>,
    pub(crate) movers: Movers,
    pub(crate) refusals: Refusals,
    /// Itself, once the pool is at work: for movers.
    me: OnceLock<Weak<Self>>,
}

impl Moves {
    /// Moves of the files of `tree`; the calling threads make them until [`Self::host`].
    pub(crate) fn new(tree: Arc<Tree>, files: Arc<Files>) -> Self {
        let (movers, refusals) = (Movers::default(), Refusals::default());
        Self { tree, files, movers, refusals, me: OnceLock::new() }
    }

    /// From now on files are moved by threads of their own.
    pub(crate) fn host(self: &Arc<Self>) {
        self.me.get_or_init(|| Arc::downgrade(self));
    }

    /// Itself, if files are moved by threads of their own.
    fn hosted(&self) -> Option<Arc<Self>> {
        self.me.get().and_then(Weak::upgrade)
    }
}
