//! A branch is in reach again: what was interrupted when it went is settled before anybody is let in.
//!
//! While it was away, a move may have left a second copy of a file on it, or a rename a directory under its old name
//! on one branch and its new one on another. Whoever was told an error meanwhile was told that it is not known
//! which; from now on it is.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::branch::Branch;
use crate::recover;
use crate::union::Union;

/// How long the tree's shape is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

impl Union {
    /// From now on branches that come back are settled with this pool.
    pub(crate) fn host(self: &Arc<Self>) {
        let me = self.me.get_or_init(|| Arc::downgrade(self));
        self.pool.load().branches.iter().for_each(|branch| branch.hosted_by(me));
    }

    /// The branch `back` answers again, and nobody else is let in yet.
    fn regain(&self, back: &Branch) {
        let mut pool = self.pool.load_full();
        if pool.live(back.ix).is_none() {
            return;
        }
        // What is about others that are away waits for them.
        let away: Vec<_> = pool
            .branches
            .iter()
            .filter(|other| other.ix != back.ix && (!other.is_open() || other.check_parts().is_err()))
            .collect();
        let away: Vec<_> = away.into_iter().map(|other| other.ix).collect();
        for other in away {
            pool = Arc::new(pool.without(other));
        }
        if !recover::is_interrupted(&pool, back) {
            return;
        }
        {
            let Some(_shape) = self.shape.try_write(PATIENCE) else {
                return tracing::warn!(
                    branch = %back.path.display(),
                    "what was interrupted on the branch waits for the next mount: the tree is busy"
                );
            };
            recover::clear_returned(&pool, back);
        }
        // Names may not mean what they did.
        self.doubt_all();
    }
}

impl Branch {
    pub(crate) fn hosted_by(&self, union: &Weak<Union>) {
        self.health.host.get_or_init(|| union.clone());
    }

    pub(crate) fn settle_with_pool(&self) {
        if let Some(union) = self.health.host.get().and_then(Weak::upgrade) {
            union.regain(self);
        }
    }
}
