//! Recovery of a branch that is in reach again: interrupted changes are settled before requests are let in.
//!
//! While the branch was away, a move may have left a second copy of a file on it, or a rename a directory under its old name
//! on one branch and its new one on another. Callers that failed meanwhile got EIO because the outcome was unknown; settling
//! decides it. Settling asks other branches, and one of them may hang unnoticed: so it has a thread of its own, and the wait
//! for that is short.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fsstack_branch::branch::Branch;
use fsstack_pool::{BranchId, BranchIx};
use fsstack_sync::mpsc::RecvTimeoutError;

use crate::member::events::PoolHost;
use crate::recovery::recover::{Interrupted, without_lacking};
use crate::union::Union;

/// How long the tree lock is waited for, and how long a branch that is back is kept closed for all of this.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause before another try to settle a branch, where the tree was busy.
const SETTLE_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Outcome of one try to settle what was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    /// All that can be settled now is, or the branch is away again.
    Over,
    /// Others keep the tree lock.
    TreeBusy,
}

impl Union {
    /// The branch `back` answers again, and admits no other calls yet.
    fn recover(&self, back: (BranchIx, BranchId)) -> Recovery {
        let pool = self.tree.pool.load_full();
        let Some(back) = pool.live(back.0).filter(|live| live.id == back.1).cloned() else {
            return Recovery::Over;
        };
        let back = &*back;
        // What is about others that are away waits for them.
        let (pool, away) = without_lacking(&pool, Some(back.ix));
        let Some(interrupted) = Interrupted::of(&pool, back) else { return Recovery::Over };
        let changed = {
            let Some(_tree_lock) = self.tree.tree_lock.try_write(SETTLE_TIMEOUT) else {
                return Recovery::TreeBusy;
            };
            interrupted.clear((&pool, &self.tree.index), back, &away)
        };
        // Names may not mean what they did.
        if changed {
            self.invalidate_all();
        }
        Recovery::Over
    }
}

/// Tries again after [`Recovery::TreeBusy`], for as long as the branch answers: one that hangs meanwhile is settled when it
/// is back. Does not keep the pool alive in between.
fn recover_later(union: &Weak<Union>, back: (BranchIx, BranchId)) {
    loop {
        fsstack_sync::thread::sleep(SETTLE_RETRY_PAUSE);
        let Some(union) = union.upgrade() else { return };
        let is_open = union.tree.pool.load().live(back.0).is_some_and(|branch| branch.is_open());
        if !is_open {
            return;
        }
        if union.recover(back) == Recovery::Over {
            return union.catalogue_anew(back.0);
        }
    }
}

impl PoolHost for Union {
    fn mount_replaced(&self, branch: &Branch) {
        self.has_returned(branch);
    }

    /// Settles what was interrupted, as far as that can be done soon: the others are asked too, and one of them may hang.
    fn answered(self: Arc<Self>, branch: &Branch) {
        let union = self;
        let (settled, wait) = fsstack_sync::mpsc::channel();
        let (ix, id) = (branch.ix, branch.id);
        let thread = fsstack_sync::thread::Builder::new().name(format!("settle-{}", ix.0));
        let thread = fsstack_branch::thread::start(thread, move || {
            let recovery = union.recover((ix, id));
            union.catalogue_anew(ix);
            // Before the answer: the waiting thread must not keep the pool alive.
            let later = Arc::downgrade(&union);
            drop(union);
            _ = settled.send(recovery);
            if recovery == Recovery::TreeBusy {
                recover_later(&later, (ix, id));
            }
        });
        let timeout = branch.call_timeout().map_or(SETTLE_TIMEOUT, |timeout| SETTLE_TIMEOUT.min(timeout / 2));
        let branch = branch.path.display();
        match thread {
            Ok(_) => match wait.recv_timeout(timeout) {
                Ok(Recovery::Over) | Err(RecvTimeoutError::Disconnected) => {}
                Ok(Recovery::TreeBusy) | Err(RecvTimeoutError::Timeout) => {
                    tracing::warn!(%branch, "recovery of the branch not finished: the tree is busy, or another branch does not answer; it goes on in the background");
                }
            },
            Err(error) => {
                tracing::error!(%error, %branch, "recovery of the branch: cannot start a thread")
            }
        }
    }
}
