//! Recovery of a branch that is in reach again: interrupted changes are settled before requests are let in.
//!
//! While the branch was away, a move may have left a second copy of a file on it, or a rename a directory under its old name
//! on one branch and its new one on another. Callers that failed meanwhile got EIO because the outcome was unknown; settling
//! decides it. Settling asks other branches, and one of them may hang unnoticed: so it has a thread of its own, and the wait
//! for that is short.

use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fsstack_pool::BranchId;

use crate::branch::Branch;
use crate::health::inflight_limit::InflightLimit;
use crate::recover::Interrupted;
use crate::union::Union;

/// How long the tree lock is waited for, and how long a branch that is back is kept closed for all of this.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

impl Union {
    /// From now on branches that come back are settled with this pool.
    pub(crate) fn host(self: &Arc<Self>) {
        let me = self.me.get_or_init(|| Arc::downgrade(self));
        self.pool.load().branches.iter().for_each(|branch| branch.hosted_by(me));
    }

    /// The branch `back` answers again, and nobody else is let in yet.
    fn recover(&self, back: &Branch) {
        let mut pool = self.pool.load_full();
        if pool.live(back.ix).is_none() {
            return;
        }
        // What is about others that are away waits for them.
        let away: Vec<_> = pool
            .branches
            .iter()
            .filter(|other| other.ix != back.ix && other.ask(|| other.check_subvolumes()).is_err())
            .map(|other| (other.ix, other.id))
            .collect();
        for (other, _) in &away {
            pool = Arc::new(pool.without(*other));
        }
        let away: Vec<BranchId> = away.into_iter().map(|(_, id)| id).collect();
        let Some(interrupted) = Interrupted::of(&pool, back) else { return };
        let changed = {
            let Some(_tree_lock) = self.tree_lock.try_write(SETTLE_TIMEOUT) else {
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

impl Branch {
    pub(crate) fn hosted_by(&self, union: &Weak<Union>) {
        self.health.host.get_or_init(|| union.clone());
    }

    /// Settles what was interrupted, as far as that can be done soon: the others are asked too, and one of them may hang.
    pub(crate) fn settle_with_pool(&self) {
        let (Some(union), Some(me)) = (self.health.host.get().and_then(Weak::upgrade), self.me.upgrade())
        else {
            return;
        };
        let (settled, wait) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name(format!("settle-{}", self.ix.0));
        let thread = thread.spawn(move || {
            union.recover(&me);
            // Before the answer: the waiting thread must not keep the pool alive.
            drop(union);
            _ = settled.send(());
        });
        let timeout = self.health.inflight_limit.as_ref().and_then(InflightLimit::timeout);
        let timeout = timeout.map_or(SETTLE_TIMEOUT, |timeout| SETTLE_TIMEOUT.min(timeout / 2));
        let branch = self.path.display();
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
