//! Extra threads of the /dev/fuse transport, for times when the first ones are not enough: when they are woken, rest and
//! end.

use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_sync::atomic::Ordering::{Relaxed, SeqCst};
use fsstack_sync::time::{Duration, Instant};

use super::dev::DevShared;
use super::device;
use super::workers::Worker;

/// How long all threads must have been busy, with no request begun or so few that others wait, before something is done.
const STUCK_AFTER: Duration = Duration::from_millis(5);
/// The most helpers that are added at once, where the ones before were too few.
const MOST_ADDED_AT_ONCE: usize = 8;
/// How long a helper that nobody needs stays.
const REST_BEFORE_LEAVING: Duration = Duration::from_secs(2);

/// Measures for waiting requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remedy {
    /// None does, or they are short and many.
    None,
    /// One thread reads alone: the others are to.
    AllRead,
    /// Helpers are to come.
    Help,
}

impl Remedy {
    /// `busy`: no thread waits for a request. `begun`: requests that the `at_work` threads have begun since the last look;
    /// where they are few, requests may be waiting at the device (`queued`). `single_reader`: one thread reads alone.
    fn of(
        busy: bool,
        begun: u64,
        at_work: usize,
        queued: impl FnOnce() -> bool,
        single_reader: bool,
    ) -> Self {
        let few = usize::try_from(begun).is_ok_and(|begun| begun <= at_work);
        let short = busy && (begun == 0 || few && queued());
        match (short, single_reader) {
            (false, _) => Self::None,
            (true, true) => Self::AllRead,
            (true, false) => Self::Help,
        }
    }
}

impl DevShared {
    /// A helper, which has had nothing to do since `idle`, rests until it is called: false if it was not, and is to leave.
    pub(super) fn rest(&self, worker: &Worker, idle: Instant) -> bool {
        let until = idle + REST_BEFORE_LEAVING;
        let mut called = self.called.0.lock();
        worker.rests();
        // A thread that took a request before saw none to wake.
        let mut needed = self.waiting.load(SeqCst) == 0 && !self.readers.has_single_reader();
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
        worker.resumes();
        *called = (*called).min(self.workers.resting());
        needed
    }

    /// Calls a helper that rests to take the next request: false if there is none. (Where one thread reads for a single
    /// client, nobody else is to.)
    pub(super) fn call_one(&self) -> bool {
        if self.workers.resting() == 0 || self.readers.has_single_reader() {
            return false;
        }
        let mut called = self.called.0.lock();
        if self.workers.resting() <= *called {
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
                fsstack_sync::thread::sleep(STUCK_AFTER);
                // At rest none waits, and none is needed.
                let busy = self.waiting.load(SeqCst) == 0 && !self.gate.is_closed();
                let begun = self.begun.load(Relaxed).wrapping_sub(before);
                calm = if busy { 0 } else { calm + 1 };
                match self.remedy(busy, begun) {
                    Remedy::None => more = 1,
                    Remedy::AllRead => self.readers.all_read(),
                    Remedy::Help => {
                        // Those whose requests take long make room.
                        self.workers.look();
                        let room = self.max.saturating_sub(self.workers.working() + self.workers.resting());
                        for _ in 0..more.min(room) {
                            self.add_extra_worker(next);
                            next += 1;
                        }
                        more = (2 * more).min(MOST_ADDED_AT_ONCE);
                    }
                }
            }
            if self.ending.is_gone() {
                return;
            }
        }
    }

    fn remedy(&self, busy: bool, begun: u64) -> Remedy {
        let single_reader = self.readers.has_single_reader();
        // One that reads alone has begun them all: the others are parked.
        let at_work = if single_reader { 1 } else { self.workers.working() };
        Remedy::of(busy, begun, at_work, || device::has_requests(self.device.as_fd()), single_reader)
    }

    pub(super) fn add_extra_worker(self: &Arc<Self>, index: usize) {
        let started = device::clone_device(self.device.as_fd()).and_then(|device| self.start(index, device));
        if let Err(error) = started {
            tracing::warn!(%error, "transport: all threads busy and no further one can be started");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Remedy;

    #[test]
    fn no_thread_is_added_while_others_are_parked() {
        // A request of 5 ms, and one of 3 ms with another behind it.
        assert_eq!(Remedy::of(true, 0, 1, || false, true), Remedy::AllRead);
        assert_eq!(Remedy::of(true, 1, 1, || true, true), Remedy::AllRead);
        assert_eq!(Remedy::of(true, 0, 2, || false, false), Remedy::Help);
        assert_eq!(Remedy::of(true, 2, 2, || true, false), Remedy::Help);
    }

    #[test]
    fn short_requests_start_no_thread() {
        assert_eq!(Remedy::of(true, 2, 1, || true, true), Remedy::None);
        assert_eq!(Remedy::of(true, 40, 2, || true, false), Remedy::None);
        assert_eq!(Remedy::of(true, 1, 1, || false, true), Remedy::None);
        assert_eq!(Remedy::of(false, 0, 2, || true, false), Remedy::None);
    }
}
