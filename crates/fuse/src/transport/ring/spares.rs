//! Spare threads for entries of threads that are stuck.
//!
//! An entry belongs to a thread and its ring, so to answer the request of a stuck thread takes another thread. Where none
//! can be started (`TasksMax=`, `pids.max`), one that was started in time does it: as many wait here as requests may be stuck at
//! once, which is the number of calls that remote branches admit.

use std::collections::VecDeque;
use std::sync::Arc;

use fsstack_sync::{Condvar, Mutex};

use super::{FirstEntry, RingShared};
use crate::transport::workers::WorkerGuard;

/// Most spare threads that a transport has.
const MOST_SPARES: usize = 64;

/// The spare threads of a transport.
#[derive(Debug, Default)]
pub(super) struct Spares {
    state: Mutex<SparesState>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct SparesState {
    /// Threads that wait, with those that are called and have not woken yet.
    waiting: usize,
    duties: VecDeque<Duty>,
}

/// Service of an entry, handed to a spare thread.
#[derive(Debug)]
struct Duty {
    membership: WorkerGuard,
    first: FirstEntry,
}

impl RingShared {
    /// Has another thread of `queue` begin with `first`: a new one, or a spare one if none can be started.
    ///
    /// # Errors
    /// No thread can be started, and no spare one is left.
    pub(super) fn replace(
        self: &Arc<Self>,
        queue: usize,
        first: impl Fn() -> FirstEntry,
    ) -> std::io::Result<()> {
        match self.start(queue, first()) {
            Ok(_) => {
                self.start_spares();
                Ok(())
            }
            Err(_) if self.call_spare(queue, first()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Starts the spare threads that are missing, as far as threads can be started: for a branch that was added, too.
    pub(super) fn start_spares(self: &Arc<Self>) {
        let wanted = self.adapter.most_hanging().min(MOST_SPARES);
        while !self.ending.is_gone() {
            {
                let mut state = self.spares.state.lock();
                if wanted <= state.waiting {
                    return;
                }
                state.waiting += 1;
            }
            let shared = self.clone();
            let thread = fsstack_sync::thread::Builder::new().name("ring-spare".into());
            if let Err(error) = thread.spawn(move || shared.wait_as_spare()) {
                tracing::debug!(%error, "a spare thread cannot be started");
                self.spares.state.lock().waiting -= 1;
                return;
            }
        }
    }

    /// Hands the service of an entry to a spare thread; false: there is none.
    fn call_spare(self: &Arc<Self>, queue: usize, first: FirstEntry) -> bool {
        let membership = self.workers.enter(queue);
        let mut state = self.spares.state.lock();
        if state.waiting <= state.duties.len() {
            return false;
        }
        state.duties.push_back(Duty { membership, first });
        drop(state);
        self.spares.called.notify_one();
        true
    }

    /// Waits until the thread is called, then serves as any other; ends with the mount.
    fn wait_as_spare(self: &Arc<Self>) {
        let mut state = self.spares.state.lock();
        while state.duties.is_empty() && !self.ending.is_gone() {
            self.spares.called.wait(&mut state);
        }
        state.waiting -= 1;
        let duty = state.duties.pop_front();
        drop(state);
        if let Some(Duty { membership, first }) = duty {
            // Only for those who read a list of threads.
            let _named = fsstack_sys::thread::set_name(&format!("ring-{}", membership.worker().number()));
            self.run(&membership, first);
        }
    }

    /// The mount is gone: nobody waits any more.
    pub(super) fn dismiss_spares(&self) {
        // One that has just looked must be asleep before it is woken.
        drop(self.spares.state.lock());
        self.spares.called.notify_all();
    }
}
