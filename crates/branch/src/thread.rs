//! Threads of the engine, started with the process's identity and scheduling.
//!
//! A thread inherits its starter's scheduling. Worker threads are pinned to a CPU each and may run under SCHED_IDLE. A
//! thread started here may watch over such a thread, or others may wait for it, so it gets the process's original
//! scheduling. It also inherits its starter's identity, which is reset to the daemon's.

use std::io;

use fsstack_sync::thread::{Builder, JoinHandle};
use fsstack_sys as sys;

use crate::metrics::count_aside;

/// Threads that carry out jobs and moves: no program waits for their calls.
const ASIDE: [&str; 2] = ["job", "mover"];

/// Starts `work` on a new thread with ordinary scheduling, acting as the daemon.
///
/// # Errors
///
/// The thread cannot be started.
pub fn start(thread: Builder, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread.spawn(move || {
        if let Err(error) = sys::thread::be_ordinary() {
            tracing::debug!(%error, "a thread is scheduled as the one that started it");
        }
        if let Err(error) = sys::identity::become_daemon() {
            return tracing::error!(%error, "thread cannot take the daemon's identity; its work is not done");
        }
        if fsstack_sync::thread::current().name().is_some_and(|name| ASIDE.contains(&name)) {
            count_aside();
        }
        work();
    })
}
