//! Calls inside a remote branch, with their start times and the responders that can answer in their place.
//!
//! A branch whose server hangs keeps the threads that asked it. So that some are left for the other branches, only a
//! few calls are let in at once, each with a permit (`inflight.rs`); the others queue. The branch's keeper looks at the calls
//! while there are any: one that has overstayed is answered for by another thread, and its thread is written off
//! until the call returns. Nothing is armed or started for a call; local disks have no crowd at all.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use fsstack_sys::Errno;

use super::clock::Clock;
use super::holder::Holder;
use super::inflight::{Inflight, Obstacle, Permit, Verdict};
use super::stand_in::{self, Desk};
use crate::ranked::{CALLS, Ranked};

/// Most calls that `branch-inflight` may let in at once.
pub const MOST: usize = 64;
/// A brief call that has been inside for longer than this, or than a part of the limit, counts as stalled: optional requests
/// then skip the branch.
const STALL: Duration = Duration::from_secs(1);
/// Pauses between two looks of the keeper.
const LOOKS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_secs(1));

/// Class of a call, by its expected duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stay {
    /// It returns soon where all is well.
    Brief,
    /// Short and optional: it does not wait for a permit in a branch that may hang.
    Spare,
    /// It may take long on a branch in good order (fsync, copies): it overstays only if the branch answers nobody.
    Long,
}

/// The calls inside a branch.
#[derive(Debug)]
pub(crate) struct Crowd {
    since: Instant,
    /// Held for moments; no call is made under it.
    inner: Ranked<Inner, CALLS>,
    /// How long a call may stay, in milliseconds.
    timeout: AtomicU64,
}

#[derive(Debug)]
struct Inner {
    clock: Clock,
    calls: Inflight<Caller>,
}

/// Caller of a branch.
#[derive(Clone, Debug)]
struct Caller {
    /// Responder that can answer its request.
    desk: Option<Desk>,
    /// The thread, which others may wait for.
    thread: Holder,
    /// Wakes it in the queue.
    bell: Option<SyncSender<Verdict>>,
}

impl Caller {
    fn tell(&self, verdict: Verdict) {
        if let Some(bell) = &self.bell {
            // One verdict, and room for it.
            let _heard = bell.try_send(verdict);
        }
    }
}

/// A permit, given back when this drops.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    crowd: &'a Crowd,
    permit: Permit,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let left = self.crowd.with(|calls, now| calls.leave(self.permit, now, Caller::tell));
        if let Some((caller, true)) = left {
            caller.thread.is_back();
        }
    }
}

/// Result of the monitor's check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// Calls inside.
    pub(crate) inside: usize,
    /// A call that should have been brief has been inside for longer than it may, since the last look.
    pub(crate) overstayed: bool,
    /// A call that may take long has, and the branch has not answered its keeper since.
    pub(crate) doubtful: bool,
    /// The daemon stood still: no call was judged.
    pub(crate) late: bool,
}

impl Crowd {
    /// `limit` calls at once may stay for `timeout`; zero: for ever.
    pub(crate) fn new(timeout: Duration, limit: usize) -> Self {
        let inner = Inner { clock: Clock::new(0), calls: Inflight::new(1) };
        let crowd = Self { since: Instant::now(), inner: Ranked::new(inner), timeout: AtomicU64::new(0) };
        crowd.set(timeout, limit);
        crowd
    }

    pub(crate) fn set(&self, timeout: Duration, limit: usize) {
        let timeout = if timeout.is_zero() { u64::MAX } else { millis(timeout) };
        self.timeout.store(timeout, Relaxed);
        self.inner.lock().clock.set_pause(millis(self.pause()));
        self.with(|calls, now| calls.set_limit(limit.clamp(1, MOST), now, Caller::tell));
    }

    /// How long a call may stay; None: for ever.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        match self.timeout.load(Relaxed) {
            u64::MAX => None,
            timeout => Some(Duration::from_millis(timeout)),
        }
    }

    /// How long the keeper pauses between two looks.
    pub(crate) fn pause(&self) -> Duration {
        self.timeout().map_or(LOOKS.1, |limit| (limit / 8).clamp(LOOKS.0, LOOKS.1))
    }

    /// Takes a permit; waits in the queue if there is none.
    ///
    /// # Errors
    /// ETIMEDOUT if the branch is not open, if all permits are lost to calls that do not return, or if none has become free
    /// for as long as a call may stay.
    pub(crate) fn enter(&self, stay: Stay, is_open: impl Fn() -> bool) -> Result<Inside<'_>, Errno> {
        let caller = Caller { desk: stand_in::desk(), thread: Holder::here(), bell: None };
        match self.try_enter(stay, caller, &is_open)? {
            Ok(inside) => Ok(inside),
            Err(caller) => stand_in::aside(|| self.wait(stay, caller, &is_open)),
        }
    }

    /// A permit if one is free, else the caller, which is in the queue if it has a bell.
    fn try_enter(
        &self,
        stay: Stay,
        caller: Caller,
        is_open: impl Fn() -> bool,
    ) -> Result<Result<Inside<'_>, Caller>, Errno> {
        let patience = self.stall();
        self.with(|calls, now| {
            // Under the lock: closing the branch refuses waiting calls, this one among them.
            if !is_open() {
                return Err(Errno::TIMEDOUT);
            }
            let stalls = stay == Stay::Spare && calls.stalls(now, patience);
            match calls.may_enter(stay, stalls) {
                Ok(()) => Ok(Ok(Inside { crowd: self, permit: calls.enter(stay, caller, now) })),
                Err(Obstacle::Hopeless) => Err(Errno::TIMEDOUT),
                Err(Obstacle::Full) => {
                    if caller.bell.is_some() {
                        calls.wait(stay, caller.clone(), now);
                    }
                    Ok(Err(caller))
                }
            }
        })
    }

    fn wait(&self, stay: Stay, caller: Caller, is_open: impl Fn() -> bool) -> Result<Inside<'_>, Errno> {
        let (bell, heard) = sync_channel(1);
        match self.try_enter(stay, Caller { bell: Some(bell), ..caller }, is_open)? {
            Ok(inside) => Ok(inside),
            Err(_waiting) => match heard.recv() {
                Ok(Verdict::Enter(permit)) => Ok(Inside { crowd: self, permit }),
                Ok(Verdict::Refused) | Err(_) => Err(Errno::TIMEDOUT),
            },
        }
    }

    /// The branch is closed: waiting calls are refused.
    pub(crate) fn refuse_waiting(&self) {
        self.with(|calls, _| calls.refuse_all(Caller::tell));
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
        let patience = self.stall();
        self.with(|calls, now| calls.stalls(now, patience))
    }

    fn stall(&self) -> u64 {
        millis(STALL).min(self.timeout.load(Relaxed) / 4)
    }

    /// Calls that ever came in.
    pub(crate) fn entered(&self) -> u64 {
        self.inner.lock().calls.entered()
    }

    /// The branch has answered its keeper: calls that may take long are given more time.
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
    pub(crate) fn look(&self, hung: bool, close: impl Fn()) -> Look {
        let (limit, patience) = (self.timeout.load(Relaxed), self.stall());
        let found = {
            let Inner { clock, calls } = &mut *self.inner.lock();
            let real = millis(self.since.elapsed());
            if !clock.look(real) {
                return Look { inside: calls.inside(), late: true, ..Look::default() };
            }
            let now = clock.at(real);
            if calls.stalls(now, patience) {
                calls.refuse_spare(Caller::tell);
            }
            calls.look((now, limit, hung), Caller::tell)
        };
        if found.overstayed {
            close();
        }
        for (permit, caller) in found.calls {
            // (It may return at this moment: then its thread finds that its request was answered, and is not stuck.)
            if caller.desk.as_ref().is_none_or(Desk::refuse) {
                self.with(|calls, _| {
                    if calls.give_up(permit, Caller::tell) {
                        caller.thread.is_given_up();
                    }
                });
            }
        }
        Look { inside: found.inside, overstayed: found.overstayed, doubtful: found.doubtful, late: false }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inflight<Caller>, u64) -> T) -> T {
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

    fn looked_until(crowd: &Crowd, hung: bool, done: impl Fn(Look) -> bool) -> Look {
        loop {
            let look = crowd.look(hung, || ());
            if done(look) {
                return look;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_call_that_overstays_is_told_once_and_leaves_its_place_at_its_end() {
        let crowd = Crowd::new(Duration::from_millis(1), 1);
        let stuck = crowd.enter(Stay::Brief, || true).unwrap();
        assert_eq!(looked_until(&crowd, false, |look| look.overstayed).inside, 1);
        assert!(!crowd.look(false, || ()).overstayed);
        assert_eq!(crowd.enter(Stay::Brief, || true).map(drop), Err(Errno::TIMEDOUT));
        drop(stuck);
        assert!(crowd.enter(Stay::Brief, || true).is_ok());
        assert_eq!(crowd.look(false, || ()), Look::default());
    }

    #[test]
    fn a_long_call_is_doubted_and_given_up_only_in_a_hung_branch() {
        let crowd = Crowd::new(Duration::from_millis(1), 2);
        let _long = crowd.enter(Stay::Long, || true).unwrap();
        assert!(!looked_until(&crowd, false, |look| look.doubtful).overstayed);
        crowd.look(true, || ());
        assert!(!crowd.look(true, || ()).doubtful);
    }

    #[test]
    fn nobody_enters_a_closed_branch() {
        let crowd = Crowd::new(Duration::ZERO, 1);
        assert_eq!(crowd.enter(Stay::Brief, || false).map(drop), Err(Errno::TIMEDOUT));
    }

    #[test]
    fn without_a_timeout_nobody_overstays() {
        let crowd = Crowd::new(Duration::ZERO, 1);
        let _inside = crowd.enter(Stay::Brief, || true).unwrap();
        assert_eq!(crowd.look(true, || ()), Look { inside: 1, ..Look::default() });
        assert_eq!(crowd.timeout(), None);
    }

    #[test]
    fn a_branch_stalls_while_a_brief_call_stays() {
        let crowd = Crowd::new(Duration::from_millis(400), 2);
        let long = crowd.enter(Stay::Long, || true).unwrap();
        let later = crowd.now() + Duration::from_millis(150);
        looked_until(&crowd, false, |_| crowd.now() > later);
        assert!(!crowd.stalls());
        let brief = crowd.enter(Stay::Brief, || true).unwrap();
        looked_until(&crowd, false, |_| crowd.stalls());
        drop(long);
        assert!(crowd.stalls());
        // Given up: it says nothing of the branch any more.
        looked_until(&crowd, false, |look| look.overstayed);
        assert!(!crowd.stalls());
        drop(brief);
        assert!(!crowd.stalls());
    }

    #[test]
    fn the_branch_is_closed_before_a_request_is_answered_for() {
        let closed = Arc::new(AtomicBool::new(false));
        #[derive(Debug)]
        struct Closed(Arc<AtomicBool>);
        impl stand_in::StandIn for Closed {
            fn refuse(&self, _: u64) -> bool {
                assert!(self.0.load(SeqCst));
                true
            }
        }
        let door: Arc<dyn stand_in::StandIn> = Arc::new(Closed(closed.clone()));
        let crowd = Crowd::new(Duration::from_millis(1), 1);
        stand_in::at(&door, 1, || {
            let _stuck = crowd.enter(Stay::Brief, || true).unwrap();
            while !crowd.look(false, || closed.store(true, SeqCst)).overstayed {
                std::thread::yield_now();
            }
        });
    }

    #[derive(Debug, Default)]
    struct Refused(Mutex<Vec<u64>>);

    impl stand_in::StandIn for Refused {
        fn refuse(&self, turn: u64) -> bool {
            self.0.lock().push(turn);
            true
        }
    }

    #[test]
    fn the_door_is_told_which_request_to_refuse() {
        let crowd = Crowd::new(Duration::from_millis(1), 1);
        let door = Arc::new(Refused::default());
        let at_door: Arc<dyn stand_in::StandIn> = door.clone();
        stand_in::at(&at_door, 7, || {
            let _stuck = crowd.enter(Stay::Brief, || true).unwrap();
            looked_until(&crowd, false, |look| look.overstayed);
        });
        let _later = crowd.enter(Stay::Brief, || true).unwrap();
        looked_until(&crowd, false, |look| look.overstayed);
        assert_eq!(*door.0.lock(), [7]);
    }
}
