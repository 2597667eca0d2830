//! Jobs, as the next daemon knows them: after an upgrade, or a death with `restart=keep`.

use std::sync::Arc;

use fsstack_pool::Ino;
use fsstack_sync::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

use super::clock::SystemDay;
use super::order::Work;
use super::rearrange::SETTLED_FOR;
use super::{Amount, Job, JobList, JobState};

/// State of jobs that outlives a daemon. Its form is part of the handover's format.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobsRow {
    /// How many have begun.
    begun: u64,
    jobs: Vec<JobRow>,
    /// Files that a balance moved, and how many seconds ago.
    settled: Vec<(u64, u32)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct JobRow {
    job: u64,
    work: Work,
    subject: String,
    paused: bool,
    /// None: it is to be begun again.
    ended: Option<EndedJobRow>,
}

/// Result of an ended job, for a later `job status`. The names of objects that stay are not in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct EndedJobRow {
    state: JobState,
    refusal: Option<String>,
    found: Amount,
    moved: Amount,
    dirs: u64,
    staying: u64,
    untried: u64,
    took: Duration,
}

impl JobRow {
    fn of(job: &Job) -> Self {
        let progress = job.progress.lock();
        let ended = EndedJobRow {
            state: progress.end.unwrap_or(JobState::Cancelled),
            refusal: progress.refusal.clone(),
            found: progress.found,
            moved: progress.moved,
            dirs: progress.dirs,
            staying: progress.staying,
            untried: progress.untried,
            took: progress.took.unwrap_or_else(|| job.began.elapsed()),
        };
        Self {
            job: job.id,
            work: job.work.clone(),
            subject: job.subject.clone(),
            paused: progress.paused,
            ended: (!progress.is_to_go_on()).then_some(ended),
        }
    }

    /// A job without a thread.
    fn job(&self) -> Job {
        let job = Job::new(self.job, self.work.clone(), self.subject.clone(), Arc::new(SystemDay));
        let mut progress = job.progress.lock();
        (progress.gone, progress.paused, progress.is_interrupted) = (true, self.paused, self.ended.is_none());
        if let Some(ended) = &self.ended {
            (progress.end, progress.state) = (Some(ended.state), ended.state);
            progress.refusal.clone_from(&ended.refusal);
            (progress.found, progress.moved, progress.dirs) = (ended.found, ended.moved, ended.dirs);
            (progress.staying, progress.untried) = (ended.staying, ended.untried);
            progress.took = Some(ended.took);
        }
        drop(progress);
        job
    }
}

impl JobList {
    /// State that the next daemon needs.
    pub(crate) fn row(&self) -> JobsRow {
        let state = self.state.lock();
        let fresh = state.settled.iter().filter(|(_, moved)| moved.elapsed() < SETTLED_FOR);
        let seconds = |moved: &Instant| u32::try_from(moved.elapsed().as_secs()).unwrap_or(u32::MAX);
        let settled = fresh.map(|(ino, moved)| (ino.0, seconds(moved))).collect();
        // Tiers begin jobs of their own.
        let jobs = state.jobs.iter().filter(|job| !job.work.yields()).map(|job| JobRow::of(job));
        JobsRow { begun: state.begun, jobs: jobs.collect(), settled }
    }

    /// Takes over the state of an earlier daemon.
    pub(crate) fn take_row(&self, row: &JobsRow) {
        let mut state = self.state.lock();
        state.begun = row.begun;
        state.jobs.extend(row.jobs.iter().map(|row| Arc::new(row.job())));
        let moved = |ago: u32| Instant::now().checked_sub(Duration::from_secs(ago.into()));
        state.settled.extend(row.settled.iter().filter_map(|(ino, ago)| Some((Ino(*ino), moved(*ago)?))));
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use fsstack_pool::BranchIx;

    use super::*;
    use crate::jobs::planning::level::By;
    use crate::jobs::{
        BalanceOrder, ConsolidateOrder, DrainOrder, HiddenCopies, Manner, RulesOrder, TierRun,
    };

    fn works() -> Vec<Work> {
        let manner = Manner { rate: NonZeroU64::new(7), verify: true, make_way: true, dry_run: true };
        let (dir, window) = (b"a/b".to_vec(), "22:00-06:30".parse().ok());
        let (from, to, hidden) = (BranchIx(1), vec![BranchIx(4), BranchIx(2)], HiddenCopies::Delete);
        vec![
            Work::Drain(DrainOrder { from, to, hidden, manner, window: None }),
            Work::Balance(BalanceOrder { dir: dir.clone(), by: By::Percent, tolerance: 200, manner, window }),
            Work::Consolidate(ConsolidateOrder { dir: dir.clone(), to: Some(BranchIx(3)), manner, window }),
            Work::Rules(RulesOrder { dir, manner, window }),
            Work::Tier(TierRun { tier: Arc::new("fast>slow;min-age=2d".parse().unwrap()), dry_run: true }),
        ]
    }

    #[test]
    fn jobs_are_taken_over_as_they_were() {
        for work in works() {
            let before = JobList::default();
            let add = |work: &Work| {
                let clock = Arc::new(SystemDay);
                before.state.lock().add(work.clone(), "subject".to_owned(), clock).unwrap()
            };
            let ended = add(&work);
            ended.progress.lock().moved = Amount { files: 3, bytes: 9 };
            ended.ends(JobState::Incomplete);
            let at_work = add(&work);
            at_work.progress.lock().paused = true;
            before.state.lock().settled.insert(Ino(7), Instant::now());
            let after = JobList::default();
            after.take_row(&before.row());
            assert_eq!(after.row(), before.row());
            let mut state = after.state.lock();
            assert!(state.settled.contains_key(&Ino(7)) && state.jobs[1].is_interrupted());
            // One like it that is begun now is that job, and one after it has a further number.
            let again = state.add(work.clone(), String::new(), Arc::new(SystemDay)).unwrap();
            assert!(again.id == 2 && again.view().state == JobState::Paused, "{again:?}");
            again.ends(JobState::Done);
            assert_eq!(state.add(work, String::new(), Arc::new(SystemDay)).unwrap().id, 3);
        }
    }
}
