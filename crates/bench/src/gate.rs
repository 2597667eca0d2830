//! Starting gate: releases tasks together and measures the time between the first and the last start.
//!
//! Tasks sleep on one futex (a condition variable) until the run opens the gate. Each then yields its CPU until all are
//! awake, for a moment only, after which it sleeps: yielding on would use CPU time that is measured. It takes its start
//! time when it goes: with more tasks than CPUs, that is when the scheduler next runs it.
//! For the same reason each waits once more after its first operation until all have begun (`all_begun`): otherwise
//! the first task on a CPU would use up its time slice before the second one starts.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// A task that waits for others longer than this sleeps: yielding on would use the CPU time that is being measured, and
/// keep programs of idle priority from running.
const LONGEST_SPIN: Duration = Duration::from_micros(50);

/// Longest wait for the others' first operations: longer than any start where these do not block.
const LONGEST_GATE_WAIT: Duration = Duration::from_millis(2);

/// Longest wait until all tasks are awake: longer than any scheduler needs.
const LONGEST_START: Duration = Duration::from_secs(10);

/// State shared by the tasks and the run.
#[derive(Debug, Default)]
struct GateStage {
    ready: u32,
    open: bool,
    finished: u32,
    closed: bool,
}

/// Gate of one measurement.
#[derive(Debug)]
pub(crate) struct Gate {
    tasks: u32,
    stage: Mutex<GateStage>,
    changed: Condvar,
    awake: AtomicU32,
    begun: AtomicU32,
    /// A task failed to get ready, so none begins.
    failed: AtomicBool,
}

impl Gate {
    /// A gate for that many tasks.
    pub(crate) fn new(tasks: u32) -> Self {
        Self {
            tasks,
            stage: Mutex::default(),
            changed: Condvar::new(),
            awake: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            failed: AtomicBool::new(false),
        }
    }

    fn stage(&self) -> MutexGuard<'_, GateStage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn until(&self, reached: impl Fn(&GateStage) -> bool) {
        let wait = self.changed.wait_while(self.stage(), |stage| !reached(stage));
        drop(wait.unwrap_or_else(PoisonError::into_inner));
    }

    fn change(&self, how: impl FnOnce(&mut GateStage)) {
        how(&mut self.stage());
        self.changed.notify_all();
    }

    /// Called by a task that is ready, or failed to be. Returns its start time; `None` if any task failed.
    pub(crate) fn enter(&self, able: bool) -> Option<Instant> {
        if !able {
            self.failed.store(true, Ordering::SeqCst);
        }
        self.change(|stage| stage.ready += 1);
        self.until(|stage| stage.open);
        if self.failed.load(Ordering::SeqCst) {
            return None;
        }
        self.together(&self.awake, LONGEST_START);
        Some(Instant::now())
    }

    /// Called after a task's first operation; returns when all have made theirs, or after a while.
    pub(crate) fn all_begun(&self) {
        self.together(&self.begun, LONGEST_GATE_WAIT);
    }

    /// Waits until all tasks have called this with the same counter, or for so long.
    fn together(&self, arrived: &AtomicU32, longest: Duration) {
        if self.tasks <= arrived.fetch_add(1, Ordering::SeqCst) + 1 {
            // Locked once: a task that has just seen too few is asleep by then, and is woken.
            drop(self.stage());
            self.changed.notify_all();
            return;
        }
        let began = Instant::now();
        let all = || self.tasks <= arrived.load(Ordering::SeqCst);
        while began.elapsed() < LONGEST_SPIN {
            if all() {
                return;
            }
            yield_now();
        }
        let wait = self.changed.wait_timeout_while(self.stage(), longest, |_| !all());
        drop(wait.unwrap_or_else(PoisonError::into_inner));
    }

    /// Called by a finished task; waits until the run has read its CPU time.
    pub(crate) fn leave(&self) {
        self.change(|stage| stage.finished += 1);
        self.until(|stage| stage.closed);
    }

    /// Called by the run; waits until every task is ready.
    pub(crate) fn wait_ready(&self) {
        self.until(|stage| stage.ready == self.tasks);
    }

    /// Releases all tasks.
    pub(crate) fn open(&self) {
        self.change(|stage| stage.open = true);
    }

    /// Called by the run; waits until every task is done.
    pub(crate) fn wait_finished(&self) {
        self.until(|stage| stage.finished == self.tasks);
    }

    /// Lets all tasks end.
    pub(crate) fn close(&self) {
        self.change(|stage| stage.closed = true);
    }
}
