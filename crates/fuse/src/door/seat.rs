//! The request that a thread of the /dev/fuse door is at, where another thread may answer it.
//!
//! One lock decides which thread answers: the one that served the request, or another that takes over because the first will
//! not come back. The thread's buffers are its own, so only the answer itself is at stake. A request that only reads is kept
//! here too, for another thread to serve again (`again.rs`).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_engine::health::stand_in::{self, StandIn};
use fsstack_wire::OutHeader;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::dev::Shared;
use super::device;
use super::roster::Member;

/// A thread's place at the door.
#[derive(Debug)]
pub(super) struct Seat {
    /// An answer is taken only by the descriptor that gave the request, or a duplicate of it.
    device: OwnedFd,
    door: Arc<Shared>,
    /// Its thread. None: one that waits for a lock, and is on no roster.
    member: Option<Arc<Member>>,
    at: Mutex<(At, Vec<u8>)>,
}

/// State of a thread. Beside it is the request, if it may be served again; else nothing.
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
    /// A seat for the thread `member`, which reads `device`.
    pub(super) fn new(
        door: &Arc<Shared>,
        device: &OwnedFd,
        member: Option<&Arc<Member>>,
    ) -> std::io::Result<Arc<Self>> {
        let at = Mutex::new((At::Rest, Vec::new()));
        Ok(Arc::new(Self { device: device.try_clone()?, door: door.clone(), member: member.cloned(), at }))
    }

    /// The thread's number.
    pub(super) fn number(&self) -> usize {
        self.member.as_ref().map_or(0, |member| member.place())
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
        if let Some(member) = self.member.as_ref().filter(|_| !mine) {
            self.door.found_again(member);
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
        if at.1.is_empty() || !self.door.serve_again(&self.device, self.number(), &at.1) {
            let refusal = OutHeader::refused(turn, Errno::IO.raw_os_error());
            super::dev::report(device::refuse(self.device.as_fd(), &refusal));
        }
        // Before the thread can be back, which is found again then.
        match &self.member {
            Some(member) => self.door.lost_one(member),
            // It need not go on asking for its lock.
            None => self.door.adapter.will_not_wait(turn),
        }
        true
    }
}

impl stand_in::Crew for Seat {
    fn steps_aside(&self) -> bool {
        self.member.as_ref().is_some_and(|member| member.steps_aside())
    }

    fn steps_back(&self) {
        if let Some(member) = &self.member {
            member.steps_back();
        }
    }
}
