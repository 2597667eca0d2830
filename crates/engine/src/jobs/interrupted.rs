//! Jobs that an upgrade interrupts: the next program begins them again under their numbers, or this one if the upgrade fails.
//!
//! A drain goes on if its branch knows of it (`remembered.rs`): of others nothing would be left if the next program ended at once. Of
//! a job that moves the files of a list the order is handed over; the list is made anew.
//!
//! A job that is inside a slow branch may end later than the upgrade has failed: it is begun again at its end.

use std::sync::Arc;

use fsstack_pool::BranchIx;

use super::order::Work;
use super::{BadJob, JobList, JobView, Jobs, JobsState, call_off_all};

/// Jobs of an earlier daemon that are begun again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobsLeft {
    /// Those that an upgrade has interrupted, and the drains that their branches know of.
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

/// A job that moves the files of a list, and was interrupted. No other job is at work beside one.
#[derive(Clone, Debug)]
pub(super) struct InterruptedList {
    pub(super) work: Work,
    pub(super) job: u64,
    pub(super) paused: bool,
}

/// Jobs that are interrupted until this drops.
#[derive(Debug)]
pub struct JobsHeld(Arc<Jobs>, Vec<u64>);

impl Drop for JobsHeld {
    fn drop(&mut self) {
        self.0.list.state.lock().are_held = false;
        self.0.resume(|job| self.1.contains(&job));
    }
}

impl JobsState {
    /// Number of the interrupted job that `work` goes on with, and whether it pauses.
    pub(super) fn take_interrupted(&mut self, work: &Work) -> Option<(u64, bool)> {
        if let Some(branch) = work.drained() {
            let at = self.interrupted.iter().position(|drain| drain.branch == branch);
            let drain = self.interrupted.swap_remove(at.filter(|_| !work.manner().dry_run)?);
            return Some((drain.job, drain.paused));
        }
        let list = self.interrupted_list.take_if(|list| list.work.kind() == work.kind())?;
        Some((list.job, list.paused))
    }

    fn is_interrupted(&self, job: u64) -> bool {
        self.interrupted.iter().any(|drain| drain.job == job)
            || self.interrupted_list.as_ref().is_some_and(|list| list.job == job)
    }

    /// The operator calls the job off.
    pub(super) fn forget_interrupted_job(&mut self, job: u64) {
        self.interrupted.retain(|drain| drain.job != job);
        _ = self.interrupted_list.take_if(|list| list.job == job);
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

    /// The operator begins a job like the one that was interrupted.
    pub(super) fn forget_interrupted_list(&self) {
        self.state.lock().interrupted_list = None;
    }
}

impl Jobs {
    /// Interrupts the jobs that the next daemon begins again, until the guard drops.
    pub(crate) fn hold_operators_jobs(self: &Arc<Self>) -> JobsHeld {
        let mut state = self.list.state.lock();
        state.are_held = true;
        let jobs: Vec<_> = state.jobs.iter().filter(|job| job.outlives_upgrade()).cloned().collect();
        for job in &jobs {
            let (job, paused, work) = (job.id, job.progress.lock().paused, &job.work);
            match work.drained() {
                Some(branch) => state.interrupted.push(InterruptedDrain { branch, job, paused }),
                None => state.interrupted_list = Some(InterruptedList { work: work.clone(), job, paused }),
            }
        }
        drop(state);
        // Whether they ended is asked for again when the pool is at rest.
        let _ended = call_off_all(&jobs);
        // Some may have come to their end before.
        let is_over = |id: u64| jobs.iter().any(|job| job.id == id && job.has_come_to_its_end());
        let mut state = self.list.state.lock();
        state.interrupted.retain(|drain| !is_over(drain.job));
        _ = state.interrupted_list.take_if(|list| is_over(list.job));
        JobsHeld(self.clone(), jobs.iter().map(|job| job.id).collect())
    }

    /// Begins all interrupted jobs again.
    pub(crate) fn resume_interrupted(self: &Arc<Self>) {
        self.resume(|_| true);
    }

    /// The job `id` has ended, later than it was interrupted for an upgrade that failed: it is begun again.
    pub(super) fn resume_late(self: &Arc<Self>, id: u64) {
        let is_to_go_on = {
            let state = self.list.state.lock();
            !state.are_held && state.is_interrupted(id)
        };
        if is_to_go_on {
            self.resume(|job| job == id);
        }
    }

    /// Begins interrupted jobs again that are `meant` by their numbers, but for those whose threads have not ended yet.
    pub(super) fn resume(self: &Arc<Self>, meant: impl Fn(u64) -> bool) {
        let _turn = self.list.resuming.lock();
        let (drains, list) = {
            let state = self.list.state.lock();
            let has_ended = |id: u64| state.jobs.iter().all(|job| job.id != id || job.has_ended());
            let drains = state.interrupted.iter().filter(|drain| meant(drain.job) && has_ended(drain.job));
            let list = state.interrupted_list.as_ref().filter(|list| meant(list.job) && has_ended(list.job));
            (drains.copied().collect::<Vec<_>>(), list.cloned())
        };
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
        if let Some(InterruptedList { work, job, .. }) = list {
            let kind = work.kind();
            if let Err(error) = self.begin_list(work) {
                tracing::warn!(%error, job, kind, "job not resumed after the upgrade; start it again");
            }
            self.list.forget_interrupted_list();
        }
    }

    fn begin_list(self: &Arc<Self>, work: Work) -> Result<Option<JobView>, BadJob> {
        match work {
            Work::Balance(order) => self.begin_balance(order).map(Some),
            Work::Consolidate(order) => self.begin_consolidate(order).map(Some),
            Work::Rules(order) => self.begin_rules(order).map(Some),
            Work::Drain(_) | Work::Tier(_) => Ok(None),
        }
    }
}
