//! The engine's own threads, started with the process's identity and scheduling.
//!
//! A thread inherits the scheduling of its starter, and worker threads are pinned to a CPU each, where they may be under
//! SCHED_IDLE. A thread started here may be waited for, or watch over such a thread: it competes for processors as the
//! process did when it was started. It also inherits its starter's identity, and begins as the daemon.

use std::io;
use std::thread::{Builder, JoinHandle};

use fsstack_sys as sys;

/// Starts `work` on a thread of its own, ordinarily scheduled and acting as the daemon.
///
/// # Errors
/// No thread is to be had.
pub fn start(thread: Builder, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread.spawn(move || {
        if let Err(error) = sys::thread::be_ordinary() {
            tracing::debug!(%error, "a thread is scheduled as the one that started it");
        }
        if let Err(error) = sys::identity::become_daemon() {
            return tracing::error!(%error, "thread cannot take the daemon's identity; its work is not done");
        }
        work();
    })
}
