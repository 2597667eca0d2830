//! Where a door's threads run: most of what a metadata operation costs.
//!
//! A thread is pinned to its CPU, where its callers are woken from and to. Under `SCHED_IDLE` it does not count
//! when the scheduler looks for a CPU for the caller, so that the caller stays where it is instead of being
//! sent to one that sleeps. In a scheduling group of its own (a session leader under autogroup) the group has
//! its ordinary weight and the thread does not starve; elsewhere it would, and a little niceness does nearly as well.

use std::time::{Duration, Instant};

use fsstack_sys::process;
use fsstack_sys::thread::{self, Policy};

/// How the threads of a door are scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduling {
    /// As the process finds itself: `Idle` in a group of its own, else `Nice`.
    Auto,
    /// `SCHED_IDLE`.
    Idle,
    /// Ordinary, with nice -5.
    Nice,
    /// As the process was started.
    Plain,
}

impl Scheduling {
    /// What `Auto` comes to in this process.
    pub fn settled(self) -> Self {
        match self {
            Self::Auto if thread::autogroup_enabled() && process::leads_session() => Self::Idle,
            Self::Auto => Self::Nice,
            chosen => chosen,
        }
    }

    /// Puts the calling thread on `cpu`, scheduled so. What the system refuses is left as it was: it costs speed only.
    pub(crate) fn apply(self, cpu: Option<usize>) {
        if let Some(cpu) = cpu
            && let Err(error) = thread::pin_to_cpu(cpu)
        {
            tracing::debug!(%error, cpu, "a door's thread is not pinned");
        }
        let applied = match self {
            Self::Idle => thread::set_policy(Policy::Idle),
            Self::Nice => thread::set_nice(-5),
            Self::Auto | Self::Plain => Ok(()),
        };
        report(applied);
    }
}

/// Requests between two looks at how long the thread has waited for its CPU.
const LOOK_EVERY: u32 = 64;
/// Waiting for its CPU this long for each request is starving: the request itself takes a tenth of it.
const STARVING: Duration = Duration::from_micros(100);
/// How long a thread that starved stays ordinary.
const ORDINARY_FOR: Duration = Duration::from_secs(10);

/// Keeps a thread under `SCHED_IDLE` from starving: it does where other programs keep its CPU busy and it is woken
/// there for a caller on another. Then it is ordinary for a while.
#[derive(Debug)]
pub(crate) struct Pace {
    idle: bool,
    requests: u32,
    waited: Duration,
    ordinary_until: Option<Instant>,
}

impl Pace {
    /// For the calling thread, scheduled so.
    pub(crate) fn new(scheduling: Scheduling) -> Self {
        let waited = thread::run_delay().unwrap_or_default();
        Self { idle: scheduling == Scheduling::Idle, requests: 0, waited, ordinary_until: None }
    }

    /// The thread has served a request.
    pub(crate) fn served(&mut self) {
        self.requests = self.requests.wrapping_add(1);
        if !self.idle || !self.requests.is_multiple_of(LOOK_EVERY) {
            return;
        }
        let Some(waited) = thread::run_delay() else { return };
        let starves = waited.saturating_sub(self.waited) > STARVING * LOOK_EVERY;
        self.waited = waited;
        match self.ordinary_until {
            None if starves => {
                self.ordinary_until = Some(Instant::now() + ORDINARY_FOR);
                report(thread::set_policy(Policy::Other));
                Scheduling::Nice.apply(None);
            }
            Some(until) if until < Instant::now() => {
                self.ordinary_until = None;
                Scheduling::Idle.apply(None);
            }
            _ => {}
        }
    }
}

fn report(done: std::io::Result<()>) {
    if let Err(error) = done {
        tracing::debug!(%error, "a door's thread is scheduled as it was");
    }
}
