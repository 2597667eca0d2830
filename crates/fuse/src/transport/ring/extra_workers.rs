//! Further threads of the ring's transport: when a queue gets one.
//!
//! The threads of a queue share its CPU, so a further one helps only while all others wait inside a request: for a branch, a
//! lock, another request. A queue whose threads run, or would if other programs left them the CPU, gets none, however many
//! requests wait in it. Such a wait is seen in /proc, at two looks in a row: a moment's wait for a lock is none.
//!
//! The kernel puts requests that find no entry into the queue's list, and takes them off it only when an entry of the queue is
//! answered. A new entry gets the next request that comes, not those in the list, whose callers would wait until a stuck
//! request is given up. So a new thread makes the kernel send it a request, by a notice that asks for no bytes of a file's
//! cached data. The answer to that fetches the first of the list.

use std::sync::Arc;
use std::time::Duration;

use fsstack_sync::atomic::{AtomicU64, Ordering::SeqCst};
use fsstack_wire::Notice;

use super::{FirstEntry, RingShared};

/// Time between the moment at which a queue has no free thread and the look at what its threads do, and between two looks
/// while they wait.
const QUEUE_LOOK_PAUSE: Duration = Duration::from_millis(1);
/// Longest time between two such looks while the threads run, or no thread may come: it doubles up to this.
const LONGEST_QUEUE_LOOK_PAUSE: Duration = Duration::from_millis(8);
/// Looks in a row at which no thread of a queue was runnable before it gets one more.
const LOOKS_BEFORE_GROWING: u32 = 2;

/// Files that are named to the kernel at most before it sends a request.
const FILES_TRIED: usize = 64;
/// Number of the first request that the transport asked for; the next ones are even, too, as the kernel has it. Its own
/// requests begin at 2.
const FIRST_ASKED_FOR: u64 = 1 << 62;

/// State of a queue at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Supply {
    /// It has a free thread, or is getting one.
    Enough,
    /// Its threads are all busy, and it gets no other for now: one of them is runnable, or as many work as may.
    Later,
    /// Its threads all wait.
    Waits,
}

impl RingShared {
    /// The last free thread of `queue` has a request: it may need one more.
    pub(super) fn order(&self, queue: usize) {
        if !self.queues[queue].wanted.swap(true, SeqCst) {
            self.wake_grower();
        }
    }

    pub(super) fn wake_grower(&self) {
        *self.ordered.0.lock() = true;
        self.ordered.1.notify_one();
    }

    /// Starts threads for queues that need one. A queue that cannot have one now is looked at again: no order is lost.
    pub(super) fn start_wanted(self: &Arc<Self>) {
        let mut waits = vec![0; self.queues.len()];
        loop {
            let mut ordered = self.ordered.0.lock();
            self.ordered.1.wait_while(&mut ordered, |ordered| !*ordered);
            *ordered = false;
            drop(ordered);
            self.start_spares();
            let (mut supply, mut pause) = (Supply::Waits, QUEUE_LOOK_PAUSE);
            while supply != Supply::Enough {
                if self.ending.is_gone() {
                    return;
                }
                fsstack_sync::thread::sleep(pause);
                // Those whose requests take long make room.
                self.workers.look();
                let all = waits.iter_mut().enumerate().map(|(number, waits)| self.supply(number, waits));
                supply = all.max().unwrap_or(Supply::Enough);
                pause = if supply == Supply::Later {
                    LONGEST_QUEUE_LOOK_PAUSE.min(2 * pause)
                } else {
                    QUEUE_LOOK_PAUSE
                };
            }
        }
    }

    /// Looks at queue `number`, whose threads waited at the last `waits` looks, and starts a thread if it needs one.
    fn supply(self: &Arc<Self>, number: usize, waits: &mut u32) -> Supply {
        let queue = &self.queues[number];
        let looks = std::mem::take(waits) + 1;
        if !queue.wanted.swap(false, SeqCst) || queue.free.load(SeqCst) != 0 {
            return Supply::Enough;
        }
        // What its threads do is read in /proc, so only where it matters.
        if !self.has_room(number) || self.workers.is_any_runnable(number) {
            queue.wanted.store(true, SeqCst);
            return Supply::Later;
        }
        if LOOKS_BEFORE_GROWING <= looks {
            match self.start(number, FirstEntry::Late) {
                Ok(_) => return Supply::Enough,
                Err(error) => {
                    tracing::warn!(%error, "io_uring queue: all threads busy and no further one can be started");
                    self.ending.pause();
                }
            }
        }
        queue.wanted.store(true, SeqCst);
        *waits = looks;
        Supply::Waits
    }

    /// Makes the kernel send a request to the queue of the calling thread's CPU. Its answer fetches the first of those that
    /// wait there. Without a regular file that the kernel knows, they wait for another request of their CPU.
    pub(super) fn fetch_waiting(&self) {
        static ASKED_FOR: AtomicU64 = AtomicU64::new(FIRST_ASKED_FOR);
        for file in self.adapter.some_files(FILES_TRIED) {
            let notice = Notice::request(file, ASKED_FOR.fetch_add(2, SeqCst));
            // It may have forgotten one meanwhile.
            if rustix::io::write(&self.device, notice.as_bytes()).is_ok() {
                return;
            }
        }
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
