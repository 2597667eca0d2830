//! A job stands aside where programs wait longer for its branches (`pace.rs`).

use std::collections::HashMap;
use std::time::Duration;

use fsstack_branch::metrics::CallTimes;
use fsstack_pool::BranchIx;

use super::Job;
use super::Jobs;
use super::pace::Pace;

/// Measurements of a job.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    pace: Pace,
    /// Sums at the end of the last look.
    last: HashMap<BranchIx, CallTimes>,
}

impl Pacing {
    pub(super) fn percent(&self) -> u32 {
        self.pace.percent()
    }
}

impl Jobs {
    fn times_of(&self, branch: BranchIx) -> Option<CallTimes> {
        self.pool().live(branch).map(|branch| branch.metrics.times())
    }

    fn times_of_all(&self) -> HashMap<BranchIx, CallTimes> {
        self.pool().branches.iter().map(|branch| (branch.ix, branch.metrics.times())).collect()
    }

    /// Takes the times of programs' calls until now as usual.
    pub(super) fn begin_pacing(&self, job: &Job) {
        let now = self.times_of_all();
        // Not beside the lock of `pacing`, which views of jobs take under that of the list.
        let ended = self.list.state.lock().calm.clone();
        let mut pacing = job.pacing.lock();
        for (branch, times) in &now {
            let calm = ended.get(branch).map_or_else(|| times.clone(), |ended| times.clone().since(ended));
            pacing.pace.rested(*branch, &calm);
        }
        pacing.last = now;
    }

    pub(super) fn end_pacing(&self, job: &Job) {
        self.list.state.lock().calm = self.times_of_all();
        *job.pacing.lock() = Pacing::default();
    }

    /// The job has been at work on `branches` for `worked`: waits as long as it is to stand aside, with what it
    /// has under way standing still.
    pub(super) fn stand_aside<'b>(
        &self,
        job: &Job,
        branches: impl Iterator<Item = &'b BranchIx>,
        worked: Duration,
        stands_still: impl Fn(bool),
    ) {
        let now: HashMap<BranchIx, CallTimes>;
        let pause = {
            let mut pacing = job.pacing.lock();
            if !pacing.pace.worked(worked) {
                return;
            }
            now = branches.filter_map(|at| Some((*at, self.times_of(*at)?))).collect();
            let since =
                |(at, times): (&BranchIx, &CallTimes)| Some((*at, times.clone().since(pacing.last.get(at)?)));
            let at_work: Vec<(BranchIx, CallTimes)> = now.iter().filter_map(since).collect();
            pacing.pace.pause(at_work.iter().map(|(at, times)| (*at, times)))
        };
        let mut last = now;
        if !pause.is_zero() {
            stands_still(true);
            job.rest(pause);
            let mut pacing = job.pacing.lock();
            for (at, before) in &mut last {
                let Some(after) = self.times_of(*at) else { continue };
                pacing.pace.rested(*at, &after.clone().since(before));
                *before = after;
            }
            drop(pacing);
            stands_still(false);
        }
        job.pacing.lock().last.extend(last);
    }
}
