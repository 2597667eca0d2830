//! The transport over io_uring: a queue a CPU, its threads pinned there, each with a ring and one entry of its own.
//!
//! The kernel puts a request into the queue of the caller's CPU and hands it to the entry that became free last. So a
//! request runs to its end in its thread, blocking or not, and the next one finds another thread of the queue. When all
//! threads of a queue wait inside a request, one more is started, unless `max-threads` are at work in all queues. The kernel
//! takes no entry back, so threads stay; an idle one gives the memory of its buffers back (`extra_workers.rs`).
//!
//! The kernel uses no queue before all have an entry, and callers wait until then. So the transport opens only when every
//! entry is made. FORGET and INTERRUPT always come by the device.

mod entry;
mod extra_workers;
mod forgets;
#[cfg(test)]
mod kernel_cases;
mod request_at_hand;
mod spares;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fsstack_branch::health::reply_takeover::{self, ReplyTakeover};
use fsstack_sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use fsstack_sync::mpsc::{Sender, channel};
use fsstack_sync::thread::JoinHandle;
use fsstack_sync::{Condvar, Mutex};
use fsstack_sys::thread;
use fsstack_wire::{Answer, OutHeader, Request};

use super::ending::{Closer, Ending};
use super::repeatable::is_repeatable;
use super::scheduling::{QueueScheduling, Scheduling, StarvationGuard};
use super::workers::{Worker, WorkerGuard, Workers, prepare_for_callers};
use crate::adapter::{Outcome, Serve};
use entry::{Entry, Fetched};
use request_at_hand::{EntryAtHand, RequestCopy, TakenEntry};
use spares::Spares;

pub(crate) use entry::probe;

/// Threads that a queue of a CPU in use has from the start: one for the request at hand, one for the next while
/// the first is blocked. More cost speed (a close and the next open run on two threads by turns).
const AT_FIRST: usize = 2;
/// How long a thread that has carried much waits for its next request before it gives memory back.
const IDLE_BEFORE_GIVING_BACK: Duration = Duration::from_secs(2);

/// The transport.
#[derive(Debug)]
pub struct UringTransport {
    threads: Vec<JoinHandle<()>>,
    shared: Arc<RingShared>,
}

#[derive(Debug)]
pub(super) struct RingShared {
    adapter: Arc<dyn Serve>,
    device: OwnedFd,
    payload: usize,
    scheduling: Scheduling,
    queues: Vec<Queue>,
    workers: Arc<Workers>,
    /// How many threads may be at work: at least one a queue, without which the kernel uses none.
    max: usize,
    ending: Arc<Ending>,
    /// A queue wants one more thread, or the mount is gone: the thread `ring-grow` sleeps on it.
    ordered: (Mutex<bool>, Condvar),
    spares: Spares,
}

/// First step of a queue's thread.
#[derive(Debug)]
enum FirstEntry {
    /// Registers the queue's first entry, without which the kernel uses no queue; the result is sent.
    Own(Sender<io::Result<()>>),
    /// One more entry of its own.
    More,
    /// The same for a queue in which requests may be waiting.
    Late,
    /// Another thread's entry, whose request was answered.
    TakenOver(TakenEntry),
    /// Another thread's entry, whose request is to be served again.
    Again(TakenEntry),
}

/// In cache lines of its own: threads of one CPU write it, at each request.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Queue {
    /// Threads that wait for a request.
    free: AtomicUsize,
    /// It has no free thread, and `ring-grow` has not looked yet.
    wanted: AtomicBool,
    /// How they are scheduled.
    queue_scheduling: QueueScheduling,
}

impl Queue {
    /// A thread that counted as free ends.
    fn is_left_by_one(&self) {
        let before = self.free.fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "a thread left a queue that had none free");
    }
}

impl UringTransport {
    /// Opens the transport: requests of the connection behind `device` are served from now on.
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
        let max = max_threads.unwrap_or_else(|| 64.max(queues + 2 * cpus.len())).max(queues);
        let shared = Arc::new(RingShared {
            adapter,
            device,
            payload: usize::try_from(payload).unwrap_or(1 << 20).max(8192),
            scheduling: scheduling.settled(),
            queues: (0..queues).map(|_| Queue::default()).collect(),
            workers: Workers::new(max),
            max,
            ending: Arc::default(),
            ordered: Default::default(),
            spares: Spares::default(),
        });
        let mut threads = Vec::with_capacity(queues * AT_FIRST + 2);
        let watched = shared.clone();
        let forgets = fsstack_sync::thread::Builder::new().name("ring-forgets".into());
        threads.push(forgets.spawn(move || forgets::serve(&watched))?);
        // A queue whose CPU is not there, or not for us, still needs its entry.
        let (registered_sender, made) = channel();
        for queue in 0..queues {
            threads.push(shared.start(queue, FirstEntry::Own(registered_sender.clone()))?);
        }
        drop(registered_sender);
        made.iter().collect::<io::Result<()>>().inspect_err(|_| shared.end())?;
        for queue in (1..AT_FIRST).flat_map(|_| cpus.iter().copied().filter(|cpu| *cpu < queues)) {
            if shared.workers.working() < shared.max {
                threads.push(shared.start(queue, FirstEntry::More)?);
            }
        }
        let grower = fsstack_sync::thread::Builder::new().name("ring-grow".into());
        let kept = shared.clone();
        threads.push(grower.spawn(move || kept.start_wanted())?);
        shared.start_spares();
        Ok(Self { threads, shared })
    }

    /// Returns the handle that closes it before its mount is removed.
    pub fn closer(&self) -> Closer {
        Closer::new(&self.shared.ending, &self.shared.workers)
    }

    /// Serves until the mount is gone. What takes long then has until `timeout` is over.
    pub fn wait(self, timeout: Duration) {
        self.shared.ending.wait(&self.shared.workers, self.threads, timeout);
    }
}

impl RingShared {
    /// One more thread for a queue.
    fn start(self: &Arc<Self>, queue: usize, first: FirstEntry) -> io::Result<JoinHandle<()>> {
        let shared = self.clone();
        let membership = self.workers.enter(queue);
        let thread = fsstack_sync::thread::Builder::new().name(format!("ring-{queue}"));
        thread.spawn(move || shared.run(&membership, first))
    }

    /// Serves a queue in the calling thread.
    fn run(self: &Arc<Self>, membership: &WorkerGuard, first: FirstEntry) {
        let worker = membership.worker();
        let queue = worker.number();
        worker.starts();
        self.scheduling.apply(Some(queue));
        prepare_for_callers();
        match self.serve(worker, first) {
            Ok(()) => {}
            Err(_) if self.ending.is_gone() => {}
            Err(error) => {
                tracing::error!(%error, queue, "io_uring queue failed; another thread takes its place");
                if self.ending.pause() {
                    self.order(queue);
                }
            }
        }
    }

    fn serve(self: &Arc<Self>, worker: &Arc<Worker>, first: FirstEntry) -> io::Result<()> {
        let number = worker.number();
        let queue = &self.queues[number];
        let (mut copy, first) = match (RequestCopy::new(self.payload), first) {
            (Ok(copy), first) => (copy, first),
            (Err(error), FirstEntry::Own(registered_sender)) => {
                let _heard = registered_sender.send(Err(error));
                return Ok(());
            }
            (Err(error), _) => return Err(error),
        };
        let Some((mut entry, begun)) = self.begin(number, first)? else { return Ok(()) };
        let mut guard = StarvationGuard::new(self.scheduling, &queue.queue_scheduling);
        let at_hand = EntryAtHand::new(self, worker);
        reply_takeover::of(worker.clone());
        let mut fetched = Ok(begun);
        loop {
            match fetched.inspect_err(|_| queue.is_left_by_one())? {
                Fetched::Gone => return Ok(()),
                Fetched::Nothing => fetched = entry.fetch(),
                Fetched::Idle => {
                    copy.give_back();
                    fetched = entry.give_back();
                }
                Fetched::Request => {
                    if queue.free.fetch_sub(1, SeqCst) == 1 {
                        self.order(number);
                    }
                    worker.begins();
                    if self.adapter.may_hang() {
                        match self.answer_watched(entry, &at_hand, &mut copy) {
                            Some(answered) => entry = answered,
                            // Its entry is another thread's now.
                            None => return Ok(()),
                        }
                    } else {
                        self.answer(&mut entry);
                    }
                    worker.ends();
                    guard.served();
                    queue.free.fetch_add(1, SeqCst);
                    fetched = entry.commit();
                }
            }
        }
    }

    /// The entry that a thread of queue `number` begins with, and what there is in it; the thread counts as free. None: the
    /// connection is gone.
    fn begin(&self, number: usize, first: FirstEntry) -> io::Result<Option<(Entry, Fetched)>> {
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
            FirstEntry::More => registered().map(Some),
            FirstEntry::Late => registered().inspect(|_| self.fetch_waiting()).map(Some),
            FirstEntry::Own(registered_sender) => {
                let (taken, answer) = match registered() {
                    Ok(taken) => (Some(taken), Ok(())),
                    Err(error) => (None, Err(error)),
                };
                // The opener of the transport waits for it.
                let _heard = registered_sender.send(answer);
                Ok(taken)
            }
            FirstEntry::TakenOver(taken_entry) => {
                let Some(mut entry) = taken_entry.take_over(&self.ending) else { return Ok(None) };
                queue.free.fetch_add(1, SeqCst);
                let fetched = entry.commit().inspect_err(|_| queue.is_left_by_one())?;
                Ok(Some((entry, fetched)))
            }
            FirstEntry::Again(taken_entry) => {
                let Some(entry) = taken_entry.take_over(&self.ending) else { return Ok(None) };
                queue.free.fetch_add(1, SeqCst);
                Ok(Some((entry, Fetched::Request)))
            }
        }
    }

    fn answer(&self, entry: &mut Entry) {
        let unique = entry.slot.unique();
        let parts = entry.slot.parts();
        let (out, len) = match Request::parse(self.adapter.abi(), parts.header, parts.op_in, parts.rest) {
            Err(refused) => (OutHeader::refused(unique, refused.errno()), 0),
            Ok(request) => {
                let mut answer = Answer::new(parts.answer);
                match self.serve_open(&request, &mut answer) {
                    Outcome::Answered => (answer.header(unique), answer.len()),
                    Outcome::Refused(errno) => (OutHeader::refused(unique, errno), 0),
                    Outcome::Silent => (OutHeader::answered(unique, 0), 0),
                }
            }
        };
        entry.slot.answer(out.as_bytes(), len);
    }

    /// Like [`Self::answer`], where another thread answers if this one does not come back from a branch: then the entry is
    /// that thread's. So a call that may hang never has the entry's own buffers: the request and its answer are kept apart,
    /// at the price of a copy.
    fn answer_watched(
        self: &Arc<Self>,
        mut entry: Entry,
        at_hand: &Arc<EntryAtHand>,
        copy: &mut RequestCopy,
    ) -> Option<Entry> {
        let unique = entry.slot.unique();
        let ([header, op_in, rest], answer) = copy.keep(entry.slot.request());
        let request = match Request::parse(self.adapter.abi(), header, op_in, rest) {
            Ok(request) => request,
            Err(refused) => {
                let out = OutHeader::refused(unique, refused.errno());
                entry.slot.put(out.as_bytes(), &[]);
                return Some(entry);
            }
        };
        let mut answer = Answer::new(answer);
        let transport: Arc<dyn ReplyTakeover> = at_hand.clone();
        let Entry { ring, slot, touched } = entry;
        at_hand.leave(unique, is_repeatable(&request), slot);
        let outcome = reply_takeover::at(&transport, unique, || self.serve_open(&request, &mut answer));
        let Some(mut slot) = at_hand.come_back() else {
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
        let touched = touched.max(answer.len()).max(rest.len());
        Some(Entry { ring, slot, touched })
    }

    /// Serves a request, unless the transport is closed.
    fn serve_open(&self, request: &Request<'_>, answer: &mut Answer<'_>) -> Outcome {
        match self.ending.refusal(&request.op) {
            Some(errno) => Outcome::Refused(errno),
            None => self.adapter.serve(request, answer),
        }
    }

    /// The connection is gone: everybody goes.
    fn end(&self) {
        self.ending.end();
        self.wake_grower();
        self.dismiss_spares();
    }
}
