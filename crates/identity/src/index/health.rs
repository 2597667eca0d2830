//! Health and content of the index, for status and checks.

use std::fmt;

use super::{Index, Store};
use crate::marked_branch::MarkedBranch;
use crate::number::Identity;

/// Health and size of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexHealth {
    /// Number of objects in the index.
    pub objects: u64,
    /// True if all marks of all branches are in it.
    pub complete: bool,
    /// True if it outlives the daemon.
    pub durable: bool,
}

impl fmt::Display for IndexHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let complete = if self.complete { "complete" } else { "being completed" };
        let kept = if self.durable { "" } else { ", until the pool is unmounted" };
        write!(f, "{complete}, {} objects{kept}", self.objects)
    }
}

impl Index {
    /// Returns the health of the index over `branches`.
    pub fn health<'a>(&self, mut branches: impl Iterator<Item = &'a MarkedBranch>) -> IndexHealth {
        let store = self.shared.store.load();
        IndexHealth {
            objects: self.shared.read(Store::len).unwrap_or(0) + self.shared.pending.len(),
            complete: branches.all(|branch| branch.marks.are_known()),
            durable: store.as_ref().map_or(self.shared.file.is_some(), |store| store.durable),
        }
    }

    /// Returns up to `count` objects by ascending number, from `from` on, then from the first on.
    pub fn some(&self, from: u64, count: usize) -> Vec<Identity> {
        self.shared.read(|store: &Store| store.some(from, count)).unwrap_or_default()
    }
}
