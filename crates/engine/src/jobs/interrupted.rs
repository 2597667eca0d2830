//! Drains that an upgrade interrupts: the next program begins them again under their numbers, or this one if the upgrade fails.
//!
//! Only those whose branch knows of them (`remembered.rs`): of others nothing would be left if the next program ended at once.

use std::sync::Arc;

use fsstack_pool::BranchIx;

use super::job::Job;
use super::order::Work;
use super::{JobList, Jobs, JobsState, call_off_all};

/// A drain that was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterruptedDrain {
    /// The branch that is emptied.
    pub(crate) branch: BranchIx,
    /// Number of the job.
    pub(crate) job: u64,
    /// The operator had it pause.
    pub(crate) paused: bool,
}

/// Drains that are interrupted until this drops.
#[derive(Debug)]
pub struct DrainsHeld(Arc<Jobs>);

impl Drop for DrainsHeld {
    fn drop(&mut self) {
        self.0.resume_interrupted();
    }
}

impl JobsState {
    /// The interrupted drain that `work` goes on with.
    pub(super) fn take_interrupted(&mut self, work: &Work) -> Option<InterruptedDrain> {
        let branch = work.drained().filter(|_| !work.manner().dry_run)?;
        let at = self.interrupted.iter().position(|drain| drain.branch == branch)?;
        Some(self.interrupted.swap_remove(at))
    }
}

impl JobList {
    /// The interrupted drain of the branch.
    pub(crate) fn interrupted(&self, branch: BranchIx) -> Option<InterruptedDrain> {
        self.state.lock().interrupted.iter().find(|drain| drain.branch == branch).copied()
    }

    /// A program before this one has interrupted `drain`.
    pub(crate) fn note_interrupted(&self, drain: InterruptedDrain) {
        self.state.lock().interrupted.push(drain);
    }
}

impl Jobs {
    /// Interrupts the drains that the next daemon begins again, until the guard drops.
    pub(crate) fn hold_drains(self: &Arc<Self>) -> DrainsHeld {
        let drains: Vec<Arc<Job>> = {
            let mut state = self.list.state.lock();
            let drains: Vec<_> = state.jobs.iter().filter(|job| job.outlives_daemon()).cloned().collect();
            let interrupted = drains.iter().filter_map(|job| {
                let (branch, paused) = (job.work.drained()?, job.progress.lock().paused);
                Some(InterruptedDrain { branch, job: job.id, paused })
            });
            state.interrupted = interrupted.collect();
            drains
        };
        // Whether they ended is asked for again when the pool is at rest.
        let _ended = call_off_all(&drains);
        DrainsHeld(self.clone())
    }

    /// Begins the interrupted drains again.
    pub(crate) fn resume_interrupted(self: &Arc<Self>) {
        let pool = self.pool();
        let interrupted = self.list.state.lock().interrupted.clone();
        for branch in interrupted.into_iter().filter_map(|drain| pool.live(drain.branch)) {
            self.resume_drain(&pool, branch);
        }
        // Each one that could not begin was logged; the next mount tries again.
        self.list.state.lock().interrupted.clear();
    }
}
