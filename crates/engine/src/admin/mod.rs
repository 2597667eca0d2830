//! Administration of a mounted pool: branches, settings, state, reservations.

mod away;
mod branch_recovery;
pub mod change;
pub mod explain;
pub mod handles;
mod known;
pub mod live;
pub mod mount_watch;
pub mod reserve;
pub mod status;
pub mod watch;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use fsstack_branch::ranked::{CHANGES, COPIES, Ranked};
use parking_lot::Mutex;

use live::MembershipChanges;
use reserve::Copying;
use watch::{BranchWatch, Invalidator};

/// State of administration: changes of the pool, bulk copies, the watch for changes out of band.
#[derive(Debug, Default)]
pub(crate) struct Admin {
    /// Held while a branch is added or removed, also while a disk is asked that may hang. Order: before `changes`.
    pub(crate) membership: Mutex<()>,
    /// Held while a snapshot is published, and during the wait for requests that use the last one.
    pub(crate) changes: Ranked<MembershipChanges, CHANGES>,
    /// Bulk copies under way. No call on a branch is made under it.
    pub(crate) copies: Ranked<HashMap<u64, Copying>, COPIES>,
    /// Receiver of invalidations.
    pub(crate) invalidator: OnceLock<Arc<dyn Invalidator>>,
    pub(crate) watch: OnceLock<Arc<BranchWatch>>,
}
