//! Monitor of a branch: a thread that checks the calls inside, and has the branch probed when there is cause.
//!
//! It is started when first needed. While calls are inside a remote branch it checks them at intervals; otherwise it
//! sleeps until it is woken (a local disk's monitor ends). A probe may hang like any call, so each has its own thread:
//! one at a time on the present mount, and a limited number that hang on former mounts.

use std::sync::{Arc, Weak};

use fsstack_sync::atomic::Ordering::{Relaxed, SeqCst};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::Errno;

use super::inflight_limit::{InflightLimit, InflightLook};
use super::probe::ProbeResult;
use super::{DOWN, HUNG, Health, SUSPECT, UP};
use crate::branch::Branch;
use crate::thread;

/// Interval of probes of a branch that is not up.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit of a probe if calls have none.
const DEFAULT_PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// State shared by the monitor, the threads that wake it, and probes.
#[derive(Debug, Default)]
pub(super) struct MonitorState {
    /// The monitor's thread is running.
    running: bool,
    pub(super) ended: bool,
    woken: bool,
    probing: Option<RunningProbe>,
    /// End of the last probe.
    probed: Option<Instant>,
    probes: u64,
    /// Number of threads in a probe, including probes that were given up.
    inside: usize,
}

/// The current probe.
#[derive(Clone, Copy, Debug)]
struct RunningProbe {
    number: u64,
    /// Its start, by the branch's clock.
    since: Duration,
    /// It is applying its result.
    acts: bool,
}

impl MonitorState {
    /// Begins a probe at `now` and returns its number.
    pub(super) fn begin(&mut self, now: Duration) -> u64 {
        self.probes += 1;
        self.probing = Some(RunningProbe { number: self.probes, since: now, acts: false });
        self.inside += 1;
        self.probes
    }

    /// True while a probe that was not given up runs.
    pub(super) fn is_probing(&self) -> bool {
        self.probing.is_some()
    }

    /// True if the probe `number` may apply its result: it was not given up. After that it cannot be.
    pub(super) fn takes_turn(&mut self, number: u64) -> bool {
        let current = self.probing.as_mut().filter(|current| current.number == number);
        current.map(|current| current.acts = true).is_some()
    }

    /// Lets another probe begin before the current one has ended, unless that applies its result or too many hang.
    pub(super) fn give_up(&mut self) {
        if self.inside < MOST_HUNG_PROBES {
            self.probing.take_if(|current| !current.acts);
        }
    }

    /// Ends the current probe.
    pub(super) fn end(&mut self) {
        (self.probing, self.probed) = (None, Some(Instant::now()));
    }
}

/// Maximum number of probes that hang at once, on successive mounts at one path.
const MOST_HUNG_PROBES: usize = 4;

impl Health {
    /// Whether a probe is inside the branch, also one that was given up.
    pub(super) fn has_probes_inside(&self) -> bool {
        self.monitor_state.lock().inside > 0
    }
}

impl Branch {
    /// Wakes the monitor.
    pub(super) fn wake_monitor(&self) {
        let mut monitor_state = self.health.monitor_state.lock();
        monitor_state.woken = true;
        self.health.asleep.store(false, SeqCst);
        if monitor_state.running {
            self.health.bell.notify_all();
            return;
        }
        let (health, me) = (self.health.clone(), self.me.clone());
        let monitor =
            fsstack_sync::thread::Builder::new().name(format!("branch-{}", self.ix.0)).stack_size(256 << 10);
        match thread::start(monitor, move || keep(&health, &me)) {
            Ok(_) => monitor_state.running = true,
            Err(error) => {
                self.health.asleep.store(true, SeqCst); // retried by the next caller
                tracing::error!(%error, branch = %self.path.display(), "branch monitor: cannot start a thread; hung calls are not noticed until one starts");
            }
        }
    }

    /// Has it probed from now on if it is down already: the pool is ready for its return.
    pub fn look_for_it(&self) {
        if self.health.state.load(SeqCst) != UP {
            self.wake_monitor();
        }
    }

    pub(super) fn is_being_probed(&self) -> bool {
        self.health.monitor_state.lock().is_probing()
    }

    /// Runs one check: of the calls inside, and whether a probe is due.
    fn keep_once(&self) -> InflightLook {
        let health = &self.health;
        let state = health.state.load(SeqCst);
        let close = || {
            if health.state.load(SeqCst) < HUNG {
                self.closes("a call has not returned in time");
            }
        };
        let look = health
            .inflight_limit
            .as_ref()
            .map_or_else(InflightLook::default, |inflight_limit| inflight_limit.look(state == HUNG, close));
        if look.late {
            return look; // the probe may have ended too
        }
        if health.closers.lack_thread() {
            self.start_all_closers();
        }
        if look.doubtful && !look.overstayed {
            self.suspect(Errno::TIMEDOUT);
        }
        // A branch that has left the pool is checked only for callers stuck in it; it is not probed.
        if health.state.load(SeqCst) != UP && !self.is_gone() {
            self.probe_when_due();
        }
        look
    }

    fn probe_when_due(&self) {
        let mut monitor_state = self.health.monitor_state.lock();
        if let Some(RunningProbe { since, .. }) = monitor_state.probing {
            let inflight_limit = self.health.inflight_limit.as_ref();
            let overdue = inflight_limit.is_some_and(|inflight_limit| {
                inflight_limit.now() > since + inflight_limit.timeout().unwrap_or(DEFAULT_PROBE_TIMEOUT)
            });
            drop(monitor_state);
            if overdue && self.health.state.load(SeqCst) < HUNG {
                self.closes("its probe has not returned in time");
            }
            if overdue && self.has_another_mount() {
                // The old mount may hang for ever. The new one is probed regardless, and may hang as well.
                self.health.monitor_state.lock().give_up();
            }
            return;
        }
        if monitor_state.probed.is_some_and(|ended| ended.elapsed() < PROBE_INTERVAL)
            && self.health.state.load(SeqCst) != SUSPECT
        {
            return;
        }
        let number = monitor_state
            .begin(self.health.inflight_limit.as_ref().map_or(Duration::ZERO, InflightLimit::now));
        drop(monitor_state);
        let (me, health) = (self.me.clone(), self.health.clone());
        let thread =
            fsstack_sync::thread::Builder::new().name(format!("probe-{}", self.ix.0)).stack_size(256 << 10);
        let started = thread.spawn(move || {
            if let Some(branch) = me.upgrade() {
                let result = branch.probe();
                branch.probed(result, number);
            }
            health.monitor_state.lock().inside -= 1;
        });
        if let Err(error) = started {
            tracing::error!(%error, branch = %self.path.display(), "branch probe: cannot start a thread; it is tried again");
            let mut monitor_state = self.health.monitor_state.lock();
            monitor_state.inside -= 1;
            monitor_state.end();
        }
    }

    /// Handles the end of a probe.
    fn probed(&self, result: ProbeResult, number: u64) {
        let health = &self.health;
        if !health.monitor_state.lock().takes_turn(number) {
            return; // another probe is in progress
        }
        // From here on no call to the branch: no other probe can start while this one applies its result.
        match result {
            _ if self.is_gone() => {}
            ProbeResult::Good(missing) => self.returns(&missing, "branch up: it answers again"),
            ProbeResult::Elsewhere(mounted, missing) => {
                let why = match mounted.root.mount_generation == self.mount_generation() {
                    true => "branch up: it answers again",
                    false => "branch mounted again; its open files are opened again by name",
                };
                self.replace_root(mounted);
                self.returns(&missing, why);
            }
            ProbeResult::Bad(why) => self.is_down(&why),
            ProbeResult::Vanished => {
                self.is_down(&"its mount is gone");
                self.leave_mount();
            }
        }
        health.monitor_state.lock().end();
        health.bell.notify_all();
    }

    /// Applies a good probe: the branch answers and is itself, except for its subvolumes in `missing`.
    fn returns(&self, missing: &[String], why: &str) {
        if let Some(inflight_limit) = &self.health.inflight_limit {
            inflight_limit.has_answered();
        }
        if missing.is_empty() {
            self.report(|pool| pool.answered(self));
            self.opens(why);
        } else {
            self.lacks(missing);
        }
    }

    pub(crate) fn is_down(&self, why: &dyn std::fmt::Display) {
        if self.health.state.swap(DOWN, SeqCst) != DOWN {
            self.refuse_waiting();
            tracing::warn!(branch = %self.path.display(), %why, "branch down; names that may be on it fail with EIO");
        }
    }

    fn opens(&self, why: &str) {
        *self.health.found_good.lock() = Some(Instant::now());
        if self.health.state.swap(UP, SeqCst) > SUSPECT {
            self.distrust_space();
            tracing::warn!(branch = %self.path.display(), "{why}");
        }
        // Its mount may have gone since the probe. A thread that saw that before now found the branch not up and left
        // it to this probe (`suspect`). A thread that sees it from now on finds the branch up.
        if self.is_unmounted() {
            self.suspect(Errno::NOTCONN);
        }
    }

    fn closes(&self, why: &str) {
        if self.health.state.swap(HUNG, SeqCst) != HUNG {
            self.refuse_waiting();
            tracing::warn!(branch = %self.path.display(), "branch hung: {why}; requests to it fail with EIO until it answers");
        }
    }

    /// Refuses calls that wait for a permit, because the branch is closed.
    fn refuse_waiting(&self) {
        if let Some(inflight_limit) = &self.health.inflight_limit {
            inflight_limit.refuse_waiting();
        }
    }
}

/// One check, and the number of calls that ever entered: the basis for going to sleep.
#[derive(Debug)]
struct Round {
    entered: u64,
    /// No call was inside, and none entered since the check before.
    idle: bool,
}

impl Round {
    /// Reads `entered` once, before the check: a call that enters later is not in the number that sleep is decided by.
    fn of(before: u64, entered: impl Fn() -> u64, look: impl FnOnce() -> InflightLook) -> Self {
        let entered = entered();
        let look = look();
        Self { entered, idle: look.inside == 0 && entered == before }
    }

    /// True if no call has entered since the check began.
    fn nobody_came(&self, entered: impl Fn() -> u64) -> bool {
        entered() == self.entered
    }
}

fn keep(health: &Arc<Health>, branch: &Weak<Branch>) {
    let mut before = 0;
    loop {
        let Some(kept) = branch.upgrade() else { return };
        let inflight_limit = health.inflight_limit.as_ref();
        let entered = || inflight_limit.map_or(0, InflightLimit::entered);
        let round = Round::of(before, entered, || kept.keep_once());
        drop(kept);
        let idle = round.idle && !health.closers.lack_thread();
        before = round.entered;
        let mut monitor_state = health.monitor_state.lock();
        if monitor_state.ended {
            return;
        }
        if std::mem::take(&mut monitor_state.woken) {
            continue;
        }
        if !idle || health.state.load(SeqCst) != UP {
            health
                .bell
                .wait_for(&mut monitor_state, inflight_limit.map_or(PROBE_INTERVAL, InflightLimit::pause));
            continue;
        }
        if inflight_limit.is_none() {
            monitor_state.running = false;
            return;
        }
        health.asleep.store(true, SeqCst);
        // A call may have entered since, before it could see `asleep`: both sides store first and check afterwards.
        if round.nobody_came(entered) && health.state.load(SeqCst) == UP {
            while !monitor_state.woken && !monitor_state.ended {
                health.bell.wait(&mut monitor_state);
            }
        }
        health.asleep.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use fsstack_pool::{BranchId, BranchIx, BranchSpec};

    use super::*;
    use crate::branch::BranchOptions;

    /// The caller found the monitor awake, so it does not wake it.
    #[test]
    fn the_monitor_does_not_sleep_while_a_call_is_inside_that_came_during_its_look() {
        let entered = Cell::new(7);
        let look = || {
            let seen = InflightLook::default();
            entered.set(8);
            seen
        };
        let round = Round::of(7, || entered.get(), look);
        assert!(round.idle, "it came too late for the look");
        assert!(!round.nobody_came(|| entered.get()), "the monitor would sleep with a call inside");
        let round = Round::of(round.entered, || entered.get(), InflightLook::default);
        assert!(!round.idle);
        let round = Round::of(round.entered, || entered.get(), InflightLook::default);
        assert!(round.idle && round.nobody_came(|| entered.get()));
    }

    /// The branch has left its pool while a thread still holds it.
    #[test]
    fn a_removed_branch_is_neither_probed_nor_used_where_it_is_mounted_again() {
        let dir = tempfile::tempdir().unwrap();
        let root = fsstack_sys::at::open_root(dir.path()).unwrap();
        let spec = BranchSpec::new(dir.path().to_owned());
        let options = BranchOptions {
            timeout: Duration::ZERO,
            inflight: 1,
            privileged: false,
            exact_generations: false,
        };
        let branch = Branch::open(BranchIx(0), BranchId::MAX, &spec, root, None, options).unwrap();
        branch.health.state.store(DOWN, SeqCst);
        let number = branch.health.monitor_state.lock().begin(Duration::ZERO);
        branch.shut().unwrap();
        branch.let_go();
        let result = branch.probe();
        assert!(matches!(result, ProbeResult::Elsewhere(..)), "{result:?}");
        branch.probed(result, number);
        assert_eq!(branch.dev(), 0, "its disk is free to be unmounted");
        assert_eq!(branch.health.state.load(SeqCst), DOWN);
        assert!(!branch.is_being_probed());
        branch.health.monitor_state.lock().probed = None;
        branch.keep_once();
        assert_eq!(branch.health.monitor_state.lock().probes, number, "no further one");
    }

    #[test]
    fn one_probe_acts_at_a_time() {
        let mut monitor_state = MonitorState::default();
        let first = monitor_state.begin(Duration::ZERO);
        monitor_state.give_up();
        let second = monitor_state.begin(Duration::ZERO);
        assert!(!monitor_state.takes_turn(first), "it was given up");
        assert!(monitor_state.takes_turn(second));
        // It moves the branch to another mount; no other probe may do so meanwhile.
        monitor_state.give_up();
        assert!(monitor_state.probing.is_some());
        monitor_state.end();
        assert!(!monitor_state.takes_turn(second));
    }

    #[test]
    fn no_more_than_a_few_probes_hang_at_once() {
        let mut monitor_state = MonitorState::default();
        for _ in 0..MOST_HUNG_PROBES {
            assert!(monitor_state.probing.is_none());
            monitor_state.begin(Duration::ZERO);
            monitor_state.give_up();
        }
        assert!(monitor_state.probing.is_some());
    }
}
