//! Work on a pool that goes on by itself, on a thread of its own: `drain` empties a branch, `balance` makes branches about
//! as full, `consolidate` gathers a directory on one branch, `rules` moves what lies
//! against the placement rules, and `tier` moves files off a class of branches that is full.
//!
//! Files that a job has moved stay where they are. A drain that the daemon's end interrupts is begun again by the next mount
//! (`remembered.rs`), each job that an upgrade, or a death with `restart=keep`, interrupts by the next daemon (`interrupted.rs`).

mod awaited;
mod by_rules;
mod choice;
mod clock;
mod count;
mod drain;
mod failed_tries;
pub(crate) mod handed;
pub(crate) mod interrupted;
mod job;
mod linked;
mod order;
mod pace;
mod pacing;
mod pass;
pub mod planning;
mod rearrange;
pub(crate) mod remembered;
mod tier;
mod tier_watch;
mod walk;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use fsstack_branch::admin_state::OpenFileRef;
use fsstack_branch::metrics::CallTimes;
use fsstack_branch::thread;
use fsstack_identity::poolid::PoolId;
use fsstack_pool::{BranchIx, Ino, Window};
use fsstack_sync::Mutex;
use fsstack_sync::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

use crate::moves::Moves;
use crate::pool::Pool;
use crate::pool_changes::PoolChanges;
use crate::tree::Tree;
use awaited::AnyAwaited;
pub use clock::DayClock;
pub use interrupted::{JobsHeld, JobsLeft};
use job::{Gone, Job};
use linked::LinkedNames;
pub use order::{BadJob, BalanceOrder, ConsolidateOrder, DrainOrder, HiddenCopies, Manner, RulesOrder};
use order::{TierRun, Work};
pub use planning::Amount;
pub use planning::list::{MovingList, PlannedMove};
use planning::room::Share;
pub use planning::tier::Fullness;
use tier_watch::TierWatch;
pub use tier_watch::{TierState, TierView, TiersHeld};

/// Ended jobs that are shown.
const ENDED_SHOWN: usize = 16;
/// Moves of a dry run that are kept to be shown: its plan stays in memory after it.
const PLANNED_SHOWN: usize = 10_000;
/// Objects that stay and are named.
const NAMED: usize = 1000;
/// How long jobs are waited for when the daemon ends.
const JOBS_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Work of a drain on its thread.
type DrainRun = fn(&Jobs, &Job, BranchIx, &Arc<[BranchIx]>) -> JobState;

/// Stage of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobState {
    /// It looks what there is to move.
    Counting,
    /// It moves.
    Moving,
    /// It waits until what is left can be moved.
    Waiting,
    /// The operator has it pause.
    Paused,
    /// It is outside of its window, or waits for the pool to be writable.
    Parked,
    /// It was only to tell.
    Planned,
    /// Nothing is left.
    Done,
    /// Something is left that it cannot move.
    Incomplete,
    /// It has not begun.
    Refused,
    /// It was called off.
    Cancelled,
    /// Its window has closed: the tier begins anew when it opens.
    OutOfWindow,
}

impl JobState {
    /// Whether it has ended.
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Counting | Self::Moving | Self::Waiting | Self::Paused | Self::Parked)
    }

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counting => "counting",
            Self::Moving => "moving",
            Self::Waiting => "waiting",
            Self::Paused => "paused",
            Self::Parked => "parked",
            Self::Planned => "planned",
            Self::Done => "done",
            Self::Incomplete => "incomplete",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::OutOfWindow => "out-of-window",
        }
    }
}

/// An object that stays, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staying {
    /// Its path from the pool's root.
    pub path: Vec<u8>,
    /// Why.
    pub why: &'static str,
}

/// A job as it is now.
#[derive(Clone, Debug)]
pub struct JobView {
    /// Its number.
    pub id: u64,
    /// In one word.
    pub kind: &'static str,
    /// The branch that is emptied.
    pub drained: Option<BranchIx>,
    /// The branch's path, or the directory's.
    pub subject: String,
    /// Its stage.
    pub state: JobState,
    /// It was only to tell.
    pub dry_run: bool,
    /// Share of the time that it is at work, in percent: less where programs wait longer for its branches.
    pub at_work: u32,
    /// The part of the day in which it is at work.
    pub window: Option<Window>,
    /// Why it was refused.
    pub refusal: Option<String>,
    /// Objects found.
    pub found: Amount,
    /// Objects moved.
    pub moved: Amount,
    /// Directories that the branch has no copy of any more.
    pub dirs: u64,
    /// Share of each branch.
    pub shares: Vec<Share>,
    /// The first moves of a job that was only to tell, if they are known file by file.
    pub planned: Option<Arc<MovingList>>,
    /// How many objects stay, as it was seen last.
    pub staying: u64,
    /// How many the last pass did not try, as the job was to wait.
    pub untried: u64,
    /// The first of them.
    pub named: Vec<Staying>,
    /// How long it has been at work.
    pub took: Duration,
}

/// Jobs: what they need of the pool, and which there are.
#[derive(Debug)]
pub(crate) struct Jobs {
    id: Option<PoolId>,
    tree: Arc<Tree>,
    changes: Arc<PoolChanges>,
    moves: Arc<Moves>,
    pub(crate) list: JobList,
    pub(crate) linked: LinkedNames,
}

/// The jobs of a pool: those at work, and the last that have ended.
#[derive(Debug, Default)]
pub(crate) struct JobList {
    state: Mutex<JobsState>,
    /// Held while interrupted jobs are begun again.
    resuming: Mutex<()>,
    awaited: AnyAwaited,
    tiers: Arc<TierWatch>,
    clock: OnceLock<Arc<dyn DayClock>>,
}

#[derive(Debug, Default)]
struct JobsState {
    jobs: Vec<Arc<Job>>,
    begun: u64,
    ended: bool,
    /// Files that a balance moved, and when: they stay where they are for a day.
    settled: HashMap<Ino, Instant>,
    /// Branches whose roots have a drain mark, or may have one.
    marked: HashSet<BranchIx>,
    /// Interrupted jobs begin again later: an upgrade is under way.
    are_held: bool,
    /// Times of calls when the last job ended: those since then show what is usual.
    calm: HashMap<BranchIx, CallTimes>,
}

impl JobsState {
    fn add(&mut self, work: Work, subject: String, clock: Arc<dyn DayClock>) -> Result<Arc<Job>, BadJob> {
        if self.ended {
            return Err(BadJob::Ending);
        }
        let is_again = |job: &&Arc<Job>| job.is_interrupted() && job.has_ended() && job.work == work;
        let again = self.jobs.iter().find(is_again).cloned();
        let is_other = |job: &Job| again.as_ref().is_none_or(|again| again.id != job.id);
        let is_at_work = |job: &Job| !job.has_ended() || job.is_interrupted();
        let excludes = |job: &&Arc<Job>| is_other(job) && job.work.excludes(&work) && is_at_work(job);
        if let Some(other) = self.jobs.iter().find(excludes) {
            return Err(BadJob::Busy(other.id));
        }
        let id = again.as_ref().map_or(self.begun + 1, |again| again.id);
        self.begun = self.begun.max(id);
        if work.yields() {
            // Of the jobs of one tier only the last is shown.
            self.jobs.retain(|job| job.subject != subject || !job.work.yields());
        }
        self.jobs.retain(|job| job.id != id);
        let job = Arc::new(Job::new(id, work, subject, clock));
        job.progress.lock().paused = again.is_some_and(|again| again.progress.lock().paused);
        let is_gone = |job: &&Arc<Job>| job.progress.lock().gone && !job.is_interrupted();
        let ended: Vec<u64> = self.jobs.iter().filter(is_gone).map(|job| job.id).collect();
        let oldest = ended.len().saturating_sub(ENDED_SHOWN - 1);
        self.jobs.retain(|job| !ended[..oldest].contains(&job.id));
        self.jobs.push(job.clone());
        Ok(job)
    }
}

impl JobList {
    /// Calls all jobs off and waits for their threads, unless they hang.
    pub(crate) fn end(&self) {
        let jobs = {
            self.tiers.end();
            let mut state = self.state.lock();
            state.ended = true;
            state.jobs.clone()
        };
        call_off_all(&jobs);
    }

    /// A job that has not ended.
    pub(crate) fn at_work(&self) -> Option<JobView> {
        self.state.lock().jobs.iter().find(|job| !job.has_ended()).map(|job| job.view())
    }

    /// Ends the jobs that make way for others. False: one is still at work.
    pub(crate) fn end_yielding(&self) -> bool {
        let at_work = |job: &&Arc<Job>| job.work.yields() && !job.progress.lock().gone;
        let jobs: Vec<Arc<Job>> = self.state.lock().jobs.iter().filter(at_work).cloned().collect();
        call_off_all(&jobs)
    }
}

/// Calls the jobs off and waits for their threads, unless they hang. False: one is still at work.
fn call_off_all(jobs: &[Arc<Job>]) -> bool {
    jobs.iter().for_each(|job| job.call_off());
    let until = Instant::now() + JOBS_END_TIMEOUT;
    for job in jobs {
        let mut progress = job.progress.lock();
        while !progress.gone && !job.changed.wait_until(&mut progress, until).timed_out() {}
    }
    jobs.iter().all(|job| job.progress.lock().gone)
}

impl Jobs {
    /// No job yet, on the pool `id` of `tree`.
    pub(crate) fn new(
        id: Option<PoolId>,
        tree: Arc<Tree>,
        changes: Arc<PoolChanges>,
        moves: Arc<Moves>,
    ) -> Self {
        let linked = LinkedNames::new(tree.pool.load().settings.linked_names);
        Self { id, tree, changes, moves, list: JobList::default(), linked }
    }

    /// The pool as it is now.
    fn pool(&self) -> Arc<Pool> {
        self.tree.pool.load_full()
    }

    /// Begins to empty a branch. What can be known only from a look at the branch shows later.
    ///
    /// # Errors
    /// It cannot begin.
    pub(crate) fn start_drain(self: &Arc<Self>, order: DrainOrder) -> Result<JobView, BadJob> {
        self.begin_drain(order, Self::drain)
    }

    /// Like [`Self::start_drain`], by `drain`.
    fn begin_drain(self: &Arc<Self>, order: DrainOrder, drain: DrainRun) -> Result<JobView, BadJob> {
        let from = order.from;
        let pool = self.pool();
        let branch = pool.live(from).cloned().ok_or(BadJob::NoBranch)?;
        let takes = |ix: BranchIx| {
            ix != from
                && (order.to.is_empty() || order.to.contains(&ix))
                && pool.live(ix).is_some_and(|at| at.takes_moves())
        };
        let targets: Arc<[BranchIx]> =
            pool.branches.iter().map(|branch| branch.ix).filter(|ix| takes(*ix)).collect();
        if targets.is_empty() || order.to.iter().any(|ix| !targets.contains(ix)) {
            return Err(BadJob::NoTarget);
        }
        if !branch.is_writable() {
            return Err(BadJob::ReadOnly);
        }
        // While the job is at work the branch does not leave the pool, nor does one that was named as a target: another branch that
        // is added would get its place, and the files.
        let mut stay = vec![branch.acquire().map_err(|_| BadJob::NoBranch)?];
        for to in &order.to {
            stay.push(pool.branch(*to).acquire().map_err(|_| BadJob::NoTarget)?);
        }
        drop(pool);
        self.begin_job(Work::Drain(order), branch.path.display().to_string(), stay, move |jobs, job| {
            drain(jobs, job, from, &targets)
        })
    }

    /// Begins `work` on a thread of its own, unless another job excludes it. No branch of `stay` leaves the pool meanwhile.
    fn begin_job(
        self: &Arc<Self>,
        work: Work,
        subject: String,
        stay: Vec<OpenFileRef>,
        run: impl FnOnce(&Self, &Job) -> JobState + Send + 'static,
    ) -> Result<JobView, BadJob> {
        if !work.yields() {
            self.list.end_yielding();
        }
        let job = self.list.state.lock().add(work, subject, self.day_clock())?;
        // It drops with the closure, also if no thread runs that: the branch is free for another job then.
        let (me, gone) = (Arc::downgrade(self), Gone(job.clone()));
        let started = thread::start(fsstack_sync::thread::Builder::new().name("job".into()), move || {
            if let Some(jobs) = me.upgrade() {
                jobs.work(&gone.0, stay, run);
                jobs.resume_late(gone.0.id);
            }
        });
        if let Err(error) = started {
            job.ends(JobState::Refused);
            return Err(BadJob::NoThread(error.to_string()));
        }
        Ok(job.view())
    }

    fn work(&self, job: &Job, stay: Vec<OpenFileRef>, run: impl FnOnce(&Self, &Job) -> JobState) {
        let (kind, subject) = (job.work.kind(), &job.subject);
        tracing::info!(job = job.id, kind, %subject, dry_run = job.work.manner().dry_run, "job begins");
        if job.work.yields() {
            // No command notes its number, which is not given again after a death.
            self.changes.tell_change();
        }
        self.begin_pacing(job);
        let state = run(self, job);
        self.end_pacing(job);
        if let Some(drained) = job.work.drained().filter(|_| job.progress.lock().forgotten) {
            // It may have been noted while it was being cancelled.
            self.list.note_drain_mark(drained);
            self.forget_drain(drained);
        }
        drop(stay);
        self.list.awaits_none(job);
        self.moves.files.making_way.ends(job.id);
        job.note_end(state);
        self.changes.tell_change();
        job.ends(state);
        let JobView { moved, staying, .. } = job.view();
        tracing::info!(job = job.id, kind, %subject, state = state.name(), files = moved.files, bytes = moved.bytes, staying, "job ended");
    }

    /// The jobs at work, and the last that have ended, the oldest first.
    pub(crate) fn views(&self) -> Vec<JobView> {
        let jobs: Vec<Arc<Job>> = self.list.state.lock().jobs.to_vec();
        jobs.iter().map(|job| job.view()).collect()
    }

    fn job(&self, id: u64) -> Result<Arc<Job>, BadJob> {
        let job = self.list.state.lock().jobs.iter().find(|job| job.id == id).cloned();
        job.ok_or(BadJob::NoJob(id))
    }

    /// Calls the job `id` off, for good: the next mount does not begin it again. What it has moved stays moved.
    ///
    /// # Errors
    /// There is no such job.
    pub(crate) fn cancel_job(&self, id: u64) -> Result<JobView, BadJob> {
        let turn = self.list.resuming.lock();
        let job = self.job(id)?;
        // The job may just be about to be remembered, and forgets that at its end, too.
        let drained = job.work.drained().filter(|_| !job.work.manner().dry_run);
        let waits = {
            let mut progress = job.progress.lock();
            (progress.forgotten, progress.is_cancelled) = (drained.is_some(), true);
            std::mem::take(&mut progress.is_interrupted) && progress.gone
        };
        drop(turn);
        if waits {
            job.ends(JobState::Cancelled);
        }
        job.call_off();
        if let Some(drained) = drained {
            let is_other =
                |other: &JobView| other.id != id && other.drained == Some(drained) && !other.state.is_over();
            if !self.views().iter().any(is_other) {
                self.forget_drain(drained);
            }
        }
        Ok(job.view())
    }

    /// Has the job `id` begin no further move until it is to go on. A move under way goes on to its end.
    ///
    /// # Errors
    /// There is no such job, or it has ended.
    pub(crate) fn pause_job(&self, id: u64, paused: bool) -> Result<JobView, BadJob> {
        let _turn = self.list.resuming.lock();
        let job = self.job(id)?;
        {
            let mut progress = job.progress.lock();
            if progress.state.is_over() && !progress.is_interrupted {
                return Err(BadJob::Over(id));
            }
            progress.paused = paused;
        }
        job.changed.notify_all();
        Ok(job.view())
    }
}
