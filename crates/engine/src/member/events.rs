//! Events of a branch, as the pool that it is part of acts on them.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock, Weak};

use fsstack_branch::branch::Branch;
use fsstack_branch::events::BranchEvents;

use crate::inode::table::Table;

/// A pool at work, which settles what was interrupted while a branch was away.
pub(crate) trait PoolHost: Debug + Send + Sync {
    /// The branch is mounted anew.
    fn mount_replaced(&self, branch: &Branch);

    /// The branch answers again, and admits no other calls until this returns.
    fn answered(self: Arc<Self>, branch: &Branch);
}

/// The part of a pool that acts on events of its branches.
#[derive(Debug)]
pub(crate) struct PoolEvents {
    inodes: Weak<Table>,
    /// The pool, once it is at work.
    host: OnceLock<Weak<dyn PoolHost>>,
}

impl PoolEvents {
    pub(crate) fn new(inodes: &Arc<Table>) -> Self {
        Self { inodes: Arc::downgrade(inodes), host: OnceLock::new() }
    }

    /// From now on `host` settles branches that come back; the first one stays.
    pub(crate) fn host_is(&self, host: Weak<dyn PoolHost>) {
        self.host.get_or_init(|| host);
    }

    /// The inodes of the pool.
    pub(crate) fn inodes(&self) -> Option<Arc<Table>> {
        self.inodes.upgrade()
    }

    fn host(&self) -> Option<Arc<dyn PoolHost>> {
        self.host.get().and_then(Weak::upgrade)
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
        if let Some(host) = self.host() {
            host.mount_replaced(branch);
        }
    }

    fn answered(&self, branch: &Branch) {
        if let Some(host) = self.host() {
            host.answered(branch);
        }
    }
}
