//! Where a door's threads run: most of what a metadata operation costs.
//!
//! A thread is pinned to its CPU, where its callers are woken from and to. Under `SCHED_IDLE` it does not count
//! when the scheduler looks for a CPU for the caller, so that the caller stays where it is instead of being
//! sent to one that sleeps. In a scheduling group of its own (a session leader under autogroup) the group has
//! its ordinary weight and the thread does not starve; elsewhere it would, and a little niceness does nearly as well.

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
            Self::Auto if thread::autogroup_enabled() && is_session_leader() => Self::Idle,
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
        if let Err(error) = applied {
            tracing::debug!(%error, "a door's thread is scheduled as it was");
        }
    }
}

fn is_session_leader() -> bool {
    rustix::process::getsid(None).is_ok_and(|session| session == rustix::process::getpid())
}
