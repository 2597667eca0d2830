//! The branch in which a request was longest, for the log of slow calls. Measured only while somebody watches.

use std::cell::Cell;

use fsstack_pool::BranchIx;
use fsstack_sync::atomic::{AtomicBool, Ordering::Relaxed};
use fsstack_sync::time::{Duration, Instant};

/// True while somebody watches. A process serves one pool.
static WATCHED: AtomicBool = AtomicBool::new(false);

fsstack_sync::thread_local! {
    /// The longest stay of this thread's request in a branch.
    static LONGEST: Cell<Option<(BranchIx, Duration)>> = const { Cell::new(None) };
}

/// Begins or ends measuring, for all threads.
pub fn watch(on: bool) {
    WATCHED.store(on, Relaxed);
}

/// Begins a request of this thread.
pub fn begin() {
    LONGEST.set(None);
}

/// The branch in which this thread's request was longest; none if it was in none.
pub fn branch() -> Option<BranchIx> {
    LONGEST.get().map(|(branch, _)| branch)
}

/// Runs a call on `branch`, with the wait for its permit.
pub(crate) fn timed<T>(branch: BranchIx, call: impl FnOnce() -> T) -> T {
    if !WATCHED.load(Relaxed) {
        return call();
    }
    let began = Instant::now();
    let done = call();
    let took = began.elapsed();
    if LONGEST.get().is_none_or(|(_, longest)| longest < took) {
        LONGEST.set(Some((branch, took)));
    }
    done
}
