//! Health of a branch: its states, and how they are determined.
//!
//! A branch is probed only when there is cause: a call returned a fault (`error.rs::is_branch_fault`) or overstayed, or
//! the branch's mount left the mount table. Then the branch's monitor (`monitor.rs`) has it probed (`probe.rs`) at once
//! and every second until it is up again. The state decides which calls are admitted:
//!
//! - **up**: all.
//! - **doubted** (shown as suspect): a call reported a fault. That may be one bad file, so calls are admitted.
//! - **lacking** (shown as suspect): it answers, without a part of it (`subvolumes.rs`). Calls go on; a name that is not found is
//!   unknown.
//! - **hung** (shown as suspect): a call or the probe overstayed. Requests fail at once.
//! - **down**: the probe failed. Only probes call the branch.

mod clock;
pub(crate) mod closers;
pub mod free;
pub mod holder;
pub mod inflight_limit;
#[cfg(test)]
#[cfg(feature = "shuttle")]
mod models;
mod monitor;
mod permits;
mod preopened;
pub(crate) mod probe;
pub mod reply_takeover;
pub mod subvolumes;

use std::sync::Arc;

use fsstack_sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed, Ordering::SeqCst};
use fsstack_sync::mpsc::{Receiver, RecvTimeoutError};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Condvar, Mutex};
use fsstack_sys::{Call, Errno, SysError};

use crate::branch::Branch;
use crate::error::{OpError, Result};
use closers::Closers;
use inflight_limit::{CallKind, CallPermit, InflightLimit};

pub use free::NotFreed;

/// For this long after a successful probe, EIO on single files triggers no new probe.
const PROBE_COOLDOWN: Duration = Duration::from_secs(1);

/// Longest wait of optional requests for this branch.
const OPTIONAL_CALL_WAIT: Duration = Duration::from_secs(1);

/// State of a branch, as shown to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchState {
    /// It answers.
    Up,
    /// A call failed or does not return; the branch is being probed.
    Suspect,
    /// It is unreachable, and probed every second.
    Down,
    /// It answers and is read-only, by its mount or after an error.
    ReadOnly,
}

impl BranchState {
    /// Name for users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Suspect => "suspect",
            Self::Down => "down",
            Self::ReadOnly => "read-only",
        }
    }
}

const UP: u8 = 0;
const SUSPECT: u8 = 1;
const LACKING_SUBVOLUME: u8 = 2;
const HUNG: u8 = 3;
const DOWN: u8 = 4;

/// Threads of the daemon that are inside calls of a branch. Keeps neither the branch nor its mount.
#[derive(Debug)]
pub struct ThreadsInside(Arc<Health>);

impl ThreadsInside {
    /// True if there is one, which may hang: in a request, a probe, or the closing of files.
    pub fn is_any(&self) -> bool {
        let health = &self.0;
        let calls = health.inflight_limit.as_ref().map_or(0, InflightLimit::inside);
        calls > 0 || health.closers.are_busy() || health.has_probes_inside()
    }
}

/// State of a branch's health.
#[derive(Debug)]
pub struct Health {
    state: AtomicU8,
    /// Calls inside a remote branch; `None` for a local disk.
    pub(crate) inflight_limit: Option<InflightLimit>,
    /// The monitor sleeps until it is woken.
    asleep: AtomicBool,
    closers: Closers,
    monitor_state: Mutex<monitor::MonitorState>,
    bell: Condvar,
    /// Time of the last successful probe.
    found_good: Mutex<Option<Instant>>,
}

impl Health {
    pub(crate) fn new(inflight_limit: Option<InflightLimit>) -> Self {
        Self {
            state: AtomicU8::new(UP),
            inflight_limit,
            asleep: AtomicBool::new(true),
            closers: Closers::default(),
            monitor_state: Mutex::default(),
            bell: Condvar::new(),
            found_good: Mutex::default(),
        }
    }

    fn is_closed(&self) -> bool {
        self.state.load(Relaxed) >= HUNG
    }

    /// Ends the monitor, because the branch is dropped.
    pub fn end(&self) {
        self.monitor_state.lock().ended = true;
        self.bell.notify_all();
    }
}

/// Number of those that wait for a branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    /// Callers without a permit.
    pub calls: usize,
    /// Files, of all its mounts, that are queued to be closed or being closed.
    pub closes: usize,
}

/// Counts those that wait for `branch`.
pub fn queued(branch: &Branch) -> Queued {
    let limit = branch.health.inflight_limit.as_ref();
    Queued { calls: limit.map_or(0, InflightLimit::queued), closes: branch.health.closers.len() }
}

impl Branch {
    /// Returns the state of the branch.
    pub fn state(&self) -> BranchState {
        match self.health.state.load(Relaxed) {
            UP if self.is_known_read_only() => BranchState::ReadOnly,
            UP => BranchState::Up,
            DOWN => BranchState::Down,
            _ => BranchState::Suspect,
        }
    }

    /// True if calls are admitted.
    pub fn is_open(&self) -> bool {
        !self.health.is_closed()
    }

    /// Returns the number of calls inside; always 0 for a local disk, where they are not counted.
    pub fn inside(&self) -> usize {
        self.health.inflight_limit.as_ref().map_or(0, InflightLimit::inside)
    }

    /// True if a short call has been pending longer than the stall limit; optional requests then skip this branch.
    pub fn stalls(&self) -> bool {
        self.health.inflight_limit.as_ref().is_some_and(InflightLimit::stalls)
    }

    /// True for a remote branch.
    pub fn is_remote(&self) -> bool {
        self.health.inflight_limit.is_some()
    }

    /// True if any thread of the daemon is inside a call there, including probes and closers.
    pub fn is_stuck(&self) -> bool {
        let by_itself = || self.is_being_probed() || self.health.closers.are_busy();
        self.inside() > 0 || self.health.inflight_limit.is_some() && by_itself()
    }

    /// Returns what tells whether threads are inside calls there, also when the branch is in no pool any more.
    pub fn threads_inside(&self) -> ThreadsInside {
        ThreadsInside(self.health.clone())
    }

    /// Fails if calls are not let in now.
    ///
    /// # Errors
    /// The branch hangs or is down.
    pub fn check_open(&self) -> Result<()> {
        if self.health.is_closed() { Err(self.refused()) } else { Ok(()) }
    }

    /// Admits a call into this branch, with a permit for it; `None` on a local disk, where calls are not counted.
    ///
    /// # Errors
    ///
    /// The branch hangs or is down, now or before a permit is free. Returned at once, without a call to the branch.
    pub fn come_in(&self, kind: CallKind) -> Result<Option<CallPermit<'_>>> {
        self.check_open()?;
        let Some(inflight_limit) = &self.health.inflight_limit else { return Ok(None) };
        let inside = inflight_limit.enter(kind, || self.is_open()).map_err(|_| self.refused())?;
        if self.health.asleep.load(SeqCst) {
            self.wake_monitor();
        }
        Ok(Some(inside))
    }

    /// Waits for another thread's result of a call on this branch, for as long as the call may stay.
    pub fn heard_of<T>(&self, reported: &Receiver<T>) -> std::result::Result<T, RecvTimeoutError> {
        let Some(inflight_limit) = &self.health.inflight_limit else {
            return reported.recv().map_err(Into::into);
        };
        let came = inflight_limit.now();
        loop {
            let heard = reported.recv_timeout(inflight_limit.pause());
            let waits = || inflight_limit.timeout().is_none_or(|limit| inflight_limit.now() <= came + limit);
            if !matches!(heard, Err(RecvTimeoutError::Timeout)) || !waits() {
                return heard;
            }
        }
    }

    /// Returns how long optional requests wait for this branch.
    pub fn timeout(&self) -> Duration {
        let limit = self.health.inflight_limit.as_ref().and_then(InflightLimit::timeout);
        limit.map_or(OPTIONAL_CALL_WAIT, |limit| OPTIONAL_CALL_WAIT.min(limit / 2))
    }

    /// Returns how long a call may stay inside; `None` for no limit.
    pub fn call_timeout(&self) -> Option<Duration> {
        self.health.inflight_limit.as_ref().and_then(InflightLimit::timeout)
    }

    /// Error for an optional request that does not wait for a branch that may hang.
    pub fn not_waited_for(&self) -> OpError {
        OpError::Branch { branch: self.ix, sys: SysError { call: Call::Access, errno: Errno::TIMEDOUT } }
    }

    /// Error of a call that is not admitted. Programs get EIO for either errno ([`OpError::errno`]).
    fn refused(&self) -> OpError {
        let errno = if self.health.state.load(Relaxed) == DOWN { Errno::NOTCONN } else { Errno::TIMEDOUT };
        OpError::Branch { branch: self.ix, sys: SysError { call: Call::Access, errno } }
    }

    /// Notes a fault, or another reason to probe the branch.
    pub fn suspect(&self, cause: Errno) {
        let cools_down = || self.health.found_good.lock().is_some_and(|good| good.elapsed() < PROBE_COOLDOWN);
        if cause == Errno::IO && cools_down() {
            return;
        }
        if self.health.state.compare_exchange(UP, SUSPECT, SeqCst, Relaxed).is_ok() {
            self.wake_monitor();
        }
    }

    /// Sets the limits of calls inside.
    pub fn limit_calls(&self, timeout: Duration, inflight: usize) {
        if let Some(inflight_limit) = &self.health.inflight_limit {
            inflight_limit.set(timeout, inflight);
        }
    }
}
