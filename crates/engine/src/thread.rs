//! Threads of the engine's own, as whoever serves a request starts them.
//!
//! A thread inherits how the one is scheduled that starts it, and those that serve requests are pinned to a CPU each, where
//! they may be under SCHED_IDLE. What is started here may be waited for, or watches over such a thread: it competes for
//! processors as the process did when it was started. It also inherits as whom that thread acts, and begins as the daemon.

use std::io;
use std::thread::{Builder, JoinHandle};

use fsstack_sys as sys;

/// Starts `work` on a thread of its own, ordinarily scheduled and acting as the daemon.
///
/// # Errors
/// No thread is to be had.
pub(crate) fn start(thread: Builder, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
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
