//! Further threads of the ring's transport: when a queue gets one.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::{FREE_BEFORE_GROWING, FirstEntry, RingShared};

/// Pause between two looks while a queue wants a thread that it cannot have yet.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

impl RingShared {
    /// The last free thread of `queue` has a request: it is to have one more.
    pub(super) fn order(&self, queue: usize) {
        if !self.queues[queue].wanted.swap(true, SeqCst) {
            self.wake_grower();
        }
    }

    pub(super) fn wake_grower(&self) {
        *self.ordered.0.lock() = true;
        self.ordered.1.notify_one();
    }

    /// Starts threads where the last free one was taken and is not back yet. A queue that cannot have one now is looked at
    /// again: no order is lost.
    pub(super) fn start_wanted(self: &Arc<Self>) {
        let mut some_wait = false;
        loop {
            let mut ordered = self.ordered.0.lock();
            if some_wait {
                self.ordered.1.wait_for(&mut ordered, LOOK_PAUSE);
            } else {
                self.ordered.1.wait_while(&mut ordered, |ordered| !*ordered);
            }
            *ordered = false;
            drop(ordered);
            if self.ending.is_gone() {
                return;
            }
            if some_wait {
                // Those whose requests take long make room.
                self.workers.look();
            }
            some_wait = false;
            for number in 0..self.queues.len() {
                some_wait |= !self.is_supplied(number);
            }
        }
    }

    /// Starts a thread for queue `number`, if it wants one: false if it cannot have it now.
    fn is_supplied(self: &Arc<Self>, number: usize) -> bool {
        let queue = &self.queues[number];
        if !queue.wanted.swap(false, SeqCst) || queue.free.load(SeqCst) != FREE_BEFORE_GROWING {
            return true;
        }
        let started = self.has_room(number).then(|| self.start(number, FirstEntry::More));
        match started {
            Some(Ok(_)) => return true,
            Some(Err(error)) => {
                tracing::warn!(%error, "io_uring queue: all threads busy and no further one can be started");
                self.ending.pause();
            }
            None => {}
        }
        queue.wanted.store(true, SeqCst);
        false
    }

    /// Whether queue `number` may have one more thread: fewer than may be are at work in all queues, and there are not too
    /// many in all. The entries that a queue has stay with it, so each one has a share of them that no other can use up.
    fn has_room(&self, number: usize) -> bool {
        let free: usize = self.queues.iter().map(|queue| queue.free.load(SeqCst)).sum();
        let most = self.max + self.workers.most_aside();
        let (all, own) = self.workers.all_and_at(number);
        self.workers.working().saturating_sub(free) < self.max
            && (all < most || own < most / self.queues.len())
    }
}
