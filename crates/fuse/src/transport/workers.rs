//! The threads of a transport, and in which count each of them is.
//!
//! A thread is working, or resting, or aside (it waits for another request, or its own takes long), or stuck (another
//! thread answered its request). A [`Worker`] moves between these; no count is changed by hand. How often a member began
//! and ended a request is its pulse, which costs two additions a request. A look at the pulses tells which request has been
//! served for long: its thread then counts as aside, so that slow calls on a local disk leave threads for everybody else.

use std::sync::{Arc, OnceLock};

use fsstack_branch::health::reply_takeover::WorkerThread;
use fsstack_sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Condvar, Mutex};
use fsstack_sys::thread::ThreadId;

use super::gate::Reading;

/// For each thread that may be at work, so many may be aside.
const ASIDE_PER_WORKER: usize = 8;
/// Time after which a request counts as long.
const LONG_REQUEST_AFTER: Duration = Duration::from_millis(100);
/// Bit of a pulse: the request counts as long. The other bits count beginnings and ends, so an odd number is a request.
const IS_LONG: u64 = 1 << 63;
/// Pause between two looks at worker threads that are waited for.
const WORKERS_LOOK_PAUSE: Duration = Duration::from_millis(2);

/// Threads of a transport.
#[derive(Debug)]
pub(super) struct Workers {
    rows: Mutex<Vec<WorkerRow>>,
    /// A member left.
    ended: Condvar,
    counts: [AtomicUsize; 4],
    most_aside: usize,
}

/// Count that a thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerState {
    Working,
    Resting,
    Aside,
    Stuck,
}

/// Reasons why a thread does not count as working.
#[derive(Clone, Copy, Debug, Default)]
struct Reasons {
    rests: bool,
    /// It waits for another request.
    waits: bool,
    /// Its request takes long.
    is_long: bool,
    /// Another thread answered its request.
    is_stuck: bool,
}

#[derive(Debug)]
struct WorkerRow {
    worker: Arc<Worker>,
    reasons: Reasons,
    /// Pulse at the last look, and when it was first seen.
    seen: (u64, Instant),
}

/// One thread of a transport, in cache lines of its own: it writes its pulse at each request.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Worker {
    workers: Arc<Workers>,
    /// CPU's queue or number.
    number: usize,
    pulse: AtomicU64,
    pub(super) reading: Reading,
    /// Its thread, once that has started.
    thread: OnceLock<ThreadId>,
}

/// A thread's membership, which ends when this drops.
#[derive(Debug)]
pub(super) struct WorkerGuard(Arc<Worker>);

impl Reasons {
    fn state(self) -> WorkerState {
        match self {
            Self { is_stuck: true, .. } => WorkerState::Stuck,
            Self { waits: true, .. } | Self { is_long: true, .. } => WorkerState::Aside,
            Self { rests: true, .. } => WorkerState::Resting,
            _ => WorkerState::Working,
        }
    }
}

impl Workers {
    /// A list of workers on which `ASIDE_PER_WORKER` times `max` threads may be aside.
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            rows: Mutex::default(),
            ended: Condvar::new(),
            counts: Default::default(),
            most_aside: ASIDE_PER_WORKER * max,
        })
    }

    /// Counts one more thread as working. It may be started after that.
    pub(super) fn enter(self: &Arc<Self>, number: usize) -> WorkerGuard {
        let worker = Arc::new(Worker {
            workers: self.clone(),
            number,
            pulse: AtomicU64::new(0),
            reading: Reading::default(),
            thread: OnceLock::new(),
        });
        let mut rows = self.rows.lock();
        rows.push(WorkerRow {
            worker: worker.clone(),
            reasons: Reasons::default(),
            seen: (0, Instant::now()),
        });
        self.count(WorkerState::Working).fetch_add(1, SeqCst);
        self.check(&rows);
        WorkerGuard(worker)
    }

    /// Threads that work, or wait for a request.
    pub(super) fn working(&self) -> usize {
        self.count(WorkerState::Working).load(SeqCst)
    }

    /// Threads that rest.
    pub(super) fn resting(&self) -> usize {
        self.count(WorkerState::Resting).load(SeqCst)
    }

    /// Threads that wait for another request, or whose own takes long.
    pub(super) fn aside(&self) -> usize {
        self.count(WorkerState::Aside).load(SeqCst)
    }

    /// Most threads that may be aside.
    pub(super) fn most_aside(&self) -> usize {
        self.most_aside
    }

    /// All threads, and how many of them belong to `number`.
    pub(super) fn all_and_at(&self, number: usize) -> (usize, usize) {
        let rows = self.rows.lock();
        (rows.len(), rows.iter().filter(|row| row.worker.number == number).count())
    }

    /// Whether a thread of `number` runs, or would if it had a processor, or is about to start. Those that are stuck do not
    /// count, nor those that wait for another request: there may be hundreds, and each state is a file to be read.
    pub(super) fn is_any_runnable(&self, number: usize) -> bool {
        let counts = |reasons: Reasons| !reasons.is_stuck && !reasons.waits;
        let rows = self.rows.lock();
        let own = rows.iter().filter(|row| row.worker.number == number && counts(row.reasons));
        let threads: Vec<_> = own.map(|row| row.worker.thread.get().copied()).collect();
        drop(rows);
        threads.into_iter().any(|thread| thread.is_none_or(ThreadId::is_runnable))
    }

    /// Looks at all requests: those that take long put their threads aside. Returns how many unanswered requests were being
    /// served at an earlier look, too.
    pub(super) fn look(&self) -> usize {
        let (now, mut inside) = (Instant::now(), 0);
        let mut rows = self.rows.lock();
        for at in 0..rows.len() {
            let row = &mut rows[at];
            let pulse = row.worker.pulse.load(SeqCst);
            let is_served = pulse & 1 == 1;
            let beat = pulse & !IS_LONG;
            if !is_served || row.seen.0 != beat {
                row.seen = (beat, now);
                continue;
            }
            inside += usize::from(!row.reasons.is_stuck);
            let counts =
                row.reasons.state() == WorkerState::Working && row.seen.1 + LONG_REQUEST_AFTER <= now;
            if counts && self.aside() < self.most_aside {
                // The request may end at this moment.
                let marked = row.worker.pulse.compare_exchange(pulse, pulse | IS_LONG, SeqCst, SeqCst);
                if marked.is_ok() {
                    self.change(&mut rows, at, |reasons| reasons.is_long = true);
                }
            }
        }
        inside
    }

    /// Wakes the threads that sit in a read of the device: how many there were, and how many others are inside a request, be it
    /// answered by another thread.
    pub(super) fn wake_readers(&self) -> (usize, usize) {
        let rows = self.rows.lock();
        let reading = rows.iter().filter(|row| row.worker.reading.wake()).count();
        // Their requests are counted before they say that they do not read.
        let inside = rows.iter().filter(|row| row.worker.pulse.load(SeqCst) & 1 == 1).count();
        (reading, inside)
    }

    /// Waits until no thread works, and for those that are aside until `deadline`. Those that are stuck are not waited for.
    pub(super) fn wait_until_ended(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        loop {
            self.look();
            let mut rows = self.rows.lock();
            let at_work = self.working() + self.resting();
            if at_work == 0 && (self.aside() == 0 || deadline <= Instant::now()) {
                return;
            }
            self.ended.wait_for(&mut rows, WORKERS_LOOK_PAUSE);
        }
    }

    fn count(&self, state: WorkerState) -> &AtomicUsize {
        &self.counts[state as usize]
    }

    fn change(&self, rows: &mut [WorkerRow], at: usize, by: impl FnOnce(&mut Reasons)) {
        let before = rows[at].reasons.state();
        by(&mut rows[at].reasons);
        let after = rows[at].reasons.state();
        if before != after {
            self.count(after).fetch_add(1, SeqCst);
            self.count(before).fetch_sub(1, SeqCst);
        }
        self.check(rows);
    }

    /// Every thread is in one count.
    fn check(&self, rows: &[WorkerRow]) {
        debug_assert_eq!(
            self.counts.iter().map(|count| count.load(SeqCst)).sum::<usize>(),
            rows.len(),
            "the counts of the roster are not its threads"
        );
    }
}

impl Worker {
    /// Its CPU's queue or number.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// The calling thread is its thread.
    pub(super) fn starts(&self) {
        let _first = self.thread.set(ThreadId::own());
    }

    /// It has taken a request.
    pub(super) fn begins(&self) {
        self.pulse.fetch_add(1, SeqCst);
    }

    /// It is done with its request.
    pub(super) fn ends(&self) {
        if self.pulse.fetch_add(1, SeqCst) & IS_LONG != 0 {
            self.pulse.fetch_and(!IS_LONG, SeqCst);
            self.change(|reasons| reasons.is_long = false);
        }
    }

    /// Another thread answered its request.
    pub(super) fn is_stuck(&self) {
        self.change(|reasons| reasons.is_stuck = true);
    }

    /// It has come back from the request that another thread answered.
    pub(super) fn is_back(&self) {
        self.change(|reasons| reasons.is_stuck = false);
    }

    /// It rests until it is called.
    pub(super) fn rests(&self) {
        self.change(|reasons| reasons.rests = true);
    }

    /// It rests no longer.
    pub(super) fn resumes(&self) {
        self.change(|reasons| reasons.rests = false);
    }

    fn change(&self, by: impl FnOnce(&mut Reasons)) {
        let mut rows = self.workers.rows.lock();
        let own = rows.iter().position(|row| std::ptr::eq(&raw const *row.worker, self));
        // It left: nobody counts it any more.
        if let Some(at) = own {
            self.workers.change(&mut rows, at, by);
        }
    }
}

impl WorkerThread for Worker {
    fn steps_aside(&self) -> bool {
        if self.workers.most_aside <= self.workers.aside() {
            return false;
        }
        self.change(|reasons| reasons.waits = true);
        true
    }

    fn steps_back(&self) {
        self.change(|reasons| reasons.waits = false);
    }
}

impl WorkerGuard {
    /// The member.
    pub(super) fn worker(&self) -> &Arc<Worker> {
        &self.0
    }
}

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        let workers = &self.0.workers;
        let mut rows = workers.rows.lock();
        if let Some(at) = rows.iter().position(|row| Arc::ptr_eq(&row.worker, &self.0)) {
            let row = rows.swap_remove(at);
            workers.count(row.reasons.state()).fetch_sub(1, SeqCst);
        }
        workers.check(&rows);
        workers.ended.notify_all();
    }
}

/// Lets the calling thread, which will serve requests, take their callers' identities.
pub(super) fn prepare_for_callers() {
    if let Err(error) = fsstack_sys::identity::keep_capabilities() {
        tracing::warn!(%error, "transport: a thread cannot take callers' identities");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(workers: &Workers) -> [usize; 3] {
        [workers.working(), workers.aside(), workers.resting()]
    }

    /// Looks until `done`.
    fn looked_until(workers: &Workers, done: impl Fn(&Workers) -> bool) {
        let began = Instant::now();
        while !done(workers) {
            assert!(began.elapsed() < Duration::from_secs(60), "{workers:?}");
            workers.look();
            fsstack_sync::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_thread_stuck_while_aside_is_counted_once() {
        let workers = Workers::new(1);
        let (caught, other) = (workers.enter(0), workers.enter(0));
        assert!(caught.worker().steps_aside());
        assert_eq!(counts(&workers), [1, 1, 0]);
        caught.worker().is_stuck();
        assert_eq!(counts(&workers), [1, 0, 0]);
        // Back from the wait, not from the branch; then the other way round.
        caught.worker().steps_back();
        assert_eq!(counts(&workers), [1, 0, 0]);
        caught.worker().is_back();
        assert_eq!(counts(&workers), [2, 0, 0]);
        other.worker().rests();
        drop((caught, other));
        assert_eq!(counts(&workers), [0, 0, 0]);
    }

    #[test]
    fn so_many_wait_and_no_more() {
        let workers = Workers::new(1);
        let all: Vec<_> = (0..=ASIDE_PER_WORKER).map(|number| workers.enter(number)).collect();
        assert!(all[..ASIDE_PER_WORKER].iter().all(|one| one.worker().steps_aside()));
        assert!(!all[ASIDE_PER_WORKER].worker().steps_aside());
        all[0].worker().steps_back();
        assert!(all[ASIDE_PER_WORKER].worker().steps_aside());
    }

    #[test]
    fn a_thread_whose_request_takes_long_is_aside_until_it_is_done() {
        let workers = Workers::new(1);
        let (slow, idle) = (workers.enter(0), workers.enter(1));
        slow.worker().begins();
        looked_until(&workers, |workers| workers.aside() == 1);
        assert_eq!(workers.look(), 1);
        // It waits for another request besides.
        assert!(slow.worker().steps_aside());
        slow.worker().steps_back();
        assert_eq!(counts(&workers), [1, 1, 0]);
        slow.worker().ends();
        assert_eq!(counts(&workers), [2, 0, 0]);
        assert_eq!(workers.look(), 0);
        drop(idle);
    }

    #[test]
    fn a_queue_whose_threads_wait_has_none_that_is_runnable() {
        let workers = Workers::new(1);
        assert!(!workers.is_any_runnable(0));
        let (here, elsewhere) = (workers.enter(0), workers.enter(1));
        assert!(workers.is_any_runnable(0), "its thread is about to start");
        here.worker().starts();
        assert!(workers.is_any_runnable(0), "it runs");
        let (sender, receiver) = fsstack_sync::mpsc::channel::<()>();
        let waits = fsstack_sync::thread::spawn(move || {
            elsewhere.worker().starts();
            receiver.recv().unwrap();
        });
        while workers.is_any_runnable(1) {
            fsstack_sync::thread::yield_now();
        }
        sender.send(()).unwrap();
        waits.join().unwrap();
        assert!(here.worker().steps_aside());
        assert!(!workers.is_any_runnable(0), "it waits for another request");
        here.worker().steps_back();
        assert!(workers.is_any_runnable(0));
        here.worker().is_stuck();
        assert!(!workers.is_any_runnable(0));
    }

    #[test]
    fn the_end_waits_for_working_threads_and_not_for_stuck_ones() {
        let workers = Workers::new(1);
        let (stuck, works) = (workers.enter(0), workers.enter(1));
        stuck.worker().is_stuck();
        let (waits, ended) = (workers.clone(), fsstack_sync::mpsc::channel());
        let waiter = fsstack_sync::thread::spawn(move || {
            waits.wait_until_ended(Duration::from_secs(3600));
            ended.0.send(()).unwrap();
        });
        assert!(ended.1.recv_timeout(Duration::from_millis(50)).is_err(), "one of them still works");
        drop(works);
        ended.1.recv_timeout(Duration::from_secs(60)).unwrap();
        waiter.join().unwrap();
        drop(stuck);
    }
}
