//! The request that a thread of the /dev/fuse door is at, where another thread may answer it.
//!
//! Who answers is decided under one lock: the thread when it comes back, or whoever is told that it will not. The
//! thread's buffers are its own, so nothing but the answer itself is at stake.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_engine::health::stand_in::StandIn;
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
    at: Mutex<At>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Between requests.
    Rest,
    /// Serving this request.
    Serving(u64),
    /// Somebody else has answered the request.
    Refused,
}

impl Seat {
    /// A seat for a thread that reads `device`.
    pub(super) fn new(door: &Arc<Shared>, device: &OwnedFd) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self { device: device.try_clone()?, door: door.clone(), at: Mutex::new(At::Rest) }))
    }

    /// The thread begins the request `unique`.
    pub(super) fn begin(&self, unique: u64) {
        *self.at.lock() = At::Serving(unique);
    }

    /// The thread has come back: whether the answer is its to give.
    pub(super) fn end(&self) -> bool {
        let mut at = self.at.lock();
        let mine = *at != At::Refused;
        *at = At::Rest;
        if !mine {
            self.door.found_again();
        }
        mine
    }
}

impl StandIn for Seat {
    fn refuse(&self, turn: u64) -> bool {
        let mut at = self.at.lock();
        if *at != At::Serving(turn) {
            return true;
        }
        *at = At::Refused;
        let refusal = OutHeader::refused(turn, Errno::IO.raw_os_error());
        super::dev::report(device::refuse(self.device.as_fd(), &refusal));
        drop(at);
        self.door.lost_one();
        true
    }
}
