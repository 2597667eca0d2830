//! Recovery of a branch that is in reach again: interrupted changes are settled before requests are let in.
//!
//! While the branch was away, a move may have left a second copy of a file on it, or a rename a directory under its old name
//! on one branch and its new one on another. Callers that failed meanwhile got EIO because the outcome was unknown; settling
//! decides it. Settling asks other branches, and one of them may hang unnoticed: so it has a thread of its own, and the wait
//! for that is short.

use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use fsstack_branch::branch::Branch;
use fsstack_branch::events::BranchEvents;
use fsstack_pool::{BranchId, BranchIx};

use crate::recovery::recover::{Interrupted, without_lacking};
use crate::tree::inode::table::Table;
use crate::union::Union;

/// How long the tree lock is waited for, and how long a branch that is back is kept closed for all of this.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

impl Union {
    /// From now on branches that come back are settled with this pool.
    pub(crate) fn host(self: &Arc<Self>) {
        self.events.union.get_or_init(|| Arc::downgrade(self));
    }

    /// The branch `back` answers again, and admits no other calls yet.
    fn recover(&self, back: (BranchIx, BranchId)) {
        let pool = self.tree.pool.load_full();
        let Some(back) = pool.live(back.0).filter(|live| live.id == back.1).cloned() else { return };
        let back = &*back;
        // What is about others that are away waits for them.
        let (pool, away) = without_lacking(&pool, Some(back.ix));
        let Some(interrupted) = Interrupted::of(&pool, back) else { return };
        let changed = {
            let Some(_tree_lock) = self.tree.tree_lock.try_write(SETTLE_TIMEOUT) else {
                return tracing::warn!(
                    branch = %back.path.display(),
                    "recovery of the branch put off to the next mount: the tree is busy"
                );
            };
            interrupted.clear(&pool, back, &away)
        };
        // Names may not mean what they did.
        if changed {
            self.invalidate_all();
        }
    }
}

/// The part of a pool that acts on events of its branches.
#[derive(Debug)]
pub(crate) struct PoolEvents {
    inodes: Weak<Table>,
    /// Union that settles interrupted changes, once it is at work.
    union: OnceLock<Weak<Union>>,
}

impl PoolEvents {
    pub(crate) fn new(inodes: &Arc<Table>) -> Self {
        Self { inodes: Arc::downgrade(inodes), union: OnceLock::new() }
    }

    /// The inodes of the pool.
    pub(crate) fn inodes(&self) -> Option<Arc<Table>> {
        self.inodes.upgrade()
    }

    /// The union, once it is at work.
    pub(crate) fn union(&self) -> Option<Arc<Union>> {
        self.union.get().and_then(Weak::upgrade)
    }
}

impl BranchEvents for PoolEvents {
    fn mount_gone(&self, branch: &Branch) {
        if let Some(inodes) = self.inodes() {
            inodes.close_on(branch.ix);
        }
    }

    fn mount_replaced(&self, branch: &Branch) {
        self.mount_gone(branch);
        if let Some(union) = self.union() {
            union.has_returned(branch);
        }
    }

    /// Settles what was interrupted, as far as that can be done soon: the others are asked too, and one of them may hang.
    fn answered(&self, branch: &Branch) {
        let Some(union) = self.union() else { return };
        let (settled, wait) = std::sync::mpsc::channel();
        let (ix, id) = (branch.ix, branch.id);
        let thread = fsstack_sync::thread::Builder::new().name(format!("settle-{}", ix.0));
        let thread = fsstack_branch::thread::start(thread, move || {
            union.recover((ix, id));
            union.catalogue_anew(ix);
            // Before the answer: the waiting thread must not keep the pool alive.
            drop(union);
            _ = settled.send(());
        });
        let timeout = branch.call_timeout().map_or(SETTLE_TIMEOUT, |timeout| SETTLE_TIMEOUT.min(timeout / 2));
        let branch = branch.path.display();
        match thread {
            Ok(_) if wait.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) => {
                tracing::warn!(%branch, "recovery of the branch not finished: the tree is busy, or another branch does not answer");
            }
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, %branch, "recovery of the branch: cannot start a thread")
            }
        }
    }
}
