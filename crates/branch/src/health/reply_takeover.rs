//! Answering for a thread that is stuck in a call.
//!
//! A worker thread serves a request to its end, and a branch may never let it return. So while it serves a request that
//! another thread could answer, it registers a responder here ([`at`]). A call into a branch keeps that responder, and
//! the branch's monitor uses it when the call has overstayed. Whether the request is still the same and unanswered is known
//! under one lock, that of [`RequestAtHand`]. A request that only reads is served again: by then the branch is closed, and the
//! answer comes from the other branches.
//!
//! A request may also wait for another one: for a permit of a branch, or until its file has been moved. Meanwhile its
//! worker thread does not count ([`of`], `aside`), and the transport may start another one in its place.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::sync::Arc;

use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Answers requests in place of the worker thread that serves them.
pub trait ReplyTakeover: Send + Sync + Debug {
    /// Has the request `request_id` of the thread served again by another thread if that is safe, else answers it with
    /// EIO; does nothing if it was answered. False if that failed and is to be retried.
    fn refuse(&self, request_id: u64) -> bool;
}

/// The request that a thread serves, with what its answer needs. One lock decides who answers: that thread, or another one that
/// takes over.
#[derive(Debug)]
pub struct RequestAtHand<T>(Mutex<Option<(u64, T)>>);

impl<T> Default for RequestAtHand<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> RequestAtHand<T> {
    /// The thread begins the request `request_id`, whose answer needs `with`.
    pub fn begin(&self, request_id: u64, with: T) {
        *self.0.lock() = Some((request_id, with));
    }

    /// The thread has served the request: returns what it began it with if the answer is its to give.
    pub fn end(&self) -> Option<T> {
        self.0.lock().take().map(|(_, with)| with)
    }

    /// Has the request `request_id` answered by `answer`, which returns what it was given if it cannot. False if so; does nothing
    /// if the request was answered. The thread does not leave [`Self::end`] meanwhile.
    pub fn take_over(&self, request_id: u64, answer: impl FnOnce(T) -> Result<(), T>) -> bool {
        let mut at_hand = self.0.lock();
        let Some((_, with)) = at_hand.take_if(|(current, _)| *current == request_id) else { return true };
        *at_hand = answer(with).err().map(|with| (request_id, with));
        at_hand.is_none()
    }
}

/// A request that another thread can answer.
#[derive(Clone, Debug)]
pub(crate) struct Responder {
    transport: Arc<dyn ReplyTakeover>,
    request_id: u64,
    given_up: Arc<AtomicBool>,
}

impl Responder {
    /// The request is about to be answered. Under the lock by which its thread leaves the call: [`is_given_up`] is true from
    /// then on.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, SeqCst);
    }

    pub(crate) fn refuse(&self) -> bool {
        self.transport.refuse(self.request_id)
    }
}

fsstack_sync::thread_local! {
    static RESPONDER: RefCell<Option<Responder>> = const { RefCell::new(None) };
}

/// Serves the request `request_id` by `work`; meanwhile `transport` can answer in its place.
pub fn at<T>(transport: &Arc<dyn ReplyTakeover>, request_id: u64, work: impl FnOnce() -> T) -> T {
    /// Removes the responder, also when `work` panics.
    struct ClearResponder;
    impl Drop for ClearResponder {
        fn drop(&mut self) {
            RESPONDER.set(None);
        }
    }
    RESPONDER.set(Some(Responder { transport: transport.clone(), request_id, given_up: Arc::default() }));
    let _leaves = ClearResponder;
    work()
}

/// Returns the responder of the request that the calling thread serves, if it has one.
pub(crate) fn responder() -> Option<Responder> {
    RESPONDER.with_borrow(Clone::clone)
}

/// True if the request that the calling thread serves was given up in an earlier call: it was answered with EIO, and its caller may
/// have gone on. Bytes written then would replace those that the caller has written since.
pub fn is_given_up() -> bool {
    RESPONDER.with_borrow(|responder| responder.as_ref().is_some_and(|known| known.given_up.load(SeqCst)))
}

/// Worker threads of a transport.
pub trait WorkerThread: Send + Sync + Debug {
    /// The calling thread starts to wait for another request. True: it does not count as a worker meanwhile. False: too
    /// many threads wait already, so it counts.
    fn steps_aside(&self) -> bool;
    /// The thread has ended its wait.
    fn steps_back(&self);
}

fsstack_sync::thread_local! {
    static WORKER: RefCell<Option<Arc<dyn WorkerThread>>> = const { RefCell::new(None) };
}

/// Registers the calling thread as one of `worker`, for its lifetime.
pub fn of(worker: Arc<dyn WorkerThread>) {
    WORKER.set(Some(worker));
}

fsstack_sync::thread_local! {
    static IS_ASIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `wait`, which waits for another request or works for long. Nested calls have no further effect.
pub fn aside<T>(wait: impl FnOnce() -> T) -> T {
    /// Ends the wait, also when `wait` panics.
    struct StepBack(Option<Arc<dyn WorkerThread>>);
    impl Drop for StepBack {
        fn drop(&mut self) {
            if let Some(worker) = self.0.take() {
                IS_ASIDE.set(false);
                worker.steps_back();
            }
        }
    }
    let worker = if IS_ASIDE.get() { None } else { WORKER.with_borrow(Clone::clone) };
    let back = StepBack(worker.filter(|worker| worker.steps_aside()));
    if back.0.is_some() {
        IS_ASIDE.set(true);
    }
    wait()
}
