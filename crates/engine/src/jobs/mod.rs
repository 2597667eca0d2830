//! Work on a pool that goes on by itself, on a thread of its own: `drain` empties a branch, `balance` makes branches about
//! as full, `consolidate` gathers a directory on one branch, and `rules` moves what lies against the placement rules.
//!
//! What a job has moved stays moved. A drain that the daemon's end interrupts is begun again by the next mount (`remembered.rs`).

mod awaited;
mod by_rules;
mod choice;
mod drain;
pub mod level;
mod moving_list;
mod order;
mod pass;
pub mod plan;
mod rearrange;
pub(crate) mod remembered;
mod walk;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fsstack_branch::admin_state::OpenFileRef;
use fsstack_branch::thread;
use fsstack_pool::{BranchIx, BranchMode, Ino};
use parking_lot::{Condvar, Mutex};

use crate::files::departure::{Departure, DepartureOutcome};
use crate::union::Union;
use awaited::{AnyAwaited, Awaited};
pub use moving_list::{MovingList, PlannedMove};
use order::Work;
pub use order::{BadJob, BalanceOrder, ConsolidateOrder, DrainOrder, Manner, RulesOrder};
use plan::Share;

/// Ended jobs that are shown.
const ENDED_SHOWN: usize = 16;
/// Moves of a dry run that are kept to be shown: its plan stays in memory after it.
const PLANNED_SHOWN: usize = 10_000;
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
    /// The operator has it pause.
    Paused,
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
        !matches!(self, Self::Counting | Self::Moving | Self::Waiting | Self::Paused)
    }

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counting => "counting",
            Self::Moving => "moving",
            Self::Waiting => "waiting",
            Self::Paused => "paused",
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
    work: Work,
    subject: String,
    began: Instant,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug)]
struct Progress {
    state: JobState,
    called_off: bool,
    paused: bool,
    /// The next mount is not to begin it again.
    forgotten: bool,
    /// The thread has ended.
    gone: bool,
    refusal: Option<String>,
    found: Amount,
    moved: Amount,
    dirs: u64,
    shares: Vec<Share>,
    planned: Option<Arc<MovingList>>,
    staying: u64,
    named: Vec<Staying>,
    under_way: Option<Arc<Departure>>,
    /// Files that it waits for, one of which was closed.
    awaited: Awaited,
    woken: bool,
    took: Option<Duration>,
}

impl Job {
    fn new(id: u64, work: Work, subject: String) -> Self {
        let progress = Progress {
            state: JobState::Counting,
            called_off: false,
            paused: false,
            forgotten: false,
            gone: false,
            refusal: None,
            found: Amount::default(),
            moved: Amount::default(),
            dirs: 0,
            shares: Vec::new(),
            planned: None,
            staying: 0,
            named: Vec::new(),
            under_way: None,
            awaited: Awaited::default(),
            woken: false,
            took: None,
        };
        let began = Instant::now();
        Self { id, work, subject, began, progress: Mutex::new(progress), changed: Condvar::new() }
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

    /// Waits while the operator has it pause. False: it is called off.
    fn goes_on(&self) -> bool {
        let mut progress = self.progress.lock();
        while progress.paused && !progress.called_off {
            self.changed.wait(&mut progress);
        }
        !progress.called_off
    }

    /// Whether no further move is to begin now.
    fn is_held_up(&self) -> bool {
        let progress = self.progress.lock();
        progress.called_off || progress.paused
    }

    /// `departure` is under way now, and is called off with the job.
    fn moves(&self, departure: &Arc<Departure>) {
        let mut progress = self.progress.lock();
        if progress.called_off {
            departure.call_off(DepartureOutcome::TryAgain);
        }
        progress.under_way = Some(departure.clone());
    }

    /// An object that no move was planned for.
    fn leaves_out(&self, path: Vec<u8>, why: &'static str) {
        let mut progress = self.progress.lock();
        progress.staying += 1;
        if progress.named.len() < NAMED {
            progress.named.push(Staying { path, why });
        }
    }

    /// Waits until `timeout` has passed, a file that it waits for is closed, or the job is called off. True: a file was closed.
    fn pause(&self, timeout: Duration) -> bool {
        self.wait(timeout, |progress| progress.woken);
        self.progress.lock().woken
    }

    /// Waits until `timeout` has passed or the job is called off.
    fn rest(&self, timeout: Duration) {
        self.wait(timeout, |_| false);
    }

    fn wait(&self, timeout: Duration, is_over: impl Fn(&Progress) -> bool) {
        let until = Instant::now().checked_add(timeout);
        let mut progress = self.progress.lock();
        while !progress.called_off && !is_over(&progress) {
            match until {
                None => self.changed.wait(&mut progress),
                Some(until) if self.changed.wait_until(&mut progress, until).timed_out() => return,
                Some(_) => {}
            }
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
            kind: self.work.kind(),
            drained: self.work.drained(),
            subject: self.subject.clone(),
            state: if progress.paused && !progress.state.is_over() {
                JobState::Paused
            } else {
                progress.state
            },
            dry_run: self.work.manner().dry_run,
            refusal: progress.refusal.clone(),
            found: progress.found,
            moved: progress.moved,
            dirs: progress.dirs,
            shares: progress.shares.clone(),
            planned: progress.planned.clone(),
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
pub(crate) struct JobList(Mutex<JobsState>, AnyAwaited);

#[derive(Debug, Default)]
struct JobsState {
    jobs: Vec<Arc<Job>>,
    begun: u64,
    ended: bool,
    /// Files that a balance moved, and when: they stay where they are for a day.
    settled: HashMap<Ino, Instant>,
    /// Branches whose roots have a drain mark, or may have one.
    marked: HashSet<BranchIx>,
}

impl JobsState {
    fn add(&mut self, work: Work, subject: String) -> Result<Arc<Job>, BadJob> {
        if self.ended {
            return Err(BadJob::Ending);
        }
        let at_work = |job: &&Arc<Job>| job.work.excludes(&work) && !job.progress.lock().gone;
        if let Some(other) = self.jobs.iter().find(at_work) {
            return Err(BadJob::Busy(other.id));
        }
        self.begun += 1;
        let job = Arc::new(Job::new(self.begun, work, subject));
        let ended: Vec<u64> =
            self.jobs.iter().filter(|job| job.progress.lock().gone).map(|job| job.id).collect();
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
        self.begin_job(
            Work::Drain(order),
            branch.path.display().to_string(),
            vec![stays],
            move |union, job| union.drain(job, from, &targets),
        )
    }

    /// Begins `work` on a thread of its own, unless another job excludes it. No branch of `stay` leaves the pool meanwhile.
    fn begin_job(
        self: &Arc<Self>,
        work: Work,
        subject: String,
        stay: Vec<OpenFileRef>,
        run: impl FnOnce(&Self, &Job) -> JobState + Send + 'static,
    ) -> Result<JobView, BadJob> {
        let job = self.jobs.0.lock().add(work, subject)?;
        // It drops with the closure, also if no thread runs that: the branch is free for another job then.
        let (me, gone) = (Arc::downgrade(self), Gone(job.clone()));
        let started = thread::start(fsstack_sync::thread::Builder::new().name("job".into()), move || {
            if let Some(union) = me.upgrade() {
                union.work(&gone.0, stay, run);
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
        let state = run(self, job);
        if let Some(drained) = job.work.drained().filter(|_| job.progress.lock().forgotten) {
            self.forget_drain(drained);
        }
        drop(stay);
        self.jobs.awaits_none(job);
        job.ends(state);
        let JobView { moved, staying, .. } = job.view();
        tracing::info!(job = job.id, kind, %subject, state = state.name(), files = moved.files, bytes = moved.bytes, staying, "job ended");
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
        let drained = job.work.drained().filter(|_| !job.work.manner().dry_run);
        let is_over = {
            let mut progress = job.progress.lock();
            progress.forgotten = drained.is_some();
            progress.gone
        };
        job.call_off();
        if let Some(drained) = drained {
            let is_other = |other: &JobView| other.drained == Some(drained) && !other.state.is_over();
            if is_over && !self.jobs().iter().any(is_other) {
                self.forget_drain(drained);
            }
        }
        Ok(job.view())
    }

    /// Has the job `id` begin no further move until it is to go on. A move under way goes on to its end.
    ///
    /// # Errors
    /// There is no such job, or it has ended.
    pub fn pause_job(&self, id: u64, paused: bool) -> Result<JobView, BadJob> {
        let job = self.jobs.0.lock().jobs.iter().find(|job| job.id == id).cloned();
        let job = job.ok_or(BadJob::NoJob(id))?;
        {
            let mut progress = job.progress.lock();
            if progress.state.is_over() {
                return Err(BadJob::Over(id));
            }
            progress.paused = paused;
        }
        job.changed.notify_all();
        Ok(job.view())
    }
}
