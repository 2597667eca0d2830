//! Whether a thread that other threads wait for will return.
//!
//! A thread that creates a name, removes a directory's only copy or holds the tree lock makes calls on branches
//! meanwhile, and one of them may never return. The branch's monitor gives such a call up. Even when the branch has
//! recovered, was mounted again or has left the pool, threads stuck in the old mount stay stuck. So a waiting thread
//! checks the other thread itself.

use std::sync::Arc;

use fsstack_sync::atomic::{AtomicUsize, Ordering::SeqCst};

fsstack_sync::thread_local! {
    static HERE: ThreadInCalls = ThreadInCalls::default();
}

/// A thread, with the number of its current calls that were given up.
#[derive(Clone, Debug, Default)]
pub struct ThreadInCalls(Arc<AtomicUsize>);

impl ThreadInCalls {
    /// The calling thread.
    pub fn here() -> Self {
        // A thread that is ending holds nothing that others wait for.
        HERE.try_with(Clone::clone).unwrap_or_default()
    }

    /// True if it is in a call that was given up and may never return.
    pub fn is_stuck(&self) -> bool {
        self.0.load(SeqCst) > 0
    }

    pub(crate) fn is_given_up(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    pub(crate) fn is_back(&self) {
        let before = self.0.fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "a thread is back from a call that was not given up");
    }

    /// True if both are the same thread.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
