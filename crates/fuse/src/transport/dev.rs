//! The transport at /dev/fuse: threads that each read one request, run it to its end, and write its answer.
//!
//! The device wakes its waiters first in, first out, whatever CPU they are on, so more waiting threads than CPUs make it
//! slower. One thread a CPU is there from the start, and for a single client only one of them reads (`readers`). Extra threads
//! are added only when all of them have been inside calls for a while (a slow branch, a wait for a lock). One more thread
//! notices that; it sleeps for good while any thread waits. An extra thread that finds others waiting for work rests. The
//! thread that takes a request when no other waits wakes a resting one. So programs in a slow branch, which come again and
//! again, keep no thread from others. An extra thread that has rested for a while ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fsstack_branch::health::reply_takeover::{self, ReplyTakeover};
use fsstack_engine::kept::slots;
use fsstack_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use fsstack_sync::thread::JoinHandle;
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Condvar, Mutex};
use fsstack_sys::thread;
use fsstack_wire::{Answer, Operation, OutHeader, Request};

use super::device::{self, BEFORE_DATA, Buffer, Taken};
use super::ending::{Closer, Ending};
use super::gate::{Gate, LockWait, Pauser};
use super::once;
use super::readers::{Readers, Waits, may_come_from_execve, may_take_long};
use super::repeatable::is_repeatable;
use super::request_at_hand::MessageAtHand;
use super::scheduling::{self, QueueScheduling, Scheduling, StarvationGuard};
use super::workers::{Worker, Workers, prepare_for_callers};
use crate::adapter::{Outcome, Serve};

/// Room for a request's headers besides its data.
const HEADERS: usize = 4096;
/// `F_UNLCK`.
const UNLOCK: u32 = 2;
/// Threads that wait for locks at once: each holds little more than its stack, 256 KiB of which a page or two are used.
const WAITERS: usize = 1024;

/// The transport.
#[derive(Debug)]
pub struct DevTransport {
    shared: Arc<DevShared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
pub(super) struct DevShared {
    pub(super) adapter: Arc<dyn Serve>,
    pub(super) device: OwnedFd,
    buffer: usize,
    scheduling: Scheduling,
    pub(super) base: usize,
    pub(super) max: usize,
    pub(super) readers: Readers,
    /// How the threads of each of the first CPUs are scheduled.
    tempos: Vec<QueueScheduling>,
    /// Threads that wait for a request.
    pub(super) waiting: AtomicUsize,
    /// How many of the helpers that rest are called but not back yet.
    pub(super) called: (Mutex<usize>, Condvar),
    pub(super) workers: Arc<Workers>,
    /// Threads that wait for locks.
    waiters: AtomicUsize,
    /// Requests that were begun: tells busy from stuck.
    pub(super) begun: AtomicU64,
    pub(super) ending: Arc<Ending>,
    /// Closed while the transport rests.
    pub(super) gate: Gate,
    /// Set when no thread waits any more; the watcher sleeps on it.
    pub(super) short: Mutex<bool>,
    pub(super) shortage: Condvar,
    /// The watcher sleeps: the last thread to begin a request wakes it.
    pub(super) asleep: AtomicBool,
}

impl DevTransport {
    /// Opens the transport of the connection behind `device`. Requests are not served before [`Self::begin`].
    ///
    /// # Errors
    /// No thread or descriptor is to be had.
    pub fn open(
        adapter: Arc<dyn Serve>,
        device: OwnedFd,
        payload: u32,
        max_threads: Option<usize>,
        scheduling: Scheduling,
    ) -> io::Result<Self> {
        fsstack_sys::handover::prepare_to_wake()?;
        let cpus = thread::allowed_cpus();
        let max = max_threads.unwrap_or(64).max(1);
        let base = cpus.len().clamp(1, max);
        let shared = Arc::new(DevShared {
            adapter,
            device,
            buffer: usize::try_from(payload).unwrap_or(1 << 20) + HEADERS,
            scheduling: scheduling.settled(),
            base,
            max,
            // Nobody could be added for the only thread that reads, when it is stuck.
            readers: Readers::new(base, &cpus, base < max),
            tempos: (0..base).map(|_| QueueScheduling::default()).collect(),
            waiting: AtomicUsize::new(0),
            called: Default::default(),
            workers: Workers::new(max),
            waiters: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            ending: Arc::default(),
            gate: Gate::default(),
            short: Mutex::new(false),
            shortage: Condvar::new(),
            asleep: AtomicBool::new(true),
        });
        let devices: Vec<OwnedFd> =
            (0..base).map(|_| device::clone_device(shared.device.as_fd())).collect::<io::Result<_>>()?;
        let mut threads = Vec::with_capacity(base + 1);
        // If one cannot be started, no request was served, and the program before goes on with the same state.
        shared.gate.close();
        for (index, device) in devices.into_iter().enumerate() {
            threads.push(shared.start(index, device)?);
        }
        // Also where no more threads may be: those that step aside do not count.
        let watched = shared.clone();
        let watcher = fsstack_sync::thread::Builder::new().name("fuse-watch".into());
        threads.push(watcher.spawn(move || watched.watch())?);
        Ok(Self { shared, threads })
    }

    /// Serves requests from now on, and `waits`, which another program has left.
    pub fn begin(&self, waits: Vec<LockWait>) {
        // Before anybody reads that one of them is given up.
        self.shared.wait_again(waits);
        self.shared.gate.open();
    }

    /// Returns the handle that closes it before its mount is removed.
    pub fn closer(&self) -> Closer {
        Closer::new(&self.shared.ending, &self.shared.workers)
    }

    /// Returns what brings it to rest between two requests.
    pub fn pauser(&self) -> Pauser {
        Pauser::new(&self.shared)
    }

    /// Serves until the mount is gone. What takes long then has until `timeout` is over.
    pub fn wait(self, timeout: Duration) {
        self.shared.ending.wait(&self.shared.workers, self.threads, timeout);
    }
}

impl DevShared {
    pub(super) fn start(self: &Arc<Self>, index: usize, device: OwnedFd) -> io::Result<JoinHandle<()>> {
        let shared = self.clone();
        let cpu = self.readers.cpu(index);
        let membership = self.workers.enter(index);
        fsstack_sync::thread::Builder::new().name(format!("fuse-{index}")).spawn(move || {
            shared.scheduling.apply(cpu);
            prepare_for_callers();
            if let Err(error) = shared.serve(&device, membership.worker()) {
                tracing::error!(%error, "transport: a thread of /dev/fuse ended before its start");
            }
        })
    }

    fn serve(self: &Arc<Self>, device: &OwnedFd, worker: &Arc<Worker>) -> io::Result<()> {
        let number = worker.number();
        let helper = number >= self.base;
        let mut incoming = Buffer::new(self.buffer, BEFORE_DATA)?;
        let mut outgoing = Buffer::new(self.buffer, 0)?;
        let (incoming, outgoing) = (incoming.space(), outgoing.space());
        if self.adapter.kept().is_some() {
            // All pages are there: the kernel fails a request with EIO whose reader is killed while a page is made for it.
            incoming.fill(0);
        }
        let mut guard = StarvationGuard::new(self.scheduling, &self.tempos[number % self.base]);
        let at_hand = MessageAtHand::new(self, device, Some(worker))?;
        reply_takeover::of(worker.clone());
        worker.reading.is_mine();
        let mut rested = None;
        loop {
            while helper && (self.waiting.load(Relaxed) >= self.base || self.readers.has_single_reader()) {
                // Where no branch may hang they came because a CPU was busy, and would only take turns with the others.
                if !self.adapter.may_hang() || !self.rest(worker, *rested.get_or_insert_with(Instant::now)) {
                    return Ok(());
                }
            }
            if !helper {
                self.readers.wait_to_read(number);
            }
            self.gate.pass(&worker.reading);
            self.waiting.fetch_add(1, SeqCst);
            let taken = device::take(device.as_fd(), incoming);
            let others = self.waiting.fetch_sub(1, SeqCst) - 1;
            if matches!(taken, Ok(Taken::Request(_))) {
                worker.begins();
            }
            worker.reading.is_over();
            match taken {
                Ok(Taken::Nothing) => continue,
                Ok(Taken::Gone) => return self.leave(),
                Ok(Taken::Request(len)) => {
                    self.begun.fetch_add(1, Relaxed);
                    rested = None;
                    if others == 0 && !self.call_one() && self.asleep.load(SeqCst) {
                        self.raise_alarm();
                    }
                    self.readers.goes_in(number);
                    self.answer(device, &at_hand, &incoming[..len], outgoing);
                    worker.ends();
                    self.readers.comes_out(number);
                    guard.served();
                }
                Err(error) if self.ending.outlasts(&error) => {}
                Err(_) => return self.leave(),
            }
        }
    }

    fn answer(
        self: &Arc<Self>,
        device: &OwnedFd,
        at_hand: &Arc<MessageAtHand>,
        message: &[u8],
        outgoing: &mut [u8],
    ) {
        let request = match Request::parse_contiguous(self.adapter.abi(), message) {
            Ok(request) => request,
            Err(refused) => {
                if let Some(unique) = refused.unique {
                    report(device::refuse(device.as_fd(), &OutHeader::refused(unique, refused.errno())));
                }
                return;
            }
        };
        if let Some(errno) = self.ending.refusal(&request.op) {
            return report(device::refuse(device.as_fd(), &OutHeader::refused(request.header.unique, errno)));
        }
        // flock(2) gives a lock up by a request that may wait, too.
        if matches!(&request.op, Operation::Setlkw(lk) if lk.lock.kind != UNLOCK) {
            return self.answer_later(device, request.header.unique, message.to_vec());
        }
        if may_take_long(&request.op) {
            if self.readers.has_single_reader() {
                self.readers.all_read();
            }
        } else if !may_come_from_execve(&request.op) {
            self.readers.seen(at_hand.number(), request.header.pid, self.waits());
        }
        if self.adapter.may_hang() {
            let _never = self.run_watched(device.as_fd(), at_hand, (&request, message), outgoing);
            return;
        }
        self.run(device.as_fd(), &request, outgoing);
    }

    /// Current reason for long stays inside.
    fn waits(&self) -> Waits {
        if !self.adapter.may_hang() {
            Waits::ForCpus
        } else if self.base < self.workers.working() + self.workers.resting() + self.workers.aside() {
            Waits::Helped
        } else {
            Waits::ForBranches
        }
    }

    /// Like [`Self::run`], where another thread answers if this one does not come back from a branch. Returns whether the request, a
    /// wait for a lock, is put off: nobody has answered it.
    fn run_watched(
        &self,
        device: BorrowedFd<'_>,
        at_hand: &Arc<MessageAtHand>,
        (request, message): (&Request<'_>, &[u8]),
        outgoing: &mut [u8],
    ) -> bool {
        let unique = request.header.unique;
        if let Some(earlier) = once::begin(&*self.adapter, request) {
            once::give(&*self.adapter, device, request, earlier, outgoing);
            return false;
        }
        let mut answer = Answer::new(outgoing);
        let transport: Arc<dyn ReplyTakeover> = at_hand.clone();
        at_hand.begin(unique, is_repeatable(request).then_some(message));
        let outcome = reply_takeover::at(&transport, unique, || self.adapter.serve(request, &mut answer));
        match outcome {
            Outcome::Answered if !at_hand.end() => self.adapter.take_back(request, answer.as_bytes()),
            Outcome::Answered => self.give(device, request, &answer),
            Outcome::Refused(_) if at_hand.is_lock_wait() && self.was_put_off(unique) => {
                return at_hand.end();
            }
            Outcome::Refused(errno) if at_hand.end() => {
                slots::refused(errno);
                report(device::refuse(device, &OutHeader::refused(unique, errno)));
            }
            Outcome::Refused(_) => {}
            Outcome::Silent => {
                let _nobody_waits = at_hand.end();
            }
        }
        slots::over();
        false
    }

    /// Gives `answer` to the kernel. What it does not take it does not count: that is given up.
    fn give(&self, device: BorrowedFd<'_>, request: &Request<'_>, answer: &Answer<'_>) {
        slots::performed(answer.as_bytes());
        let given = device::answer(device, &answer.header(request.header.unique), answer);
        if given.is_err() {
            self.adapter.take_back(request, answer.as_bytes());
        }
        report(given);
    }

    /// Has another thread serve the request `message`, which came by `device` and thread `number`: false if there is none.
    pub(super) fn serve_again(self: &Arc<Self>, device: &OwnedFd, number: usize, message: &[u8]) -> bool {
        let (shared, message) = (self.clone(), message.to_vec());
        // Not by the same number: it may be back before this one is stuck, too.
        let membership = self.workers.enter(self.readers.number_of_substitute(number));
        // Before its thread runs: a pause must not take it for no request.
        membership.worker().begins();
        let started = device.try_clone().and_then(|device| {
            let at_hand = MessageAtHand::new(self, &device, Some(membership.worker()))?;
            let thread = fsstack_sync::thread::Builder::new().name("fuse-again".into());
            thread.spawn(move || {
                scheduling::leave();
                prepare_for_callers();
                if let Ok(request) = Request::parse_contiguous(shared.adapter.abi(), &message) {
                    let mut outgoing = vec![0; shared.buffer];
                    let _never =
                        shared.run_watched(device.as_fd(), &at_hand, (&request, &message), &mut outgoing);
                }
                membership.worker().ends();
            })
        });
        if let Err(error) = &started {
            tracing::warn!(%error, "interrupted request: cannot start a thread to serve it again");
        }
        started.is_ok()
    }

    fn run(&self, device: BorrowedFd<'_>, request: &Request<'_>, outgoing: &mut [u8]) {
        let unique = request.header.unique;
        if let Some(earlier) = once::begin(&*self.adapter, request) {
            return once::give(&*self.adapter, device, request, earlier, outgoing);
        }
        let mut answer = Answer::new(outgoing);
        match self.adapter.serve(request, &mut answer) {
            Outcome::Answered => self.give(device, request, &answer),
            Outcome::Refused(errno) => {
                slots::refused(errno);
                report(device::refuse(device, &OutHeader::refused(unique, errno)));
            }
            Outcome::Silent => {}
        }
        slots::over();
    }

    /// A wait for a lock may last for ever, and the request that ends it must find a thread: so each wait has its own, one
    /// of [`WAITERS`]. If all are waiting the request gets ENOLCK, as on a system that has no locks left.
    fn answer_later(self: &Arc<Self>, device: &OwnedFd, unique: u64, message: Vec<u8>) {
        // Before anybody can have read that it is given up, but for a moment.
        self.adapter.will_wait(unique);
        let number = Waiter::of(self);
        // An answer is taken only by the descriptor that gave the request, or a duplicate of it.
        let waiter = number.and_then(|number| {
            let device = device.try_clone()?;
            let at_hand = MessageAtHand::new(self, &device, None)?;
            let thread = fsstack_sync::thread::Builder::new().name("lock-wait".into()).stack_size(256 << 10);
            thread.spawn(move || {
                scheduling::leave();
                let shared = &number.0;
                let request = Request::parse_contiguous(shared.adapter.abi(), &message);
                let put_off = request.is_ok_and(|request| {
                    shared.run_watched(device.as_fd(), &at_hand, (&request, &message), &mut [0; 256])
                });
                shared.adapter.will_not_wait(unique);
                if put_off && let Err(wait) = shared.gate.put_off(LockWait { device, message }) {
                    shared.wait_again(vec![wait]);
                }
            })
        });
        if let Err(error) = waiter {
            tracing::warn!(%error, "lock request: cannot start a thread to wait for it");
            self.adapter.will_not_wait(unique);
            let none_left = rustix::io::Errno::NOLCK.raw_os_error();
            report(device::refuse(device.as_fd(), &OutHeader::refused(unique, none_left)));
        }
    }

    /// Serves waits for locks that were put off.
    pub(super) fn wait_again(self: &Arc<Self>, waits: Vec<LockWait>) {
        for LockWait { device, message } in waits {
            let unique =
                Request::parse_contiguous(self.adapter.abi(), &message).map(|request| request.header.unique);
            if let Ok(unique) = unique {
                self.answer_later(&device, unique, message);
            }
        }
    }

    /// Answers a wait that was put off if its caller has given it up since; whether it has.
    pub(super) fn end_given_up(&self, wait: &LockWait) -> bool {
        let request = Request::parse_contiguous(self.adapter.abi(), &wait.message);
        let Ok(unique) = request.map(|request| request.header.unique) else { return false };
        let given_up = self.adapter.interrupts().is_some_and(|interrupts| interrupts.was_given_up(unique));
        if given_up {
            let interrupted = rustix::io::Errno::INTR.raw_os_error();
            report(device::refuse(wait.device.as_fd(), &OutHeader::refused(unique, interrupted)));
        }
        given_up
    }

    /// All waits for locks end without an answer from now on, or go on.
    pub(super) fn put_waits_off(&self, put_off: bool) {
        self.adapter.interrupts().into_iter().for_each(|interrupts| interrupts.put_all_off(put_off));
    }

    fn was_put_off(&self, unique: u64) -> bool {
        self.adapter.interrupts().is_some_and(|interrupts| interrupts.was_put_off(unique))
    }

    /// Threads that wait for locks.
    pub(super) fn waiting_for_locks(&self) -> usize {
        self.waiters.load(SeqCst)
    }

    /// The thread `worker` is stuck, and its request was answered.
    pub(super) fn lost_one(self: &Arc<Self>, worker: &Worker) {
        worker.is_stuck();
        self.readers.lost(worker.number());
        if self.waiting.load(SeqCst) == 0 && !self.ending.is_gone() {
            self.add_extra_worker(self.readers.number_of_substitute(worker.number()));
        }
    }

    /// The thread `worker`, which was stuck, is back.
    pub(super) fn found_again(&self, worker: &Worker) {
        self.readers.found(worker.number());
        worker.is_back();
    }

    fn leave(&self) -> io::Result<()> {
        self.ending.end();
        self.readers.end();
        // A thread about to rest holds the lock between its check and its wait.
        drop(self.called.0.lock());
        self.called.1.notify_all();
        self.raise_alarm();
        Ok(())
    }
}

/// One of the threads that wait for locks.
struct Waiter(Arc<DevShared>);

impl Waiter {
    fn of(shared: &Arc<DevShared>) -> io::Result<Self> {
        let number = Self(shared.clone());
        if shared.waiters.fetch_add(1, SeqCst) < WAITERS {
            Ok(number)
        } else {
            Err(io::Error::other(format!("{WAITERS} wait already")))
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let before = self.0.waiters.fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "more threads stopped waiting for locks than began");
    }
}

pub(super) fn report(written: Result<(), rustix::io::Errno>) {
    // ENOENT: the request was given up; ENODEV: the mount is gone.
    if let Err(error) = written
        && !matches!(error, rustix::io::Errno::NOENT | rustix::io::Errno::NODEV)
    {
        tracing::error!(%error, "writing a reply to /dev/fuse failed; its caller may wait until it is killed");
    }
}
