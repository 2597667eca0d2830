//! One job: what it is, how far it is, and whether it is to go on.

use std::sync::Arc;

use fsstack_pool::Window;
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Condvar, Mutex};

use super::awaited::Awaited;
use super::clock::DayClock;
use super::order::Work;
use super::pacing::Pacing;
use super::planning::list::MovingList;
use super::planning::room::Share;
use super::{Amount, JobState, JobView, NAMED, Staying};
use crate::files::departure::{Departure, DepartureOutcome};

/// How often a job that is outside of its window looks at the clock, which may be set.
const WINDOW_LOOK: Duration = Duration::from_secs(15);

/// A job, for its thread and those who ask.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: u64,
    pub(super) work: Work,
    pub(super) subject: String,
    pub(super) began: Instant,
    pub(super) clock: Arc<dyn DayClock>,
    pub(super) progress: Mutex<Progress>,
    pub(super) changed: Condvar,
    pub(super) pacing: Mutex<Pacing>,
}

#[derive(Debug)]
pub(super) struct Progress {
    pub(super) state: JobState,
    pub(super) called_off: bool,
    /// By the operator.
    pub(super) is_cancelled: bool,
    pub(super) paused: bool,
    /// It waits for its window.
    pub(super) is_parked: bool,
    /// Its window has closed, and it is called off for that.
    pub(super) is_closed: bool,
    /// It is to be begun again (`interrupted.rs`).
    pub(super) is_interrupted: bool,
    /// How it ends, which shows once the next daemon would know.
    pub(super) end: Option<JobState>,
    /// The next mount is not to begin it again, though its branch may know of it.
    pub(super) forgotten: bool,
    /// The thread has ended.
    pub(super) gone: bool,
    pub(super) refusal: Option<String>,
    pub(super) found: Amount,
    pub(super) moved: Amount,
    pub(super) dirs: u64,
    pub(super) shares: Vec<Share>,
    pub(super) planned: Option<Arc<MovingList>>,
    pub(super) staying: u64,
    pub(super) untried: u64,
    pub(super) named: Vec<Staying>,
    pub(super) under_way: Option<Arc<Departure>>,
    /// Files that it waits for, one of which was closed.
    pub(super) awaited: Awaited,
    pub(super) woken: bool,
    pub(super) took: Option<Duration>,
}

impl Progress {
    /// It is at work and not called off, or is to be begun again.
    pub(super) fn is_to_go_on(&self) -> bool {
        self.is_interrupted || !self.called_off && self.end.is_none()
    }
}

impl Job {
    pub(super) fn new(id: u64, work: Work, subject: String, clock: Arc<dyn DayClock>) -> Self {
        let progress = Progress {
            state: JobState::Counting,
            called_off: false,
            is_cancelled: false,
            paused: false,
            is_parked: false,
            is_closed: false,
            is_interrupted: false,
            end: None,
            forgotten: false,
            gone: false,
            refusal: None,
            found: Amount::default(),
            moved: Amount::default(),
            dirs: 0,
            shares: Vec::new(),
            planned: None,
            staying: 0,
            untried: 0,
            named: Vec::new(),
            under_way: None,
            awaited: Awaited::default(),
            woken: false,
            took: None,
        };
        let began = Instant::now();
        Self {
            id,
            work,
            subject,
            began,
            clock,
            progress: Mutex::new(progress),
            changed: Condvar::new(),
            pacing: Mutex::default(),
        }
    }

    pub(super) fn call_off(&self) {
        let mut progress = self.progress.lock();
        progress.called_off = true;
        if let Some(departure) = progress.under_way.take() {
            departure.call_off(DepartureOutcome::TryAgain);
        }
        self.changed.notify_all();
    }

    /// Has it be begun again later, if it is at work and not called off. False: it is not.
    pub(super) fn interrupt(&self) -> bool {
        let mut progress = self.progress.lock();
        let is_at_work = progress.is_to_go_on() && !progress.is_interrupted && !self.work.yields();
        progress.is_interrupted |= is_at_work;
        is_at_work
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.progress.lock().is_interrupted
    }

    pub(super) fn is_called_off(&self) -> bool {
        self.progress.lock().called_off
    }

    /// Waits while the operator has it pause, and outside of its window. False: it is called off.
    pub(super) fn goes_on(&self) -> bool {
        let mut progress = self.progress.lock();
        while !progress.called_off {
            if progress.paused {
                self.changed.wait(&mut progress);
            } else if !self.is_outside(&progress) {
                break;
            } else if self.work.yields() {
                // The next one has a plan of its own.
                (progress.is_closed, progress.called_off) = (true, true);
            } else {
                if !progress.is_parked {
                    progress.is_parked = true;
                    tracing::info!(job = self.id, "job parked: outside of its window");
                }
                self.changed.wait_for(&mut progress, WINDOW_LOOK);
            }
        }
        progress.is_parked = false;
        !progress.called_off
    }

    /// Whether no further move is to begin now.
    pub(super) fn is_held_up(&self) -> bool {
        let progress = self.progress.lock();
        progress.called_off || progress.paused || self.is_outside(&progress)
    }

    /// Calls off a move that is under way when the window closes. Its file is copied anew when that opens.
    pub(super) fn keeps_to_window(&self, departure: &Departure) {
        if self.is_outside(&self.progress.lock()) {
            departure.call_off(DepartureOutcome::TryAgain);
        }
    }

    /// Has a batch end with the files that are copied when the window closes, and at once if the job is called off.
    pub(super) fn keeps_batch_to_window(&self, departure: &Departure) {
        let progress = self.progress.lock();
        if progress.called_off {
            // It may have been exchanging names when that was said.
            departure.call_off(DepartureOutcome::TryAgain);
        } else if self.is_outside(&progress) {
            departure.cut_short();
        }
    }

    /// Whether its window is closed. What a drain counts, and what moves nothing, needs none.
    fn is_outside(&self, progress: &Progress) -> bool {
        let needs_none = self.work.manner().dry_run
            || self.work.drained().is_some() && progress.state == JobState::Counting;
        let is_closed = |window: Window| self.clock.now().is_some_and(|now| !window.contains(now));
        !needs_none && self.work.window().is_some_and(is_closed)
    }

    /// `departure` is under way now, and is called off with the job.
    pub(super) fn moves(&self, departure: &Arc<Departure>) {
        let mut progress = self.progress.lock();
        if progress.called_off {
            departure.call_off(DepartureOutcome::TryAgain);
        }
        progress.under_way = Some(departure.clone());
    }

    /// An object that no move was planned for.
    pub(super) fn leaves_out(&self, path: Vec<u8>, why: &'static str) {
        let mut progress = self.progress.lock();
        progress.staying += 1;
        if progress.named.len() < NAMED {
            progress.named.push(Staying { path, why });
        }
    }

    /// Waits until `timeout` has passed, a file that it waits for is closed, or the job is called off. True: a file was closed.
    pub(super) fn pause(&self, timeout: Duration) -> bool {
        self.wait(timeout, |progress| progress.woken);
        self.progress.lock().woken
    }

    /// Waits until `timeout` has passed or the job is called off.
    pub(super) fn rest(&self, timeout: Duration) {
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

    pub(super) fn is_now(&self, state: JobState) {
        self.progress.lock().state = state;
    }

    /// Notes how it ends, which does not show yet. One that has come to its end is not begun again.
    pub(super) fn note_end(&self, state: JobState) {
        let mut progress = self.progress.lock();
        progress.end = Some(state);
        progress.is_interrupted &= state == JobState::Cancelled;
    }

    pub(super) fn ends(&self, state: JobState) {
        self.note_end(state);
        let mut progress = self.progress.lock();
        progress.state = state;
        progress.took = Some(self.began.elapsed());
        progress.under_way = None;
    }

    /// It does nothing any more, whether its thread is still to end or not: another one may begin as soon as this is shown.
    pub(super) fn has_ended(&self) -> bool {
        let progress = self.progress.lock();
        progress.gone || progress.state.is_over()
    }

    pub(super) fn view(&self) -> JobView {
        let progress = self.progress.lock();
        JobView {
            id: self.id,
            kind: self.work.kind(),
            drained: self.work.drained(),
            subject: self.subject.clone(),
            state: match progress.state {
                over if over.is_over() && !progress.is_interrupted => over,
                _ if progress.paused => JobState::Paused,
                _ if progress.is_parked || progress.is_interrupted => JobState::Parked,
                now => now,
            },
            dry_run: self.work.manner().dry_run,
            at_work: self.pacing.lock().percent(),
            window: self.work.window(),
            refusal: progress.refusal.clone(),
            found: progress.found,
            moved: progress.moved,
            dirs: progress.dirs,
            shares: progress.shares.clone(),
            planned: progress.planned.clone(),
            staying: progress.staying,
            untried: progress.untried,
            named: progress.named.clone(),
            took: progress.took.unwrap_or_else(|| self.began.elapsed()),
        }
    }
}

/// The thread of a job has ended, however it did, or was never started.
pub(super) struct Gone(pub(super) Arc<Job>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.progress.lock().gone = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use fsstack_pool::{BranchIx, DayMinute};
    use fsstack_sync::mpsc;

    use super::*;
    use crate::jobs::{ConsolidateOrder, DrainOrder, HiddenCopies, Manner, TierRun};

    /// A clock that stands still until it is set.
    #[derive(Debug)]
    struct SetClock(Mutex<DayMinute>);

    impl SetClock {
        fn set(&self, hour: u16) {
            *self.0.lock() = DayMinute::new(hour * 60);
        }
    }

    impl DayClock for SetClock {
        fn now(&self) -> Option<DayMinute> {
            Some(*self.0.lock())
        }
    }

    fn job(work: Work, hour: u16) -> (Arc<Job>, Arc<SetClock>) {
        let clock = Arc::new(SetClock(Mutex::new(DayMinute::new(hour * 60))));
        (Arc::new(Job::new(1, work, String::new(), clock.clone())), clock)
    }

    fn consolidate(dry_run: bool) -> Work {
        let manner = Manner { dry_run, ..Manner::default() };
        Work::Consolidate(ConsolidateOrder {
            dir: Vec::new(),
            to: None,
            manner,
            window: "22:00-06:00".parse().ok(),
        })
    }

    fn drain() -> Work {
        let (from, manner) = (BranchIx(0), Manner::default());
        let window = "22:00-06:00".parse().ok();
        Work::Drain(DrainOrder { from, to: Vec::new(), hidden: HiddenCopies::Stop, manner, window })
    }

    #[test]
    fn a_job_is_parked_until_its_window_opens_over_midnight() {
        let (job, clock) = job(consolidate(false), 12);
        let (told, hears) = mpsc::channel();
        let goes = fsstack_sync::thread::spawn({
            let job = job.clone();
            move || told.send(job.goes_on()).unwrap()
        });
        while job.view().state != JobState::Parked {
            fsstack_sync::thread::yield_now();
        }
        assert!(job.is_held_up() && hears.try_recv().is_err());
        clock.set(1);
        job.changed.notify_all();
        assert_eq!((hears.recv(), job.is_held_up(), job.view().state), (Ok(true), false, JobState::Counting));
        goes.join().unwrap();
        let departure = Departure::ordered();
        job.keeps_to_window(&departure);
        assert!(departure.goes_on());
        // It closes again: the move under way ends, and no further one begins.
        clock.set(6);
        job.keeps_to_window(&departure);
        assert!(job.is_held_up() && departure.is_over());
        job.call_off();
        assert!(!job.goes_on());
    }

    #[test]
    fn a_dry_run_and_the_count_of_a_drain_need_no_window() {
        let (planned, _clock) = job(consolidate(true), 12);
        assert!(planned.goes_on() && !planned.is_held_up());
        let (drained, clock) = job(drain(), 12);
        assert!(drained.goes_on() && !drained.is_held_up());
        drained.is_now(JobState::Moving);
        assert!(drained.is_held_up());
        clock.set(22);
        assert!(drained.goes_on() && !drained.is_held_up());
    }

    #[test]
    fn a_tier_whose_window_closes_ends() {
        let tier = "fast>slow;window=22:00-06:00".parse().unwrap();
        let (job, clock) = job(Work::Tier(TierRun { tier: Arc::new(tier), dry_run: false }), 23);
        assert!(job.goes_on());
        clock.set(6);
        assert!(!job.goes_on() && job.progress.lock().is_closed);
    }
}
