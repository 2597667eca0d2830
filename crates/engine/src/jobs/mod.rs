//! Work on a pool that goes on by itself, on a thread of its own: `drain` empties a branch.
//!
//! What a job has moved stays moved. A drain that the daemon's end interrupts is begun again by the next mount (`remembered.rs`).

mod drain;
pub mod plan;
pub(crate) mod remembered;
mod walk;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fsstack_branch::admin_state::OpenFileRef;
use fsstack_branch::thread;
use fsstack_pool::{BranchIx, BranchMode};
use parking_lot::{Condvar, Mutex};

use crate::files::departure::{Departure, DepartureOutcome};
use crate::union::Union;
use plan::Share;

/// Ended jobs that are shown.
const ENDED_SHOWN: usize = 16;
/// Objects that stay and are named.
const NAMED: usize = 1000;
/// How long jobs are waited for when the daemon ends.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Stage of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It looks what there is to move.
    Counting,
    /// It moves.
    Moving,
    /// It waits until what is left can be moved.
    Waiting,
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
}

impl JobState {
    /// Whether it has ended.
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Counting | Self::Moving | Self::Waiting)
    }

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counting => "counting",
            Self::Moving => "moving",
            Self::Waiting => "waiting",
            Self::Planned => "planned",
            Self::Done => "done",
            Self::Incomplete => "incomplete",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
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

/// A wish to empty a branch.
#[derive(Clone, Debug)]
pub struct DrainOrder {
    /// The branch.
    pub from: BranchIx,
    /// Branches that may take its files; none: all others.
    pub to: Vec<BranchIx>,
    /// Bytes a second at most.
    pub rate: Option<NonZeroU64>,
    /// Only tell.
    pub dry_run: bool,
}

/// Why a job does not begin, or is not called off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadJob {
    /// There is no such branch.
    #[error("the branch is not in the pool")]
    NoBranch,
    /// Another job is at work on the branch.
    #[error("job {0} is at work on the branch: fsstack job status shows it, fsstack job cancel ends it")]
    Busy(u64),
    /// No other branch may take anything.
    #[error("no other branch takes anything: a target must be RW, writable and another than the emptied one")]
    NoTarget,
    /// The branch is read-only.
    #[error("the branch is read-only: nothing can be removed from it")]
    ReadOnly,
    /// There is no such job.
    #[error("there is no job {0}")]
    NoJob(u64),
    /// No thread is to be had.
    #[error("no thread for the job: {0}")]
    NoThread(String),
    /// The daemon ends.
    #[error("the pool is being unmounted")]
    Ending,
}

/// A job as it is now.
#[derive(Clone, Debug)]
pub struct JobView {
    /// Its number.
    pub id: u64,
    /// The branch that is emptied.
    pub branch: BranchIx,
    /// The branch's path.
    pub path: String,
    /// Its stage.
    pub state: JobState,
    /// It was only to tell.
    pub dry_run: bool,
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
    /// How many objects stay, as it was seen last.
    pub staying: u64,
    /// The first of them.
    pub named: Vec<Staying>,
    /// How long it has been at work.
    pub took: Duration,
}

/// Files, and their bytes on the branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Objects that are no directories.
    pub files: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

/// A job, for its thread and those who ask.
#[derive(Debug)]
struct Job {
    id: u64,
    order: DrainOrder,
    targets: Arc<[BranchIx]>,
    path: String,
    began: Instant,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug)]
struct Progress {
    state: JobState,
    called_off: bool,
    /// The next mount is not to begin it again.
    forgotten: bool,
    /// The thread has ended.
    gone: bool,
    refusal: Option<String>,
    found: Amount,
    moved: Amount,
    dirs: u64,
    shares: Vec<Share>,
    staying: u64,
    named: Vec<Staying>,
    under_way: Option<Arc<Departure>>,
    took: Option<Duration>,
}

impl Job {
    fn new(id: u64, order: DrainOrder, targets: Arc<[BranchIx]>, path: String) -> Self {
        let progress = Progress {
            state: JobState::Counting,
            called_off: false,
            forgotten: false,
            gone: false,
            refusal: None,
            found: Amount::default(),
            moved: Amount::default(),
            dirs: 0,
            shares: Vec::new(),
            staying: 0,
            named: Vec::new(),
            under_way: None,
            took: None,
        };
        let began = Instant::now();
        Self { id, order, targets, path, began, progress: Mutex::new(progress), changed: Condvar::new() }
    }

    fn call_off(&self) {
        let mut progress = self.progress.lock();
        progress.called_off = true;
        if let Some(departure) = progress.under_way.take() {
            departure.call_off(DepartureOutcome::TryAgain);
        }
        self.changed.notify_all();
    }

    fn is_called_off(&self) -> bool {
        self.progress.lock().called_off
    }

    /// `departure` is under way now, and is called off with the job.
    fn moves(&self, departure: &Arc<Departure>) {
        let mut progress = self.progress.lock();
        if progress.called_off {
            departure.call_off(DepartureOutcome::TryAgain);
        }
        progress.under_way = Some(departure.clone());
    }

    /// Waits until `timeout` has passed or the job is called off.
    fn pause(&self, timeout: Duration) {
        let mut progress = self.progress.lock();
        if !progress.called_off {
            self.changed.wait_for(&mut progress, timeout);
        }
    }

    fn is_now(&self, state: JobState) {
        self.progress.lock().state = state;
    }

    fn ends(&self, state: JobState) {
        let mut progress = self.progress.lock();
        progress.state = state;
        progress.took = Some(self.began.elapsed());
        progress.under_way = None;
    }

    fn view(&self) -> JobView {
        let progress = self.progress.lock();
        JobView {
            id: self.id,
            branch: self.order.from,
            path: self.path.clone(),
            state: progress.state,
            dry_run: self.order.dry_run,
            refusal: progress.refusal.clone(),
            found: progress.found,
            moved: progress.moved,
            dirs: progress.dirs,
            shares: progress.shares.clone(),
            staying: progress.staying,
            named: progress.named.clone(),
            took: progress.took.unwrap_or_else(|| self.began.elapsed()),
        }
    }
}

/// The thread of a job has ended, however it did, or was never started.
struct Gone(Arc<Job>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.progress.lock().gone = true;
        self.0.changed.notify_all();
    }
}

/// The jobs of a pool: those at work, and the last that have ended.
#[derive(Debug, Default)]
pub(crate) struct JobList(Mutex<JobsState>);

#[derive(Debug, Default)]
struct JobsState {
    jobs: Vec<Arc<Job>>,
    begun: u64,
    ended: bool,
}

impl JobList {
    /// Calls all jobs off and waits for their threads, unless they hang.
    pub(crate) fn end(&self) {
        let jobs = {
            let mut state = self.0.lock();
            state.ended = true;
            state.jobs.clone()
        };
        jobs.iter().for_each(|job| job.call_off());
        let until = Instant::now() + END_TIMEOUT;
        for job in jobs {
            let mut progress = job.progress.lock();
            while !progress.gone && !job.changed.wait_until(&mut progress, until).timed_out() {}
        }
    }
}

impl Union {
    /// Begins to empty a branch. What can be known only from a look at the branch shows later.
    ///
    /// # Errors
    /// It cannot begin.
    pub fn start_drain(self: &Arc<Self>, order: DrainOrder) -> Result<JobView, BadJob> {
        let from = order.from;
        let pool = self.pool();
        let branch = pool.live(from).cloned().ok_or(BadJob::NoBranch)?;
        let takes = |ix: BranchIx| {
            ix != from
                && (order.to.is_empty() || order.to.contains(&ix))
                && pool.live(ix).is_some_and(|at| at.mode() == BranchMode::ReadWrite && at.is_writable())
        };
        let targets: Arc<[BranchIx]> =
            pool.branches.iter().map(|branch| branch.ix).filter(|ix| takes(*ix)).collect();
        if targets.is_empty() || order.to.iter().any(|ix| !targets.contains(ix)) {
            return Err(BadJob::NoTarget);
        }
        if !branch.is_writable() {
            return Err(BadJob::ReadOnly);
        }
        drop(pool);
        // While the job is at work the branch does not leave the pool.
        let stays = branch.acquire().map_err(|_| BadJob::NoBranch)?;
        let job = {
            let mut state = self.jobs.0.lock();
            if state.ended {
                return Err(BadJob::Ending);
            }
            let at_work = |job: &&Arc<Job>| job.order.from == from && !job.progress.lock().gone;
            if let Some(other) = state.jobs.iter().find(at_work) {
                return Err(BadJob::Busy(other.id));
            }
            state.begun += 1;
            let path = branch.path.display().to_string();
            let job = Arc::new(Job::new(state.begun, order, targets, path));
            let ended: Vec<u64> =
                state.jobs.iter().filter(|job| job.progress.lock().gone).map(|job| job.id).collect();
            let oldest = ended.len().saturating_sub(ENDED_SHOWN - 1);
            state.jobs.retain(|job| !ended[..oldest].contains(&job.id));
            state.jobs.push(job.clone());
            job
        };
        // It drops with the closure, also if no thread runs that: the branch is free for another job then.
        let (me, gone) = (Arc::downgrade(self), Gone(job.clone()));
        let started = thread::start(std::thread::Builder::new().name("job".into()), move || {
            if let Some(union) = me.upgrade() {
                union.work(&gone.0, stays);
            }
        });
        if let Err(error) = started {
            job.ends(JobState::Refused);
            return Err(BadJob::NoThread(error.to_string()));
        }
        Ok(job.view())
    }

    fn work(&self, job: &Job, stays: OpenFileRef) {
        let path = &job.path;
        tracing::info!(job = job.id, branch = %path, dry_run = job.order.dry_run, "job: drain begins");
        let state = self.drain(job);
        if job.progress.lock().forgotten {
            self.forget_drain(job.order.from);
        }
        drop(stays);
        job.ends(state);
        let JobView { moved, staying, .. } = job.view();
        tracing::info!(job = job.id, branch = %path, state = state.name(), files = moved.files, bytes = moved.bytes, staying, "job: drain ended");
    }

    /// The jobs at work, and the last that have ended, the oldest first.
    pub fn jobs(&self) -> Vec<JobView> {
        self.jobs.0.lock().jobs.iter().map(|job| job.view()).collect()
    }

    /// Calls the job `id` off, for good: the next mount does not begin it again. What it has moved stays moved.
    ///
    /// # Errors
    /// There is no such job.
    pub fn cancel_job(&self, id: u64) -> Result<JobView, BadJob> {
        let job = self.jobs.0.lock().jobs.iter().find(|job| job.id == id).cloned();
        let job = job.ok_or(BadJob::NoJob(id))?;
        // The job may just be about to be remembered, and forgets that at its end.
        let is_over = {
            let mut progress = job.progress.lock();
            progress.forgotten = !job.order.dry_run;
            progress.gone
        };
        job.call_off();
        let is_other = |other: &JobView| other.branch == job.order.from && !other.state.is_over();
        if is_over && !job.order.dry_run && !self.jobs().iter().any(is_other) {
            self.forget_drain(job.order.from);
        }
        Ok(job.view())
    }
}
