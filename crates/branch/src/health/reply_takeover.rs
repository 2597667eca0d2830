//! Answering for a thread that is stuck in a call.
//!
//! A worker thread runs a request to its end, and a branch may never let it come back. So while it serves a request that
//! another thread could answer in its place, it registers a responder here ([`at`]). A call into a branch takes that along,
//! and the branch's monitor uses it when the call has overstayed. The transport itself knows, under a lock of its own,
//! whether the request is still the same and not answered yet. A request that only reads is served again: by then the branch
//! is closed, and the answer comes from the other branches.
//!
//! A request may also wait for another one: for a permit of a branch, or until its file has been moved. A worker thread
//! steps aside meanwhile ([`of`], `aside`), and the transport may start another one in its place.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::sync::Arc;

/// Responder that a worker thread leaves behind while it serves.
pub trait ReplyTakeover: Send + Sync + Debug {
    /// Has the request `request_id` of the thread served again by another thread, if it may be; else answers it with EIO. Not if
    /// it has been answered. False: it could not be, and is to be tried again.
    fn refuse(&self, request_id: u64) -> bool;
}

/// A request that somebody else can answer.
#[derive(Clone, Debug)]
pub(crate) struct Responder {
    transport: Arc<dyn ReplyTakeover>,
    request_id: u64,
}

impl Responder {
    pub(crate) fn refuse(&self) -> bool {
        self.transport.refuse(self.request_id)
    }
}

thread_local! {
    static RESPONDER: RefCell<Option<Responder>> = const { RefCell::new(None) };
}

/// Serves the request `request_id` by `work`: meanwhile `transport` can refuse it.
pub fn at<T>(transport: &Arc<dyn ReplyTakeover>, request_id: u64, work: impl FnOnce() -> T) -> T {
    /// Leaves the desk, also when `work` panics.
    struct ClearResponder;
    impl Drop for ClearResponder {
        fn drop(&mut self) {
            RESPONDER.set(None);
        }
    }
    RESPONDER.set(Some(Responder { transport: transport.clone(), request_id }));
    let _leaves = ClearResponder;
    work()
}

/// The request that the calling thread serves, if another could answer it.
pub(crate) fn responder() -> Option<Responder> {
    RESPONDER.with_borrow(Clone::clone)
}

/// Worker threads of a transport.
pub trait WorkerThread: Send + Sync + Debug {
    /// The calling thread is going to wait for another request. True: it does not count as long as it does; false: there
    /// are so many already that it counts.
    fn steps_aside(&self) -> bool;
    /// It is back.
    fn steps_back(&self);
}

thread_local! {
    static WORKER: RefCell<Option<Arc<dyn WorkerThread>>> = const { RefCell::new(None) };
}

/// The calling thread is one of `worker` as long as it lives.
pub fn of(worker: Arc<dyn WorkerThread>) {
    WORKER.set(Some(worker));
}

thread_local! {
    static IS_ASIDE: Cell<bool> = const { Cell::new(false) };
}

/// Waits for another request by `wait`, or does long work. A thread that is aside already stays so.
pub fn aside<T>(wait: impl FnOnce() -> T) -> T {
    /// Steps back, also when `wait` panics.
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
