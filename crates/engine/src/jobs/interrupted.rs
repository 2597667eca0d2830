//! Drains that an upgrade interrupts: the next program begins them again under their numbers, or this one if the upgrade fails.
//!
//! Only those whose branch knows of them (`remembered.rs`): of others nothing would be left if the next program ended at once.

use std::sync::Arc;

use fsstack_pool::BranchIx;

use super::order::Work;
use super::{JobList, Jobs, JobsState, call_off_all};

/// Drains of an earlier daemon that are begun again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainsLeft {
    /// All that their branches know of.
    All,
    /// Those that an upgrade has interrupted.
    Interrupted,
}

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
pub struct DrainsHeld(Arc<Jobs>, Vec<InterruptedDrain>);

impl Drop for DrainsHeld {
    fn drop(&mut self) {
        self.0.resume(&self.1);
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
        let mut state = self.state.lock();
        state.begun = state.begun.max(drain.job);
        state.interrupted.push(drain);
    }

    /// The operator wants something else of the branch than the drain that was interrupted.
    pub(super) fn forget_interrupted(&self, branch: BranchIx) {
        self.state.lock().interrupted.retain(|drain| drain.branch != branch);
    }
}

impl Jobs {
    /// Interrupts the drains that the next daemon begins again, until the guard drops.
    pub(crate) fn hold_drains(self: &Arc<Self>) -> DrainsHeld {
        let mut state = self.list.state.lock();
        let jobs: Vec<_> = state.jobs.iter().filter(|job| job.outlives_daemon()).cloned().collect();
        let interrupted = jobs.iter().filter_map(|job| {
            let (branch, paused) = (job.work.drained()?, job.progress.lock().paused);
            Some(InterruptedDrain { branch, job: job.id, paused })
        });
        let interrupted: Vec<_> = interrupted.collect();
        // Others wait until the pool may be written.
        state.interrupted.extend(&interrupted);
        drop(state);
        // Whether they ended is asked for again when the pool is at rest.
        let _ended = call_off_all(&jobs);
        DrainsHeld(self.clone(), interrupted)
    }

    /// Begins all interrupted drains again.
    pub(crate) fn resume_interrupted(self: &Arc<Self>) {
        let interrupted = self.list.state.lock().interrupted.clone();
        self.resume(&interrupted);
    }

    fn resume(self: &Arc<Self>, drains: &[InterruptedDrain]) {
        let pool = self.pool();
        for drain in drains {
            match pool.live(drain.branch) {
                Some(branch) if self.resume_drain(&pool, branch) => {}
                Some(branch) => {
                    let (branch, error) = (branch.path.display(), "its branch does not show the drain mark");
                    tracing::warn!(%error, %branch, "drain not resumed; start it with fsstack branch drain");
                }
                None => {}
            }
            // One that could not begin was logged; the next mount tries again.
            self.list.forget_interrupted(drain.branch);
        }
    }
}
