//! Where a transport's threads run: most of what a metadata operation costs.
//!
//! A thread is pinned to its CPU, where its callers are woken from and to. Under `SCHED_IDLE` it does not count
//! when the scheduler looks for a CPU for the caller, so that the caller stays where it is instead of being
//! sent to one that sleeps. In a scheduling group of its own (a cpu cgroup, or a session leader under autogroup) the
//! group has its ordinary weight and the thread does not starve; elsewhere it would, and a little niceness does nearly as well.

use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicBool, Ordering::Relaxed};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::cpu_group::CpuGroup;
use fsstack_sys::process;
use fsstack_sys::thread::{self, Policy, RunDelay};
use strum::{Display, EnumString, VariantNames};

/// How the threads of a transport are scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Scheduling {
    /// Chosen by the process's own state: `Idle` in a scheduling group of its own, else `Nice`; `Plain` where neither could
    /// be undone.
    #[default]
    Auto,
    /// `SCHED_IDLE`.
    Idle,
    /// Ordinary, with nice -5.
    Nice,
    /// Scheduled as the process was started.
    Plain,
}

impl Scheduling {
    /// Mode that `Auto` means in this process.
    pub fn settled(self) -> Self {
        self.settled_in(|| has_own_group(CpuGroup::of_process()))
    }

    fn settled_in(self, own_group: impl FnOnce() -> bool) -> Self {
        match self {
            Self::Auto if !own_group() => Self::Nice,
            Self::Auto if comes_back() => Self::Idle,
            Self::Auto => Self::Plain,
            chosen => chosen,
        }
    }

    /// Puts the calling thread on `cpu`, scheduled so. What the system refuses is left as it was: it costs speed only.
    pub(crate) fn apply(self, cpu: Option<usize>) {
        if let Some(cpu) = cpu
            && let Err(error) = thread::pin_to_cpu(cpu)
        {
            tracing::debug!(%error, cpu, "a worker thread is not pinned");
        }
        let applied = match self {
            Self::Idle => thread::set_policy(Policy::Idle),
            Self::Nice => thread::set_nice(-5),
            Self::Auto | Self::Plain => Ok(()),
        };
        report(applied);
    }
}

/// Whether this process, in that group of the cpu controller, is a scheduling group by itself. Sessions are groups only
/// where the controller has made none.
fn has_own_group(of_controller: CpuGroup) -> bool {
    match of_controller {
        CpuGroup::Own => true,
        CpuGroup::Shared => false,
        CpuGroup::Root => thread::autogroup_enabled() && process::leads_session(),
    }
}

/// Whether a thread of this process that is under `SCHED_IDLE` can be ordinary again, should it starve. Without CAP_SYS_NICE
/// the kernel lets it only as far as RLIMIT_NICE goes: by default, never.
fn comes_back() -> bool {
    let there_and_back = || thread::set_policy(Policy::Idle).and_then(|()| thread::set_policy(Policy::Other));
    let trial = fsstack_sync::thread::Builder::new().name("sched-trial".into()).spawn(there_and_back);
    trial.is_ok_and(|trial| trial.join().is_ok_and(|back| back.is_ok()))
}

/// Makes the calling thread, which a transport's thread may have started, an ordinary one: nobody looks whether it starves.
pub(crate) fn leave() {
    report(thread::be_ordinary());
}

/// Requests between two looks at how long the thread has waited for its CPU, at most.
const LOOK_EVERY: u32 = 16;
/// The same after it has become idle again.
const LOOK_FIRST: u32 = 2;
/// Waiting for its CPU this long between two looks is a time slice of a program that keeps it. Less is ordinary: a
/// RELEASE that nobody waits for runs when its caller pauses.
const LONG_DELAY: Duration = Duration::from_millis(2);
/// So many long waits in a second are starving; one is a host that was elsewhere.
const LONG_DELAYS_A_SECOND: u32 = 3;
/// Time in which long waits for a CPU are counted.
const SECOND: Duration = Duration::from_secs(1);
/// How long the threads of a CPU stay ordinary where one starved, the first time. It doubles when the next try ends as soon as
/// it was begun.
const ORDINARY_FOR: Duration = Duration::from_secs(10);
/// How long the threads of a CPU stay ordinary at most.
const ORDINARY_AT_MOST: Duration = Duration::from_secs(160);
/// A try of `SCHED_IDLE` that lasted this long was worth it.
const WORTHWHILE_TRY: Duration = Duration::from_secs(5);

/// How the threads of one CPU are scheduled where `SCHED_IDLE` is wanted: they starve under it where other programs keep
/// the CPU busy and they are woken there for a caller on another. What one finds out holds for all.
#[derive(Debug, Default)]
pub(crate) struct QueueScheduling {
    ordinary: AtomicBool,
    times: Mutex<Times>,
}

#[derive(Debug, Default)]
struct Times {
    /// When the threads were last made idle.
    idle_since: Option<Instant>,
    ordinary_until: Option<Instant>,
    pause: Duration,
}

impl QueueScheduling {
    /// One of the threads starved: all are ordinary for a while.
    fn starved(&self, now: Instant) {
        let mut times = self.times.lock();
        if self.ordinary.load(Relaxed) {
            return;
        }
        let worth_it = times.idle_since.is_none_or(|since| WORTHWHILE_TRY < now.duration_since(since));
        times.pause = if worth_it { ORDINARY_FOR } else { (times.pause * 2).min(ORDINARY_AT_MOST) };
        times.ordinary_until = Some(now + times.pause);
        self.ordinary.store(true, Relaxed);
    }

    /// Tries again when it is time.
    fn try_again(&self, now: Instant) {
        let mut times = self.times.lock();
        if times.ordinary_until.is_some_and(|until| until <= now) && self.ordinary.swap(false, Relaxed) {
            times.idle_since = Some(now);
        }
    }
}

/// Keeps a thread under `SCHED_IDLE` from starving.
#[derive(Debug)]
pub(crate) struct StarvationGuard<'t> {
    /// None: the thread is not to be idle at all, or the kernel does not tell how it fares.
    watched: Option<WatchedThread<'t>>,
}

#[derive(Debug)]
struct WatchedThread<'t> {
    queue_scheduling: &'t QueueScheduling,
    delay: RunDelay,
    ordinary: bool,
    requests: u32,
    look_at: u32,
    history: DelayHistory,
}

/// Facts about a thread's waiting from earlier checks.
#[derive(Debug)]
struct DelayHistory {
    waited: Duration,
    /// When the first of its long waits was seen, and how many were since.
    long: Option<(Instant, u32)>,
}

impl DelayHistory {
    fn new(delay: &RunDelay) -> Self {
        Self { waited: delay.total().unwrap_or(Duration::MAX), long: None }
    }

    /// It has waited `waited` in all by `now`: whether it starves.
    fn starves(&mut self, waited: Duration, now: Instant) -> bool {
        let long = LONG_DELAY < waited.saturating_sub(self.waited);
        self.waited = waited;
        if !long {
            return false;
        }
        let (since, before) =
            self.long.filter(|(since, _)| now.duration_since(*since) < SECOND).unwrap_or((now, 0));
        self.long = Some((since, before + 1));
        LONG_DELAYS_A_SECOND <= before + 1
    }
}

impl<'t> StarvationGuard<'t> {
    /// For the calling thread, scheduled so, on the CPU that `queue_scheduling` is of.
    pub(crate) fn new(scheduling: Scheduling, queue_scheduling: &'t QueueScheduling) -> Self {
        let delay = RunDelay::own().filter(|_| scheduling == Scheduling::Idle);
        let watched = |delay: RunDelay| {
            let history = DelayHistory::new(&delay);
            WatchedThread {
                queue_scheduling,
                delay,
                ordinary: false,
                requests: 0,
                look_at: LOOK_FIRST,
                history,
            }
        };
        Self { watched: delay.map(watched) }
    }

    /// The thread has served a request.
    pub(crate) fn served(&mut self) {
        if let Some(watched) = &mut self.watched {
            watched.served();
        }
    }
}

impl WatchedThread<'_> {
    fn served(&mut self) {
        self.requests += 1;
        if self.queue_scheduling.ordinary.load(Relaxed) != self.ordinary {
            self.follow();
        } else if self.look_at <= self.requests {
            if self.ordinary {
                self.queue_scheduling.try_again(Instant::now());
            } else {
                self.look();
            }
            self.requests = 0;
            self.look_at = (self.look_at * 2).min(LOOK_EVERY);
        }
    }

    fn look(&mut self) {
        let Some(waited) = self.delay.total() else { return };
        let now = Instant::now();
        if self.history.starves(waited, now) {
            self.queue_scheduling.starved(now);
        }
    }

    /// Switches between SCHED_IDLE and ordinary scheduling.
    fn follow(&mut self) {
        self.ordinary = !self.ordinary;
        self.requests = 0;
        if self.ordinary {
            report(thread::set_policy(Policy::Other));
            Scheduling::Nice.apply(None);
            self.look_at = LOOK_EVERY;
        } else {
            Scheduling::Idle.apply(None);
            self.look_at = LOOK_FIRST;
            self.history = DelayHistory::new(&self.delay);
        }
    }
}

fn report(done: std::io::Result<()>) {
    if let Err(error) = done {
        tracing::debug!(%error, "a worker thread is scheduled as it was");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_starvation_doubles_the_wait() {
        let queue_scheduling = QueueScheduling::default();
        let mut now = Instant::now();
        for pause in [10, 20, 40, 80, 160, 160] {
            queue_scheduling.starved(now);
            queue_scheduling.try_again(now + Duration::from_secs(pause - 1));
            assert!(queue_scheduling.ordinary.load(Relaxed), "{pause}");
            now += Duration::from_secs(pause);
            queue_scheduling.try_again(now);
            assert!(!queue_scheduling.ordinary.load(Relaxed), "{pause}");
        }
        now += WORTHWHILE_TRY + Duration::from_secs(1);
        queue_scheduling.starved(now);
        queue_scheduling.try_again(now + ORDINARY_FOR);
        assert!(!queue_scheduling.ordinary.load(Relaxed));
    }

    #[test]
    fn a_thread_that_cannot_become_ordinary_again_is_not_made_idle() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

        let limit = getrlimit(Resource::Nice);
        setrlimit(Resource::Nice, Rlimit { current: Some(0), maximum: limit.maximum }).unwrap();
        // Capabilities are a thread's own, and of those that it starts.
        let settled = fsstack_sync::thread::spawn(|| {
            let mut sets = capabilities(None).unwrap();
            let may = sets.effective.contains(CapabilitySet::SYS_NICE);
            let before = Scheduling::Auto.settled_in(|| true);
            sets.effective.remove(CapabilitySet::SYS_NICE);
            set_capabilities(None, sets).unwrap();
            (may, before, Scheduling::Auto.settled_in(|| true))
        });
        let (may, before, after) = settled.join().unwrap();
        assert_eq!(before, if may { Scheduling::Idle } else { Scheduling::Plain });
        assert_eq!(after, Scheduling::Plain);
        // What was asked for is done.
        assert_eq!(Scheduling::Idle.settled_in(|| false), Scheduling::Idle);
    }

    #[test]
    fn a_session_is_no_group_in_a_cgroup() {
        // Whatever this process leads.
        assert!(has_own_group(CpuGroup::Own));
        assert!(!has_own_group(CpuGroup::Shared));
        assert_eq!(has_own_group(CpuGroup::Root), thread::autogroup_enabled() && process::leads_session());
        assert_eq!(Scheduling::Auto.settled_in(|| has_own_group(CpuGroup::Shared)), Scheduling::Nice);
    }

    #[test]
    fn only_repeated_long_waits_count_as_starving() {
        let mut history = DelayHistory { waited: Duration::ZERO, long: None };
        let (mut waited, mut now) = (Duration::ZERO, Instant::now());
        let mut look = |more: u64, later: u64| {
            waited += Duration::from_millis(more);
            now += Duration::from_millis(later);
            history.starves(waited, now)
        };
        // Requests that nobody waits for run when their callers pause.
        assert!((0..100).all(|_| !look(1, 1)));
        // The host was elsewhere, now and then.
        assert!((0..100).all(|_| !look(50, 600)));
        // Programs keep the CPU for a time slice each time.
        assert!((0..10).any(|_| look(3, 20)));
    }

    #[test]
    fn threads_of_a_queue_share_their_scheduling() {
        let queue_scheduling = QueueScheduling::default();
        let mut guard = StarvationGuard::new(Scheduling::Idle, &queue_scheduling);
        let ordinary = |guard: &StarvationGuard<'_>| guard.watched.as_ref().map(|watched| watched.ordinary);
        // A kernel without schedstat tells nobody: no thread is watched there.
        let registered_sender = RunDelay::own().is_some();
        queue_scheduling.starved(Instant::now());
        guard.served();
        assert_eq!(ordinary(&guard), registered_sender.then_some(true));
        queue_scheduling.try_again(Instant::now() + ORDINARY_FOR);
        guard.served();
        assert_eq!(ordinary(&guard), registered_sender.then_some(false));
        assert!(StarvationGuard::new(Scheduling::Plain, &queue_scheduling).watched.is_none());
    }
}
