//! The calls that are inside a branch that others serve, since when, and who can answer for them.
//!
//! A branch whose server hangs keeps the threads that asked it. So that some are left for the other branches, only a
//! few calls are let in at once, each into a place of its own. The branch's keeper looks at the places while there
//! is somebody in them: a call that has overstayed is answered for by another thread, and its thread is written off
//! until the call returns. Nothing is armed or started for a call; local disks have no crowd at all.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fsstack_sys::Errno;
use parking_lot::Mutex;

use super::holder::Holder;
use super::stand_in::{self, Desk};

/// Places of a crowd; `branch-inflight` says how many of them are used.
pub const MOST: usize = 64;
/// A brief call that has been inside for longer than this, or than a part of the limit: nobody waits for what he can
/// do without.
const STALL: Duration = Duration::from_secs(1);

/// What a caller may expect of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stay {
    /// It returns soon where all is well.
    Brief,
    /// So does this one, and its caller can do without: he does not wait for a place in a branch that may hang.
    Spare,
    /// It may take long on a branch in good order (fsync, copies): it overstays only if the branch answers nobody.
    Long,
}

/// The calls inside a branch.
#[derive(Debug)]
pub(crate) struct Crowd {
    since: Instant,
    places: [Place; MOST],
    limit: AtomicUsize,
    /// How long a call may stay, in milliseconds.
    timeout: AtomicU64,
    /// Calls that ever came in: tells quiet from busy.
    entered: AtomicU64,
    /// When the branch last answered its keeper: milliseconds since `since`.
    answered: AtomicU64,
}

#[derive(Debug, Default)]
struct Place {
    /// When the call came in: milliseconds since `since`, never 0. 0: the place is free.
    began: AtomicU64,
    long: AtomicBool,
    /// Its request was answered by another thread, or could not be: nobody waits for it any more.
    lost: AtomicBool,
    caller: Mutex<Caller>,
}

/// Who is inside.
#[derive(Debug, Default)]
struct Caller {
    /// Who can answer its request.
    desk: Option<Desk>,
    /// The thread, which others may wait for.
    thread: Option<Holder>,
}

/// A place inside, given up when this drops.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Place);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // Held to the end: whoever gives the call up does so before all of this, or finds the place free.
        let mut caller = self.0.caller.lock();
        let gone = std::mem::take(&mut *caller);
        if self.0.lost.swap(false, Relaxed)
            && let Some(thread) = gone.thread
        {
            thread.is_back();
        }
        self.0.began.store(0, SeqCst);
    }
}

/// What the keeper saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// Calls inside.
    pub(crate) inside: usize,
    /// A call that should have been brief has been inside for longer than it may, since the last look.
    pub(crate) overstayed: bool,
    /// A call that may take long has, and the branch has not answered its keeper since.
    pub(crate) doubtful: bool,
}

impl Crowd {
    /// `limit` calls at once may stay for `timeout`; zero: for ever.
    pub(crate) fn new(timeout: Duration, limit: usize) -> Self {
        let crowd = Self {
            since: Instant::now(),
            places: [const {
                Place {
                    began: AtomicU64::new(0),
                    long: AtomicBool::new(false),
                    lost: AtomicBool::new(false),
                    caller: Mutex::new(Caller { desk: None, thread: None }),
                }
            }; MOST],
            limit: AtomicUsize::new(1),
            timeout: AtomicU64::new(0),
            entered: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        };
        crowd.set(timeout, limit);
        crowd
    }

    pub(crate) fn set(&self, timeout: Duration, limit: usize) {
        let timeout = if timeout.is_zero() { u64::MAX } else { millis(timeout) };
        self.timeout.store(timeout, Relaxed);
        self.limit.store(limit.clamp(1, MOST), Relaxed);
    }

    /// How long a call may stay; None: for ever.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        match self.timeout.load(Relaxed) {
            u64::MAX => None,
            timeout => Some(Duration::from_millis(timeout)),
        }
    }

    /// A place inside; waits for one while it `is_awaited`, if all are taken.
    ///
    /// # Errors
    /// ETIMEDOUT if nobody waits any more, or all places are lost to calls that do not return.
    pub(crate) fn enter(&self, stay: Stay, is_awaited: impl Fn() -> bool) -> Result<Inside<'_>, Errno> {
        match self.take_place(stay, &is_awaited)? {
            Some(inside) => Ok(inside),
            None => stand_in::aside(|| self.wait_for_place(stay, &is_awaited)),
        }
    }

    fn wait_for_place(&self, stay: Stay, is_awaited: &impl Fn() -> bool) -> Result<Inside<'_>, Errno> {
        let came = self.now();
        loop {
            std::thread::sleep(Duration::from_millis(1));
            if let Some(inside) = self.take_place(stay, is_awaited)? {
                return Ok(inside);
            }
            if self.now().saturating_sub(came) > self.timeout.load(Relaxed) {
                return Err(Errno::TIMEDOUT);
            }
        }
    }

    /// A place, if one is free.
    fn take_place(&self, stay: Stay, is_awaited: &impl Fn() -> bool) -> Result<Option<Inside<'_>>, Errno> {
        if !is_awaited() {
            return Err(Errno::TIMEDOUT);
        }
        let places = &self.places[..self.limit.load(Relaxed)];
        let mut lost = 0;
        for place in places {
            if place.began.load(Relaxed) == 0
                && place.began.compare_exchange(0, self.now(), SeqCst, Relaxed).is_ok()
            {
                place.long.store(stay == Stay::Long, Relaxed);
                *place.caller.lock() = Caller { desk: stand_in::desk(), thread: Some(Holder::here()) };
                self.entered.fetch_add(1, SeqCst);
                return Ok(Some(Inside(place)));
            }
            lost += usize::from(place.lost.load(Relaxed));
        }
        if lost == places.len() { Err(Errno::TIMEDOUT) } else { Ok(None) }
    }

    /// Calls inside.
    pub(crate) fn inside(&self) -> usize {
        self.places.iter().filter(|place| place.began.load(Relaxed) != 0).count()
    }

    /// Whether a call that should have been brief has been inside for a while: the branch may hang.
    pub(crate) fn stalls(&self) -> bool {
        let patience = millis(STALL).min(self.timeout.load(Relaxed) / 4);
        let now = self.now();
        self.places.iter().any(|place| {
            let began = place.began.load(Relaxed);
            // (One that was given up may never return: its branch was closed for it, and may be another by now.)
            let counts = began != 0 && !place.long.load(Relaxed) && !place.lost.load(Relaxed);
            counts && now.saturating_sub(began) > patience
        })
    }

    /// Calls that ever came in.
    pub(crate) fn entered(&self) -> u64 {
        self.entered.load(SeqCst)
    }

    /// The branch has answered its keeper: calls that may take long are given more time.
    pub(crate) fn has_answered(&self) {
        self.answered.store(self.now(), Relaxed);
    }

    /// Who is inside, and for how long. Calls that have overstayed are answered for: the brief ones; those that may take
    /// long only if the branch is `hung`. Before a brief one is, `close` is called: its request may be served again, and
    /// must not come in once more.
    pub(crate) fn look(&self, hung: bool, close: impl Fn()) -> Look {
        let (now, limit) = (self.now(), self.timeout.load(Relaxed));
        let answered = self.answered.load(Relaxed);
        let mut look = Look::default();
        for place in &self.places {
            let began = place.began.load(SeqCst);
            if began == 0 {
                continue;
            }
            look.inside += 1;
            if now.saturating_sub(began) <= limit || place.lost.load(Relaxed) {
                continue;
            }
            let long = place.long.load(Relaxed);
            if long && !hung {
                look.doubtful |= now.saturating_sub(began.max(answered)) > limit;
                continue;
            }
            if !long {
                look.overstayed = true;
                close();
            }
            place.give_up(began);
        }
        look
    }

    fn now(&self) -> u64 {
        millis(self.since.elapsed()).max(1)
    }
}

impl Place {
    /// The call that came in at `began` is answered for, if its door lets others answer.
    fn give_up(&self, began: u64) {
        let caller = self.caller.lock();
        if self.began.load(SeqCst) == began
            && caller.desk.as_ref().is_none_or(Desk::refuse)
            && !self.lost.swap(true, Relaxed)
            && let Some(thread) = &caller.thread
        {
            thread.is_given_up();
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

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
        let crowd = Crowd::new(Duration::from_millis(4), 2);
        let long = crowd.enter(Stay::Long, || true).unwrap();
        std::thread::sleep(Duration::from_millis(3));
        assert!(!crowd.stalls());
        let brief = crowd.enter(Stay::Brief, || true).unwrap();
        while !crowd.stalls() {
            std::thread::yield_now();
        }
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
