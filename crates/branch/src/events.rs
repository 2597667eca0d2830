//! Events of a branch that its pool acts on.

use std::fmt::Debug;

use crate::branch::Branch;

/// The pool, as a branch reports to it. Called by the thread of a probe, with no lock held; the branch waits for the return.
pub trait BranchEvents: Send + Sync + Debug {
    /// The mount that the branch was on is not used any more: descriptors on it are to be closed.
    fn mount_gone(&self, branch: &Branch);
    /// The branch was mounted again, and is used there from now on. Anything on it may have changed meanwhile.
    fn mount_replaced(&self, branch: &Branch);
    /// The branch answers a probe, in full; requests are let in after this.
    fn answered(&self, branch: &Branch);
}
