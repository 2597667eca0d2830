//! Jobs that are interrupted: the next program of an upgrade begins them again under their numbers, or this one if the upgrade fails; so
//! does the next daemon after a death with `restart=keep`. What a job lists or counts is listed anew.
//!
//! A job that is inside a slow branch may end later than the upgrade has failed: it is begun again at its end. In a pool that may not be
//! written interrupted jobs wait, and show as parked.

use std::sync::Arc;

use fsstack_pool::BranchIx;

use super::order::Work;
use super::{BadJob, Job, JobList, JobState, JobView, Jobs, call_off_all};

/// Jobs of an earlier daemon that are begun again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobsLeft {
    /// Those that were interrupted, and the drains that their branches know of.
    All,
    /// Those that were interrupted.
    Interrupted,
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

impl JobList {
    /// The branch leaves the pool: interrupted jobs that were to put files there do not begin again.
    pub(crate) fn end_waiting(&self, ix: BranchIx) {
        let jobs = self.state.lock().jobs.clone();
        for job in jobs.iter().filter(|job| job.is_interrupted() && job.work.is_to(ix)) {
            job.refuse_resumption(&BadJob::NoTarget);
        }
    }

    /// Whether a drain of the branch has not ended, or waits.
    pub(super) fn drains(&self, ix: BranchIx) -> bool {
        let is_at_work = |job: &Arc<Job>| !job.has_ended() || job.is_interrupted();
        self.state.lock().jobs.iter().any(|job| job.work.drained() == Some(ix) && is_at_work(job))
    }
}

impl Job {
    fn refuse_resumption(&self, error: &BadJob) {
        tracing::warn!(%error, job = self.id, kind = self.work.kind(), "job not resumed; start it again");
        {
            let mut progress = self.progress.lock();
            (progress.is_interrupted, progress.refusal) = (false, Some(error.to_string()));
        }
        self.ends(JobState::Refused);
    }
}

impl Jobs {
    /// Interrupts the jobs that the next daemon begins again, until the guard drops.
    pub(crate) fn hold_operators_jobs(self: &Arc<Self>) -> JobsHeld {
        let (all, held) = {
            let mut state = self.list.state.lock();
            state.are_held = true;
            let held = state.jobs.iter().filter(|job| job.interrupt()).map(|job| job.id).collect();
            (state.jobs.clone(), held)
        };
        // Whether they ended is asked for again when the pool is at rest.
        let _ended = call_off_all(&all);
        JobsHeld(self.clone(), held)
    }

    /// Begins all interrupted jobs again.
    pub(crate) fn resume_interrupted(self: &Arc<Self>) {
        self.resume(|_| true);
    }

    /// The job `id` has ended, later than it was interrupted for an upgrade that failed: it is begun again.
    pub(super) fn resume_late(self: &Arc<Self>, id: u64) {
        let is_to_go_on = {
            let state = self.list.state.lock();
            !state.are_held && state.jobs.iter().any(|job| job.id == id && job.is_interrupted())
        };
        if is_to_go_on {
            self.resume(|job| job == id);
        }
    }

    /// Begins interrupted jobs again that are `meant` by their numbers, but for those whose threads have not ended yet.
    fn resume(self: &Arc<Self>, meant: impl Fn(u64) -> bool) {
        let _turn = self.list.resuming.lock();
        let is_meant = |job: &&Arc<Job>| meant(job.id) && job.is_interrupted() && job.has_ended();
        let jobs: Vec<Arc<Job>> = self.list.state.lock().jobs.iter().filter(is_meant).cloned().collect();
        for job in jobs {
            if let Err(error) = self.begin_again(job.work.clone()) {
                job.refuse_resumption(&error);
            }
        }
    }

    fn begin_again(self: &Arc<Self>, work: Work) -> Result<JobView, BadJob> {
        match work {
            Work::Drain(order) => {
                // Its branch may know of it.
                self.list.note_drain_mark(order.from);
                self.begin_drain(order, Self::drain_again)
            }
            Work::Balance(order) => self.start_balance(order),
            Work::Consolidate(order) => self.start_consolidate(order),
            Work::Rules(order) => self.start_rules(order),
            Work::Tier(run) => self.start_tier(run),
        }
    }
}
