//! Calls inside a remote branch, with their start times and the responders that can answer in their place.
//!
//! A branch whose server hangs keeps the threads that asked it. So that some are left for the other branches, only a
//! few calls are let in at once, each with a permit (`permits.rs`); the others queue. The branch's monitor looks at the calls
//! while there are any: one that has overstayed is answered for by another thread, and its thread is written off
//! until the call returns. Nothing is armed or started for a call; local disks have none.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use fsstack_sys::Errno;

use super::clock::Clock;
use super::holder::ThreadInCalls;
use super::permits::{Inflight, Obstacle, Permit, QueueAnswer};
use super::reply_takeover::{self, Responder};
use crate::ranked::{CALLS, Ranked};

/// Most calls that `branch-inflight` may let in at once.
pub(crate) const MOST_INFLIGHT: usize = 64;
/// A brief call that has been inside for longer than this, or than a part of the limit, counts as stalled: optional requests
/// then skip the branch.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// Pauses between two looks of the monitor.
const LOOK_PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_secs(1));

/// Class of a call, by its expected duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// It returns soon where all is well.
    Short,
    /// Short and optional: it does not wait for a permit in a branch that may hang.
    Optional,
    /// It may take long on a branch in good order (fsync, copies): it overstays only if the branch answers nobody.
    Long,
}

/// The calls inside a branch.
#[derive(Debug)]
pub(crate) struct InflightLimit {
    since: Instant,
    /// Held for moments; no call is made under it.
    inner: Ranked<InflightState, CALLS>,
    /// How long a call may stay, in milliseconds.
    timeout: AtomicU64,
}

#[derive(Debug)]
struct InflightState {
    clock: Clock,
    calls: Inflight<InflightCaller>,
}

/// Caller of a branch.
#[derive(Clone, Debug)]
struct InflightCaller {
    /// Responder that can answer its request.
    responder: Option<Responder>,
    /// The thread, which others may wait for.
    thread: ThreadInCalls,
    /// Wakes it in the queue.
    bell: Option<SyncSender<QueueAnswer>>,
}

impl InflightCaller {
    fn tell(&self, answer: QueueAnswer) {
        if let Some(bell) = &self.bell {
            // One verdict, and room for it.
            let _heard = bell.try_send(answer);
        }
    }
}

/// A permit, given back when this drops.
#[derive(Debug)]
pub struct CallPermit<'a> {
    inflight_limit: &'a InflightLimit,
    permit: Permit,
}

impl Drop for CallPermit<'_> {
    fn drop(&mut self) {
        let left = self.inflight_limit.with(|calls, now| calls.leave(self.permit, now, InflightCaller::tell));
        if let Some((caller, true)) = left {
            caller.thread.is_back();
        }
    }
}

/// Result of the monitor's check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InflightLook {
    /// Calls inside.
    pub inside: usize,
    /// A call that should have been brief has been inside for longer than it may, since the last look.
    pub overstayed: bool,
    /// A call that may take long has, and the branch has not answered its monitor since.
    pub(crate) doubtful: bool,
    /// The daemon stood still: no call was judged.
    pub late: bool,
}

impl InflightLimit {
    /// `limit` calls at once may stay for `timeout`; zero: for ever.
    pub(crate) fn new(timeout: Duration, limit: usize) -> Self {
        let inner = InflightState { clock: Clock::new(0), calls: Inflight::new(1) };
        let inflight_limit =
            Self { since: Instant::now(), inner: Ranked::new(inner), timeout: AtomicU64::new(0) };
        inflight_limit.set(timeout, limit);
        inflight_limit
    }

    pub(crate) fn set(&self, timeout: Duration, limit: usize) {
        let timeout = if timeout.is_zero() { u64::MAX } else { millis(timeout) };
        self.timeout.store(timeout, Relaxed);
        self.inner.lock().clock.set_pause(millis(self.pause()));
        self.with(|calls, now| calls.set_limit(limit.clamp(1, MOST_INFLIGHT), now, InflightCaller::tell));
    }

    /// How long a call may stay; None: for ever.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        match self.timeout.load(Relaxed) {
            u64::MAX => None,
            timeout => Some(Duration::from_millis(timeout)),
        }
    }

    /// How long the monitor pauses between two looks.
    pub(crate) fn pause(&self) -> Duration {
        self.timeout().map_or(LOOK_PAUSES.1, |limit| (limit / 8).clamp(LOOK_PAUSES.0, LOOK_PAUSES.1))
    }

    /// Takes a permit; waits in the queue if there is none.
    ///
    /// # Errors
    /// ETIMEDOUT if the branch is not open, if all permits are lost to calls that do not return, or if none has become free
    /// for as long as a call may stay.
    pub(crate) fn enter(&self, kind: CallKind, is_open: impl Fn() -> bool) -> Result<CallPermit<'_>, Errno> {
        let caller = InflightCaller {
            responder: reply_takeover::responder(),
            thread: ThreadInCalls::here(),
            bell: None,
        };
        match self.try_enter(kind, caller, &is_open)? {
            Ok(inside) => Ok(inside),
            Err(caller) => reply_takeover::aside(|| self.wait(kind, caller, &is_open)),
        }
    }

    /// A permit if one is free, else the caller, which is in the queue if it has a bell.
    fn try_enter(
        &self,
        kind: CallKind,
        caller: InflightCaller,
        is_open: impl Fn() -> bool,
    ) -> Result<Result<CallPermit<'_>, InflightCaller>, Errno> {
        let timeout = self.stall();
        self.with(|calls, now| {
            // Under the lock: closing the branch refuses waiting calls, this one among them.
            if !is_open() {
                return Err(Errno::TIMEDOUT);
            }
            let stalls = kind == CallKind::Optional && calls.stalls(now, timeout);
            match calls.may_enter(kind, stalls) {
                Ok(()) => Ok(Ok(CallPermit { inflight_limit: self, permit: calls.enter(kind, caller, now) })),
                Err(Obstacle::Hopeless) => Err(Errno::TIMEDOUT),
                Err(Obstacle::Full) => {
                    if caller.bell.is_some() {
                        calls.wait(kind, caller.clone(), now);
                    }
                    Ok(Err(caller))
                }
            }
        })
    }

    fn wait(
        &self,
        kind: CallKind,
        caller: InflightCaller,
        is_open: impl Fn() -> bool,
    ) -> Result<CallPermit<'_>, Errno> {
        let (bell, heard) = sync_channel(1);
        match self.try_enter(kind, InflightCaller { bell: Some(bell), ..caller }, is_open)? {
            Ok(inside) => Ok(inside),
            Err(_waiting) => match heard.recv() {
                Ok(QueueAnswer::Enter(permit)) => Ok(CallPermit { inflight_limit: self, permit }),
                Ok(QueueAnswer::Refused) | Err(_) => Err(Errno::TIMEDOUT),
            },
        }
    }

    /// The branch is closed: waiting calls are refused.
    pub(crate) fn refuse_waiting(&self) {
        self.with(|calls, _| calls.refuse_all(InflightCaller::tell));
    }

    /// The branch was mounted again, as `generation`.
    pub(crate) fn renew(&self, generation: u32) {
        self.with(|calls, now| calls.renew(generation, now));
    }

    /// Calls inside.
    pub(crate) fn inside(&self) -> usize {
        self.inner.lock().calls.inside()
    }

    /// Whether a call that should have been brief has been inside for a while: the branch may hang.
    pub(crate) fn stalls(&self) -> bool {
        let timeout = self.stall();
        self.with(|calls, now| calls.stalls(now, timeout))
    }

    fn stall(&self) -> u64 {
        millis(STALLED_AFTER).min(self.timeout.load(Relaxed) / 4)
    }

    /// Calls that ever came in.
    pub(crate) fn entered(&self) -> u64 {
        self.inner.lock().calls.entered()
    }

    /// The branch has answered its monitor: calls that may take long are given more time.
    pub(crate) fn has_answered(&self) {
        self.with(Inflight::has_answered);
    }

    /// Time during which the daemon ran.
    pub(crate) fn now(&self) -> Duration {
        Duration::from_millis(self.with(|_, now| now))
    }

    /// Checks the calls inside and their times. Calls that have overstayed are answered by their responders: brief ones
    /// always, long ones only if the branch is `hung`. Before a brief one is answered, `close` is called: its request may be
    /// served again, and must not come in once more.
    pub(crate) fn look(&self, hung: bool, close: impl Fn()) -> InflightLook {
        let (limit, timeout) = (self.timeout.load(Relaxed), self.stall());
        let found = {
            let InflightState { clock, calls } = &mut *self.inner.lock();
            let real = millis(self.since.elapsed());
            if !clock.look(real) {
                return InflightLook { inside: calls.inside(), late: true, ..InflightLook::default() };
            }
            let now = clock.at(real);
            if calls.stalls(now, timeout) {
                calls.refuse_optional(InflightCaller::tell);
            }
            calls.look((now, limit, hung), InflightCaller::tell)
        };
        if found.overstayed {
            close();
        }
        for (permit, caller) in found.calls {
            // It may return at this moment: then its thread finds that its request was answered, and is not stuck.
            if caller.responder.as_ref().is_none_or(Responder::refuse) {
                self.with(|calls, _| {
                    if calls.give_up(permit, InflightCaller::tell) {
                        caller.thread.is_given_up();
                    }
                });
            }
        }
        InflightLook {
            inside: found.inside,
            overstayed: found.overstayed,
            doubtful: found.doubtful,
            late: false,
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inflight<InflightCaller>, u64) -> T) -> T {
        let mut inner = self.inner.lock();
        let now = inner.clock.at(millis(self.since.elapsed()));
        work(&mut inner.calls, now)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    fn looked_until(
        inflight_limit: &InflightLimit,
        hung: bool,
        done: impl Fn(InflightLook) -> bool,
    ) -> InflightLook {
        loop {
            let look = inflight_limit.look(hung, || ());
            if done(look) {
                return look;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_call_that_overstays_is_told_once_and_leaves_its_place_at_its_end() {
        let inflight_limit = InflightLimit::new(Duration::from_millis(1), 1);
        let stuck = inflight_limit.enter(CallKind::Short, || true).unwrap();
        assert_eq!(looked_until(&inflight_limit, false, |look| look.overstayed).inside, 1);
        assert!(!inflight_limit.look(false, || ()).overstayed);
        assert_eq!(inflight_limit.enter(CallKind::Short, || true).map(drop), Err(Errno::TIMEDOUT));
        drop(stuck);
        assert!(inflight_limit.enter(CallKind::Short, || true).is_ok());
        assert_eq!(inflight_limit.look(false, || ()), InflightLook::default());
    }

    #[test]
    fn a_long_call_is_doubted_and_given_up_only_in_a_hung_branch() {
        let inflight_limit = InflightLimit::new(Duration::from_millis(1), 2);
        let _long = inflight_limit.enter(CallKind::Long, || true).unwrap();
        assert!(!looked_until(&inflight_limit, false, |look| look.doubtful).overstayed);
        inflight_limit.look(true, || ());
        assert!(!inflight_limit.look(true, || ()).doubtful);
    }

    #[test]
    fn nobody_enters_a_closed_branch() {
        let inflight_limit = InflightLimit::new(Duration::ZERO, 1);
        assert_eq!(inflight_limit.enter(CallKind::Short, || false).map(drop), Err(Errno::TIMEDOUT));
    }

    #[test]
    fn without_a_timeout_nobody_overstays() {
        let inflight_limit = InflightLimit::new(Duration::ZERO, 1);
        let _inside = inflight_limit.enter(CallKind::Short, || true).unwrap();
        assert_eq!(inflight_limit.look(true, || ()), InflightLook { inside: 1, ..InflightLook::default() });
        assert_eq!(inflight_limit.timeout(), None);
    }

    #[test]
    fn a_branch_stalls_while_a_brief_call_stays() {
        let inflight_limit = InflightLimit::new(Duration::from_millis(400), 2);
        let long = inflight_limit.enter(CallKind::Long, || true).unwrap();
        let later = inflight_limit.now() + Duration::from_millis(150);
        looked_until(&inflight_limit, false, |_| inflight_limit.now() > later);
        assert!(!inflight_limit.stalls());
        let brief = inflight_limit.enter(CallKind::Short, || true).unwrap();
        looked_until(&inflight_limit, false, |_| inflight_limit.stalls());
        drop(long);
        assert!(inflight_limit.stalls());
        // Given up: it says nothing of the branch any more.
        looked_until(&inflight_limit, false, |look| look.overstayed);
        assert!(!inflight_limit.stalls());
        drop(brief);
        assert!(!inflight_limit.stalls());
    }

    #[test]
    fn the_branch_is_closed_before_a_request_is_answered_for() {
        let closed = Arc::new(AtomicBool::new(false));
        #[derive(Debug)]
        struct Closed(Arc<AtomicBool>);
        impl reply_takeover::ReplyTakeover for Closed {
            fn refuse(&self, _: u64) -> bool {
                assert!(self.0.load(SeqCst));
                true
            }
        }
        let transport: Arc<dyn reply_takeover::ReplyTakeover> = Arc::new(Closed(closed.clone()));
        let inflight_limit = InflightLimit::new(Duration::from_millis(1), 1);
        reply_takeover::at(&transport, 1, || {
            let _stuck = inflight_limit.enter(CallKind::Short, || true).unwrap();
            while !inflight_limit.look(false, || closed.store(true, SeqCst)).overstayed {
                std::thread::yield_now();
            }
        });
    }

    #[derive(Debug, Default)]
    struct Refused(Mutex<Vec<u64>>);

    impl reply_takeover::ReplyTakeover for Refused {
        fn refuse(&self, request_id: u64) -> bool {
            self.0.lock().push(request_id);
            true
        }
    }

    #[test]
    fn the_door_is_told_which_request_to_refuse() {
        let inflight_limit = InflightLimit::new(Duration::from_millis(1), 1);
        let transport = Arc::new(Refused::default());
        let responder: Arc<dyn reply_takeover::ReplyTakeover> = transport.clone();
        reply_takeover::at(&responder, 7, || {
            let _stuck = inflight_limit.enter(CallKind::Short, || true).unwrap();
            looked_until(&inflight_limit, false, |look| look.overstayed);
        });
        let _later = inflight_limit.enter(CallKind::Short, || true).unwrap();
        looked_until(&inflight_limit, false, |look| look.overstayed);
        assert_eq!(*transport.0.lock(), [7]);
    }
}
