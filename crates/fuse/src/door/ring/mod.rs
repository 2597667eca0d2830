//! The door over io_uring: a queue a CPU, its threads pinned there, each with a ring and one entry of its own.
//!
//! The kernel puts a request into the queue of the CPU that the caller runs on, and hands it to the entry that
//! became free last: so a request may run to its end in its thread, blocking or not, and the next one finds
//! another thread of the queue. When few of a queue are free, one more is started, up to a bound. All queues
//! must have an entry before the kernel uses any: until then callers wait, for ever if one cannot be made, so that
//! the door is not open before all are. FORGET and INTERRUPT always come by the device.

mod entry;
mod forgets;
mod seat;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use fsstack_engine::health::stand_in::{self, StandIn};
use fsstack_sys::{identity, thread};
use fsstack_wire::{Answer, OutHeader, Request};
use parking_lot::{Condvar, Mutex};

use super::again::may_be_served_again;
use super::scheduling::{Pace, Scheduling, Tempo};
use crate::adapter::{Outcome, Serve};
use entry::{Entry, Fetched};
use seat::{Apart, Left, Seat};

pub(crate) use entry::probe;

/// Threads that a queue of a CPU in use has from the start: one for the request at hand, one for the next while
/// the first is blocked. More cost speed (a close and the next open run on two threads by turns).
const AT_FIRST: usize = 2;
/// Free threads of a queue at which one more is started. A request that finds none waits until another of its
/// queue is answered, not until the new thread is there.
const FEW: usize = 0;

/// The door.
#[derive(Debug)]
pub struct RingDoor {
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    adapter: Arc<dyn Serve>,
    device: OwnedFd,
    payload: usize,
    scheduling: Scheduling,
    queues: Vec<Queue>,
    /// Threads of all queues, and how many there may be: at least one a queue, without which the kernel uses none.
    threads: AtomicUsize,
    max: usize,
    /// Threads that wait for another request, and are not among `threads`.
    aside: AtomicUsize,
    gone: AtomicBool,
    /// Whoever waits for the end of the mount sleeps on it.
    ended: (Mutex<()>, Condvar),
    /// Queue numbers that need one more thread.
    wanted: SyncSender<usize>,
}

/// Why a thread ends.
enum Ended {
    /// The connection is gone.
    Gone,
    /// Another thread has its entry.
    Replaced,
}

/// What a thread of a queue begins with.
enum First {
    /// The queue's first entry, without which the kernel uses no queue: whether it has taken it is told.
    Own(Sender<io::Result<()>>),
    /// One more entry of its own.
    More,
    /// Another thread's entry, whose request was answered.
    TakenOver(Left),
    /// Another thread's entry, whose request is to be served again.
    Again(Left),
}

#[derive(Debug, Default)]
struct Queue {
    /// Threads that wait for a request.
    free: AtomicUsize,
    /// How they are scheduled.
    tempo: Tempo,
}

impl Queue {
    /// A thread that counted as free ends.
    fn is_left_by_one(&self) {
        self.free.fetch_sub(1, SeqCst);
    }
}

impl RingDoor {
    /// Opens the door: requests of the connection behind `device` are served from now on.
    ///
    /// # Errors
    /// No thread, ring or descriptor is to be had, or the kernel does not take a queue's first entry.
    pub fn open(
        adapter: Arc<dyn Serve>,
        device: OwnedFd,
        payload: u32,
        max_threads: Option<usize>,
        scheduling: Scheduling,
    ) -> io::Result<Self> {
        let queues = super::queues();
        let cpus = thread::allowed_cpus();
        let (wanted, orders) = sync_channel(64);
        let shared = Arc::new(Shared {
            adapter,
            device,
            payload: usize::try_from(payload).unwrap_or(1 << 20).max(8192),
            scheduling: scheduling.settled(),
            queues: (0..queues).map(|_| Queue::default()).collect(),
            threads: AtomicUsize::new(0),
            max: max_threads.unwrap_or_else(|| 64.max(queues + 2 * cpus.len())).max(queues),
            aside: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            ended: Default::default(),
            wanted,
        });
        let mut threads = Vec::with_capacity(queues * AT_FIRST + 2);
        let watched = shared.clone();
        let forgets = std::thread::Builder::new().name("door-forgets".into());
        threads.push(forgets.spawn(move || forgets::serve(&watched))?);
        // A queue whose CPU is not there, or not for us, still needs its entry.
        let (told, made) = channel();
        for queue in 0..queues {
            threads.push(shared.start(queue, First::Own(told.clone()))?);
        }
        drop(told);
        made.iter().collect::<io::Result<()>>().inspect_err(|_| shared.end())?;
        for queue in (1..AT_FIRST).flat_map(|_| cpus.iter().copied().filter(|cpu| *cpu < queues)) {
            if shared.threads.load(SeqCst) < shared.max {
                threads.push(shared.start(queue, First::More)?);
            }
        }
        let keeper = std::thread::Builder::new().name("door-keeper".into());
        let kept = shared.clone();
        threads.push(keeper.spawn(move || kept.keep(&orders))?);
        Ok(Self { threads, shared })
    }

    /// Serves until the mount is gone.
    pub fn wait(self) {
        let mut ended = self.shared.ended.0.lock();
        while !self.shared.gone.load(SeqCst) {
            self.shared.ended.1.wait(&mut ended);
        }
        drop(ended);
        // All go by themselves. Those that are stuck in a branch do not count once their requests were answered.
        while self.shared.threads.load(SeqCst) > 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for thread in self.threads.into_iter().filter(JoinHandle::is_finished) {
            if thread.join().is_err() {
                tracing::error!("a door's thread panicked");
            }
        }
    }
}

impl Shared {
    /// One more thread for a queue.
    fn start(self: &Arc<Self>, queue: usize, first: First) -> io::Result<JoinHandle<()>> {
        let shared = self.clone();
        self.threads.fetch_add(1, SeqCst);
        let started = std::thread::Builder::new().name(format!("door-{queue}")).spawn(move || {
            shared.scheduling.apply(Some(queue));
            if let Err(error) = identity::keep_capabilities() {
                tracing::warn!(%error, "the door's thread cannot act for others");
            }
            match shared.serve(queue, first) {
                // Not counted since its request was answered by another.
                Ok(Ended::Replaced) => return,
                Ok(Ended::Gone) => {}
                Err(_) if shared.gone.load(SeqCst) => {}
                Err(error) => tracing::error!(%error, queue, "a ring is broken"),
            }
            shared.threads.fetch_sub(1, SeqCst);
        });
        started.inspect_err(|_| {
            self.threads.fetch_sub(1, SeqCst);
        })
    }

    fn serve(self: &Arc<Self>, number: usize, first: First) -> io::Result<Ended> {
        let queue = &self.queues[number];
        let Some((mut entry, begun)) = self.begin(number, first)? else { return Ok(Ended::Gone) };
        let mut pace = Pace::new(self.scheduling, &queue.tempo);
        let seat = Seat::new(self, number);
        stand_in::of(seat.clone());
        let mut apart = Apart::default();
        let mut fetched = Ok(begun);
        loop {
            match fetched.inspect_err(|_| queue.is_left_by_one())? {
                Fetched::Gone => return Ok(Ended::Gone),
                Fetched::Nothing => fetched = entry.fetch(),
                Fetched::Request => {
                    if queue.free.fetch_sub(1, SeqCst) == FEW + 1 {
                        // Full or gone: whoever is to start threads has enough to do.
                        let _asked = self.wanted.try_send(number);
                    }
                    if self.adapter.may_hang() {
                        match self.answer_watched(entry, &seat, &mut apart) {
                            Some(answered) => entry = answered,
                            None => return Ok(Ended::Replaced),
                        }
                    } else {
                        self.answer(&mut entry);
                    }
                    pace.served();
                    queue.free.fetch_add(1, SeqCst);
                    fetched = entry.commit();
                }
            }
        }
    }

    /// The entry that a thread of queue `number` begins with, and what there is in it; the thread counts as free. None: the
    /// connection is gone.
    fn begin(&self, number: usize, first: First) -> io::Result<Option<(Entry, Fetched)>> {
        let queue = &self.queues[number];
        let id = u16::try_from(number).map_err(io::Error::other)?;
        let registered = || {
            queue.free.fetch_add(1, SeqCst);
            let taken =
                Entry::new(self.device.as_fd().as_raw_fd(), id, self.payload).and_then(|mut entry| {
                    let fetched = entry.register()?;
                    Ok((entry, fetched))
                });
            taken.inspect_err(|_| queue.is_left_by_one())
        };
        match first {
            First::More => registered().map(Some),
            First::Own(told) => {
                let (taken, answer) = match registered() {
                    Ok(taken) => (Some(taken), Ok(())),
                    Err(error) => (None, Err(error)),
                };
                // Whoever opens the door waits for it.
                let _heard = told.send(answer);
                Ok(taken)
            }
            First::TakenOver(left) => {
                let Some(mut entry) = left.take_over(&self.gone) else { return Ok(None) };
                queue.free.fetch_add(1, SeqCst);
                let fetched = entry.commit().inspect_err(|_| queue.is_left_by_one())?;
                Ok(Some((entry, fetched)))
            }
            First::Again(left) => {
                let Some(entry) = left.take_over(&self.gone) else { return Ok(None) };
                queue.free.fetch_add(1, SeqCst);
                Ok(Some((entry, Fetched::Request)))
            }
        }
    }

    fn answer(&self, entry: &mut Entry) {
        let parts = entry.slot.parts();
        let (out, len) = match Request::parse(self.adapter.abi(), parts.header, parts.op_in, parts.rest) {
            Err(refused) => (OutHeader::refused(refused.unique.unwrap_or(0), refused.errno()), 0),
            Ok(request) => {
                let unique = request.header.unique;
                let mut answer = Answer::new(parts.answer);
                match self.adapter.serve(&request, &mut answer) {
                    Outcome::Answered => (answer.header(unique), answer.len()),
                    Outcome::Refused(errno) => (OutHeader::refused(unique, errno), 0),
                    Outcome::Silent => (OutHeader::answered(unique, 0), 0),
                }
            }
        };
        entry.slot.answer(out.as_bytes(), len);
    }

    /// As [`Self::answer`], where another thread answers if this one does not come back from a branch: then the entry is
    /// that thread's. So a call that may hang never has the entry's own buffers: the request and its answer are kept
    /// apart, at the price of a copy.
    fn answer_watched(
        self: &Arc<Self>,
        mut entry: Entry,
        seat: &Arc<Seat>,
        apart: &mut Apart,
    ) -> Option<Entry> {
        apart.keep(entry.slot.request(), self.payload);
        let Apart { parts: [header, op_in, rest], answer } = apart;
        let request = match Request::parse(self.adapter.abi(), header, op_in, rest) {
            Ok(request) => request,
            Err(refused) => {
                let out = OutHeader::refused(refused.unique.unwrap_or(0), refused.errno());
                entry.slot.put(out.as_bytes(), &[]);
                return Some(entry);
            }
        };
        let unique = request.header.unique;
        let mut answer = Answer::new(answer);
        let door: Arc<dyn StandIn> = seat.clone();
        let Entry { ring, slot } = entry;
        seat.leave(unique, may_be_served_again(&request), slot);
        let outcome = stand_in::at(&door, unique, || self.adapter.serve(&request, &mut answer));
        let Some(mut slot) = seat.come_back() else {
            if outcome == Outcome::Answered {
                self.adapter.take_back(&request, answer.as_bytes());
            }
            return None;
        };
        match outcome {
            Outcome::Answered => slot.put(answer.header(unique).as_bytes(), answer.as_bytes()),
            Outcome::Refused(errno) => slot.put(OutHeader::refused(unique, errno).as_bytes(), &[]),
            Outcome::Silent => slot.put(OutHeader::answered(unique, 0).as_bytes(), &[]),
        }
        Some(Entry { ring, slot })
    }

    /// A thread of `queue` is going to wait for another request: it does not count meanwhile, unless too many wait already. Its entry stays with it.
    fn one_aside(&self, queue: usize) -> bool {
        let few = self.aside.fetch_add(1, SeqCst) < super::ASIDE * self.max;
        if few {
            self.threads.fetch_sub(1, SeqCst);
            // There may have been as many threads as may be when the last free one of the queue was taken.
            if self.queues[queue].free.load(SeqCst) == FEW {
                let _asked = self.wanted.try_send(queue);
            }
        } else {
            self.aside.fetch_sub(1, SeqCst);
        }
        few
    }

    /// It is back.
    fn one_back(&self) {
        self.threads.fetch_add(1, SeqCst);
        self.aside.fetch_sub(1, SeqCst);
    }

    /// Starts threads where the last free one was taken and is not back yet.
    fn keep(self: &Arc<Self>, orders: &Receiver<usize>) {
        while let Ok(queue) = orders.recv() {
            if self.gone.load(SeqCst) {
                return;
            }
            let short = self.queues.get(queue).is_some_and(|queue| queue.free.load(SeqCst) == FEW);
            if short
                && self.threads.load(SeqCst) < self.max
                && let Err(error) = self.start(queue, First::More)
            {
                tracing::warn!(%error, "no further thread for a queue whose threads are all busy");
            }
        }
    }

    /// The connection is gone: everybody goes.
    fn end(&self) {
        let ended = self.ended.0.lock();
        self.gone.store(true, SeqCst);
        self.ended.1.notify_all();
        drop(ended);
        let _told = self.wanted.try_send(0);
    }
}
