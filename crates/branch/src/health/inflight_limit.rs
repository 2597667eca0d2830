//! Calls inside a remote branch, with their start times and the responders that can answer for them.
//!
//! A branch whose server hangs blocks the threads that called it. To leave threads for the other branches, only a few
//! calls are inside at once, each with a permit (`permits.rs`); others queue. The branch's monitor checks the calls
//! while there are any: one that has overstayed is answered by another thread, and its own thread is written off until
//! the call returns. A call arms no timer and starts no thread; calls on local disks are not limited.

use fsstack_sync::atomic::{AtomicU64, Ordering::Relaxed};
use fsstack_sync::mpsc::{SyncSender, sync_channel};
use fsstack_sync::ranked::{CALLS, Ranked};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::Errno;

use super::clock::Clock;
use super::holder::ThreadInCalls;
use super::permits::{Inflight, Obstacle, Permit, QueueAnswer};
use super::reply_takeover::{self, Responder};

/// Largest value of `branch-inflight`.
pub(crate) const MOST_INFLIGHT: usize = 64;
/// A short call that has been inside for longer than this, or than a part of the limit, counts as stalled: optional
/// requests then skip the branch.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// Least and greatest pause between two checks of the monitor.
const LOOK_PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_secs(1));

/// Class of a call, by its expected duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// Returns soon on a healthy branch.
    Short,
    /// Short, and optional: does not wait for a permit in a branch that may hang.
    Optional,
    /// May take long on a healthy branch (fsync, copies): overstays only if the branch fails its probes too.
    Long,
}

/// The calls inside a branch.
#[derive(Debug)]
pub(crate) struct InflightLimit {
    since: Instant,
    /// Held briefly; no call is made under it.
    inner: Ranked<InflightState, CALLS>,
    /// Longest time that a call may stay, in milliseconds.
    timeout: AtomicU64,
}

#[derive(Debug)]
struct InflightState {
    clock: Clock,
    calls: Inflight<InflightCaller>,
}

/// Caller inside a branch or in its queue.
#[derive(Clone, Debug)]
struct InflightCaller {
    /// Responder that can answer its request.
    responder: Option<Responder>,
    /// Its thread, which other threads may wait for.
    thread: ThreadInCalls,
    /// Wakes it in the queue.
    bell: Option<SyncSender<QueueAnswer>>,
}

impl InflightCaller {
    fn tell(&self, answer: QueueAnswer) {
        if let Some(bell) = &self.bell {
            // The channel has room for the one answer that is sent.
            let _heard = bell.try_send(answer);
        }
    }
}

/// A permit, returned when this is dropped.
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
    /// Number of calls inside.
    pub inside: usize,
    /// Since the last check, a short call has exceeded its time limit.
    pub overstayed: bool,
    /// A long call has exceeded it, and the branch has not answered a probe since.
    pub(crate) doubtful: bool,
    /// The daemon was stopped meanwhile, so no call was judged.
    pub late: bool,
}

impl InflightLimit {
    /// `limit` calls at once may stay for `timeout`; zero means no limit of time.
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

    /// Returns how long a call may stay; `None` for no limit.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        match self.timeout.load(Relaxed) {
            u64::MAX => None,
            timeout => Some(Duration::from_millis(timeout)),
        }
    }

    /// Returns the pause between two checks of the monitor.
    pub(crate) fn pause(&self) -> Duration {
        self.timeout().map_or(LOOK_PAUSES.1, |limit| (limit / 8).clamp(LOOK_PAUSES.0, LOOK_PAUSES.1))
    }

    /// Takes a permit, or waits in the queue for one.
    ///
    /// # Errors
    ///
    /// ETIMEDOUT if the branch is closed, if all permits are held by calls that were given up, or if no permit became
    /// free for as long as a call may stay.
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

    /// Returns a permit if one is free. Otherwise returns the caller, which is in the queue if it has a bell.
    fn try_enter(
        &self,
        kind: CallKind,
        caller: InflightCaller,
        is_open: impl Fn() -> bool,
    ) -> Result<Result<CallPermit<'_>, InflightCaller>, Errno> {
        let timeout = self.stall();
        self.with(|calls, now| {
            // Checked under the lock: closing the branch refuses all waiting calls, so that none is added after it.
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

    /// Refuses waiting calls, because the branch is closed.
    pub(crate) fn refuse_waiting(&self) {
        self.with(|calls, _| calls.refuse_all(InflightCaller::tell));
    }

    /// Starts a new set of permits: the branch was mounted again, as `generation`.
    pub(crate) fn renew(&self, generation: u32) {
        self.with(|calls, now| calls.renew(generation, now));
    }

    /// Returns the number of calls inside.
    pub(crate) fn inside(&self) -> usize {
        self.inner.lock().calls.inside()
    }

    /// Returns the number of callers that wait for a permit.
    pub(crate) fn queued(&self) -> usize {
        self.inner.lock().calls.queued()
    }

    /// True if a short call has been inside for a while, so that the branch may hang.
    pub(crate) fn stalls(&self) -> bool {
        let timeout = self.stall();
        self.with(|calls, now| calls.stalls(now, timeout))
    }

    fn stall(&self) -> u64 {
        millis(STALLED_AFTER).min(self.timeout.load(Relaxed) / 4)
    }

    /// Returns the number of calls that ever entered.
    pub(crate) fn entered(&self) -> u64 {
        self.inner.lock().calls.entered()
    }

    /// Notes that the branch answered a probe: long calls get more time.
    pub(crate) fn has_answered(&self) {
        self.with(Inflight::has_answered);
    }

    /// Returns the time during which the daemon ran.
    pub(crate) fn now(&self) -> Duration {
        Duration::from_millis(self.with(|_, now| now))
    }

    /// Checks the times of the calls inside. Calls that have overstayed are answered by their responders: short ones
    /// always, long ones only if the branch is `hung`. Before a short one is answered, `close` is called: its request
    /// may be served again and must not enter again.
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
            let found = calls.look((now, limit, hung), InflightCaller::tell);
            found
                .calls
                .iter()
                .filter_map(|(_, caller)| caller.responder.as_ref())
                .for_each(Responder::give_up);
            found
        };
        if found.overstayed {
            close();
        }
        for (permit, caller) in found.calls {
            // If it returns at this moment, its thread finds the request answered and is not stuck.
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
    use fsstack_sync::Mutex;
    use fsstack_sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::Arc;

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
            fsstack_sync::thread::yield_now();
        }
    }

    #[test]
    fn a_call_that_overstays_is_reported_once_and_returns_its_permit_at_its_end() {
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
    fn no_call_enters_a_closed_branch() {
        let inflight_limit = InflightLimit::new(Duration::ZERO, 1);
        assert_eq!(inflight_limit.enter(CallKind::Short, || false).map(drop), Err(Errno::TIMEDOUT));
    }

    #[test]
    fn without_a_timeout_no_call_overstays() {
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
        // A call that was given up says nothing about the branch any more.
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
                fsstack_sync::thread::yield_now();
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
    fn the_transport_gets_the_request_to_refuse() {
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
