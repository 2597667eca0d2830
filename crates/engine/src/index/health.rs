//! Health and content of the index, for status and checks.

use std::fmt;
use std::sync::Arc;

use super::{Index, Store};
use crate::inode::number::Identity;
use crate::member::Member;

/// How the index does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexHealth {
    /// Objects in it.
    pub objects: u64,
    /// All marks of all branches are in it.
    pub complete: bool,
    /// It outlives the daemon.
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
    /// How the index does.
    pub(crate) fn health(&self, branches: &[Arc<Member>]) -> IndexHealth {
        let store = self.shared.store.load();
        IndexHealth {
            objects: store.as_ref().and_then(|store| store.len().ok()).unwrap_or(0),
            complete: branches.iter().all(|branch| branch.marks.are_known()),
            durable: store.as_ref().map_or(self.shared.file.is_some(), |store| store.durable),
        }
    }

    /// Up to `count` of its objects: those from the number `from` on, then from the first on.
    pub(crate) fn some(&self, from: u64, count: usize) -> Vec<Identity> {
        self.shared.with(|store: &Store| store.some(from, count)).unwrap_or_default()
    }
}
