//! The request that a thread of the /dev/fuse transport is at, where another thread may answer it.
//!
//! The thread's buffers are its own, so only the answer itself is at stake. A request that only reads is kept here too, for
//! another thread to serve again (`repeatable.rs`).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_branch::health::reply_takeover::{ReplyTakeover, RequestAtHand};
use fsstack_wire::OutHeader;
use rustix::io::Errno;

use super::dev::DevShared;
use super::device;
use super::workers::Worker;

/// A thread's place at the transport.
#[derive(Debug)]
pub(super) struct MessageAtHand {
    /// An answer is taken only by the descriptor that gave the request, or a duplicate of it.
    device: OwnedFd,
    transport: Arc<DevShared>,
    /// Its thread. None: one that waits for a lock, and is on no list of workers.
    worker: Option<Arc<Worker>>,
    /// The request, if it may be served again; else nothing.
    message: RequestAtHand<Vec<u8>>,
}

impl MessageAtHand {
    /// The request at hand of the thread `worker`, which reads `device`.
    pub(super) fn new(
        transport: &Arc<DevShared>,
        device: &OwnedFd,
        worker: Option<&Arc<Worker>>,
    ) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            device: device.try_clone()?,
            transport: transport.clone(),
            worker: worker.cloned(),
            message: RequestAtHand::default(),
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
        self.message.begin(unique, again.unwrap_or_default().to_vec());
    }

    /// The thread has come back: whether the answer is its to give.
    pub(super) fn end(&self) -> bool {
        let mine = self.message.end().is_some();
        if let Some(worker) = self.worker.as_ref().filter(|_| !mine) {
            self.transport.found_again(worker);
        }
        mine
    }
}

impl ReplyTakeover for MessageAtHand {
    fn refuse(&self, unique: u64) -> bool {
        self.message.take_over(unique, |message| {
            if message.is_empty() || !self.transport.serve_again(&self.device, self.number(), &message) {
                let refusal = OutHeader::refused(unique, Errno::IO.raw_os_error());
                super::dev::report(device::refuse(self.device.as_fd(), &refusal));
            }
            // Before the thread can be back, which is found again then.
            match &self.worker {
                Some(worker) => self.transport.lost_one(worker),
                // It need not go on asking for its lock.
                None => self.transport.adapter.will_not_wait(unique),
            }
            Ok(())
        })
    }
}
