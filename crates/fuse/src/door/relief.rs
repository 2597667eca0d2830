//! Extra threads of the /dev/fuse transport, for times when the first ones are not enough: when they are woken, rest and
//! end.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use super::dev::Shared;
use super::device;
use super::roster::Member;

/// How long all threads must have been busy, with no request begun or so few that others wait, before something is done.
const STUCK: Duration = Duration::from_millis(5);
/// The most helpers that are added at once, where the ones before were too few.
const AT_ONCE: usize = 8;
/// How long a helper that nobody needs stays.
const REST: Duration = Duration::from_secs(2);

/// Measures for waiting requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cure {
    /// None does, or they are short and many.
    None,
    /// One thread reads alone: the others are to.
    AllRead,
    /// Helpers are to come.
    Help,
}

impl Cure {
    /// `busy`: no thread waits for a request. `begun`: requests that the `at_work` threads have begun since the last look;
    /// where they are few, requests may be waiting at the device (`queued`). `solo`: one thread reads alone.
    fn of(busy: bool, begun: u64, at_work: usize, queued: impl FnOnce() -> bool, solo: bool) -> Self {
        let few = usize::try_from(begun).is_ok_and(|begun| begun <= at_work);
        let short = busy && (begun == 0 || few && queued());
        match (short, solo) {
            (false, _) => Self::None,
            (true, true) => Self::AllRead,
            (true, false) => Self::Help,
        }
    }
}

impl Shared {
    /// A helper, which has had nothing to do since `idle`, rests until it is called: false if it was not, and is to leave.
    pub(super) fn rest(&self, member: &Member, idle: Instant) -> bool {
        let until = idle + REST;
        let mut called = self.called.0.lock();
        member.rests();
        // A thread that took a request before saw none to wake.
        let mut needed = self.waiting.load(SeqCst) == 0 && !self.crew.is_solo();
        while !needed && !self.ending.is_gone() {
            let late = self.called.1.wait_until(&mut called, until).timed_out();
            if 0 < *called {
                *called -= 1;
                needed = true;
            } else if late {
                break;
            }
        }
        // A call is for one that rests.
        member.resumes();
        *called = (*called).min(self.roster.resting());
        needed
    }

    /// Calls a helper that rests to take the next request: false if there is none. (Where one thread reads for a single
    /// client, nobody else is to.)
    pub(super) fn call_one(&self) -> bool {
        if self.roster.resting() == 0 || self.crew.is_solo() {
            return false;
        }
        let mut called = self.called.0.lock();
        if self.roster.resting() <= *called {
            return false;
        }
        *called += 1;
        drop(called);
        self.called.1.notify_one();
        true
    }

    pub(super) fn raise_alarm(&self) {
        *self.short.lock() = true;
        self.shortage.notify_one();
    }

    /// Adds helpers when nothing moves and nobody waits, or so little moves that requests wait for threads.
    pub(super) fn watch(self: &Arc<Self>) {
        let mut next = self.base;
        let mut more = 1;
        loop {
            let mut short = self.short.lock();
            self.asleep.store(true, SeqCst);
            // A thread may have begun the last free place's request before it saw that we sleep.
            if self.waiting.load(SeqCst) > 0 && !self.ending.is_gone() {
                self.shortage.wait_while(&mut short, |short| !*short);
            }
            *short = false;
            drop(short);
            self.asleep.store(false, SeqCst);
            let mut calm = 0;
            while calm < 20 && !self.ending.is_gone() {
                let before = self.begun.load(Relaxed);
                std::thread::sleep(STUCK);
                let busy = self.waiting.load(SeqCst) == 0;
                let begun = self.begun.load(Relaxed).wrapping_sub(before);
                calm = if busy { 0 } else { calm + 1 };
                match self.cure(busy, begun) {
                    Cure::None => more = 1,
                    Cure::AllRead => self.crew.all_read(),
                    Cure::Help => {
                        // Those whose requests take long make room.
                        self.roster.look();
                        let room = self.max.saturating_sub(self.roster.working() + self.roster.resting());
                        for _ in 0..more.min(room) {
                            self.add_helper(next);
                            next += 1;
                        }
                        more = (2 * more).min(AT_ONCE);
                    }
                }
            }
            if self.ending.is_gone() {
                return;
            }
        }
    }

    fn cure(&self, busy: bool, begun: u64) -> Cure {
        let solo = self.crew.is_solo();
        // One that reads alone has begun them all: the others are parked.
        let at_work = if solo { 1 } else { self.roster.working() };
        Cure::of(busy, begun, at_work, || device::has_requests(self.device.as_fd()), solo)
    }

    pub(super) fn add_helper(self: &Arc<Self>, index: usize) {
        let started = device::clone_device(self.device.as_fd()).and_then(|device| self.start(index, device));
        if let Err(error) = started {
            tracing::warn!(%error, "transport: all threads busy and no further one can be started");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cure;

    #[test]
    fn nobody_is_added_while_others_are_parked() {
        // A request of 5 ms, and one of 3 ms with another behind it.
        assert_eq!(Cure::of(true, 0, 1, || false, true), Cure::AllRead);
        assert_eq!(Cure::of(true, 1, 1, || true, true), Cure::AllRead);
        assert_eq!(Cure::of(true, 0, 2, || false, false), Cure::Help);
        assert_eq!(Cure::of(true, 2, 2, || true, false), Cure::Help);
    }

    #[test]
    fn short_requests_need_nobody() {
        assert_eq!(Cure::of(true, 2, 1, || true, true), Cure::None);
        assert_eq!(Cure::of(true, 40, 2, || true, false), Cure::None);
        assert_eq!(Cure::of(true, 1, 1, || false, true), Cure::None);
        assert_eq!(Cure::of(false, 0, 2, || true, false), Cure::None);
    }
}
