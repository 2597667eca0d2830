//! Events of a branch that its pool acts on.

use std::fmt::Debug;

use crate::branch::Branch;

/// The pool as a branch reports to it. Called by a probe's thread with no lock held; the branch waits for the return.
pub trait BranchEvents: Send + Sync + Debug {
    /// The branch's mount is no longer used: descriptors on it are to be closed.
    fn mount_gone(&self, branch: &Branch);
    /// The branch was mounted again and is used there from now on. Anything on it may have changed.
    fn mount_replaced(&self, branch: &Branch);
    /// The branch answers a probe with all its subvolumes; requests are admitted after this.
    fn answered(&self, branch: &Branch);
}
