//! The request that a thread of the /dev/fuse transport is at, where another thread may answer it.
//!
//! One lock decides which thread answers: the one that serves the request, or another that takes over because the first is
//! stuck. The thread's buffers are its own, so only the answer itself is at stake. A request that only reads is kept here
//! too, for another thread to serve again (`repeatable.rs`).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_branch::health::reply_takeover::{self, ReplyTakeover};
use fsstack_sync::Mutex;
use fsstack_wire::OutHeader;
use rustix::io::Errno;

use super::dev::DevShared;
use super::device;
use super::workers::Worker;

/// A thread's place at the transport.
#[derive(Debug)]
pub(super) struct RequestAtHand {
    /// An answer is taken only by the descriptor that gave the request, or a duplicate of it.
    device: OwnedFd,
    transport: Arc<DevShared>,
    /// Its thread. None: one that waits for a lock, and is on no list of workers.
    worker: Option<Arc<Worker>>,
    at: Mutex<(Phase, Vec<u8>)>,
}

/// State of a thread. Beside it is the request, if it may be served again; else nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Between requests.
    Rest,
    /// Serving this request.
    Serving(u64),
    /// The request is somebody else's.
    TakenOver,
}

impl RequestAtHand {
    /// The request at hand of the thread `worker`, which reads `device`.
    pub(super) fn new(
        transport: &Arc<DevShared>,
        device: &OwnedFd,
        worker: Option<&Arc<Worker>>,
    ) -> std::io::Result<Arc<Self>> {
        let at = Mutex::new((Phase::Rest, Vec::new()));
        Ok(Arc::new(Self {
            device: device.try_clone()?,
            transport: transport.clone(),
            worker: worker.cloned(),
            at,
        }))
    }

    /// Whether its thread waits for a lock.
    pub(super) fn is_lock_wait(&self) -> bool {
        self.worker.is_none()
    }

    /// The thread's number.
    pub(super) fn number(&self) -> usize {
        self.worker.as_ref().map_or(0, |worker| worker.number())
    }

    /// The thread begins the request `unique`; `again` is the request, if it may be served again.
    pub(super) fn begin(&self, unique: u64, again: Option<&[u8]>) {
        let mut at = self.at.lock();
        at.0 = Phase::Serving(unique);
        at.1.clear();
        at.1.extend_from_slice(again.unwrap_or_default());
    }

    /// The thread has come back: whether the answer is its to give.
    pub(super) fn end(&self) -> bool {
        let mut at = self.at.lock();
        let mine = at.0 != Phase::TakenOver;
        at.0 = Phase::Rest;
        if let Some(worker) = self.worker.as_ref().filter(|_| !mine) {
            self.transport.found_again(worker);
        }
        mine
    }
}

impl ReplyTakeover for RequestAtHand {
    fn refuse(&self, unique: u64) -> bool {
        let mut at = self.at.lock();
        if at.0 != Phase::Serving(unique) {
            return true;
        }
        at.0 = Phase::TakenOver;
        if at.1.is_empty() || !self.transport.serve_again(&self.device, self.number(), &at.1) {
            let refusal = OutHeader::refused(unique, Errno::IO.raw_os_error());
            super::dev::report(device::refuse(self.device.as_fd(), &refusal));
        }
        // Before the thread can be back, which is found again then.
        match &self.worker {
            Some(worker) => self.transport.lost_one(worker),
            // It need not go on asking for its lock.
            None => self.transport.adapter.will_not_wait(unique),
        }
        true
    }
}

impl reply_takeover::WorkerThread for RequestAtHand {
    fn steps_aside(&self) -> bool {
        self.worker.as_ref().is_some_and(|worker| worker.steps_aside())
    }

    fn steps_back(&self) {
        if let Some(worker) = &self.worker {
            worker.steps_back();
        }
    }
}
