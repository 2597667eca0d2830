//! The request that a thread of the /dev/fuse door is at, where another thread may answer it.
//!
//! Who answers is decided under one lock: the thread when it comes back, or whoever is told that it will not. The
//! thread's buffers are its own, so nothing but the answer itself is at stake. A request that only asks is kept here
//! too, for another thread to serve again (`again.rs`).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_engine::health::stand_in::{self, StandIn};
use fsstack_wire::OutHeader;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::dev::Shared;
use super::device;

/// A thread's place at the door.
#[derive(Debug)]
pub(super) struct Seat {
    /// An answer is taken only by the descriptor that gave the request, or a duplicate of it.
    device: OwnedFd,
    door: Arc<Shared>,
    /// The thread's.
    number: usize,
    at: Mutex<(At, Vec<u8>)>,
}

/// What a thread is at. Beside it is the request, if it may be served again; else nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Between requests.
    Rest,
    /// Serving this request.
    Serving(u64),
    /// The request is somebody else's.
    Left,
}

impl Seat {
    /// A seat for thread `number`, which reads `device`.
    pub(super) fn new(door: &Arc<Shared>, device: &OwnedFd, number: usize) -> std::io::Result<Arc<Self>> {
        let at = Mutex::new((At::Rest, Vec::new()));
        Ok(Arc::new(Self { device: device.try_clone()?, door: door.clone(), number, at }))
    }

    /// The thread's number.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// The thread begins the request `unique`; `again` is the request, if it may be served again.
    pub(super) fn begin(&self, unique: u64, again: Option<&[u8]>) {
        let mut at = self.at.lock();
        at.0 = At::Serving(unique);
        at.1.clear();
        at.1.extend_from_slice(again.unwrap_or_default());
    }

    /// The thread has come back: whether the answer is its to give.
    pub(super) fn end(&self) -> bool {
        let mut at = self.at.lock();
        let mine = at.0 != At::Left;
        at.0 = At::Rest;
        if !mine {
            self.door.found_again(self.number);
        }
        mine
    }
}

impl StandIn for Seat {
    fn refuse(&self, turn: u64) -> bool {
        let mut at = self.at.lock();
        if at.0 != At::Serving(turn) {
            return true;
        }
        at.0 = At::Left;
        if at.1.is_empty() || !self.door.serve_again(&self.device, self.number, &at.1) {
            let refusal = OutHeader::refused(turn, Errno::IO.raw_os_error());
            super::dev::report(device::refuse(self.device.as_fd(), &refusal));
        }
        // Before the thread can be back, which is found again then.
        self.door.lost_one(self.number);
        true
    }
}

impl stand_in::Crew for Seat {
    fn steps_aside(&self) -> bool {
        self.door.one_aside()
    }

    fn steps_back(&self) {
        self.door.one_back();
    }
}
