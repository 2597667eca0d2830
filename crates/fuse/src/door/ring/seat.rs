//! The entry that a thread of the ring's door leaves while it serves a request, and who takes it over.
//!
//! An entry is whoever's has its buffers ([`Slot`]). The thread leaves them in its seat and takes them back when it has
//! served the request. If it does not come back from a branch, a new thread takes them, serves the request again if it only
//! asks (`door/again.rs`) or answers with an error, by a ring of its own, and serves the entry from then on; the old one
//! finds its seat empty, and goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use fsstack_engine::health::stand_in::{self, StandIn};
use fsstack_wire::OutHeader;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::entry::{Entry, EntryRing, Slot};
use super::{First, Shared};

/// Room for an answer besides its data.
const BESIDES: usize = 4096;

/// A thread's place at the door.
#[derive(Debug)]
pub(super) struct Seat {
    door: Arc<Shared>,
    queue: usize,
    /// The request at hand, and its entry's buffers.
    left: Mutex<Option<AtHand>>,
}

/// A request, with the entry's buffers, in which it still is.
#[derive(Debug)]
struct AtHand {
    unique: u64,
    /// It may be served again.
    again: bool,
    slot: Slot,
}

impl Seat {
    /// A seat for a thread of `queue`.
    pub(super) fn new(door: &Arc<Shared>, queue: usize) -> Arc<Self> {
        Arc::new(Self { door: door.clone(), queue, left: Mutex::new(None) })
    }

    /// The thread begins the request `unique`.
    pub(super) fn leave(&self, unique: u64, again: bool, slot: Slot) {
        *self.left.lock() = Some(AtHand { unique, again, slot });
    }

    /// The thread has come back: its entry, unless another has it now.
    pub(super) fn come_back(&self) -> Option<Slot> {
        self.left.lock().take().map(|at_hand| at_hand.slot)
    }
}

impl StandIn for Seat {
    fn refuse(&self, turn: u64) -> bool {
        let mut left = self.left.lock();
        let Some(AtHand { unique, again, mut slot }) = left.take() else { return true };
        if unique != turn {
            *left = Some(AtHand { unique, again, slot });
            return true;
        }
        if !again {
            slot.put(OutHeader::refused(unique, Errno::IO.raw_os_error()).as_bytes(), &[]);
        }
        let taken = Left(Arc::new(Mutex::new(Some(slot))));
        let first = if again { First::Again(taken.clone()) } else { First::TakenOver(taken.clone()) };
        match self.door.start(self.queue, first) {
            Ok(_) => {
                self.door.threads.fetch_sub(1, SeqCst); // the one that is stuck
                true
            }
            Err(error) => {
                tracing::warn!(%error, "no thread to answer for one that is stuck");
                *left = taken.0.lock().take().map(|slot| AtHand { unique, again, slot });
                false
            }
        }
    }
}

impl stand_in::Crew for Seat {
    fn steps_aside(&self) -> bool {
        self.door.one_aside(self.queue)
    }

    fn steps_back(&self) {
        self.door.one_back();
    }
}

/// An entry that a thread left, to be served on.
#[derive(Clone, Debug)]
pub(super) struct Left(Arc<Mutex<Option<Slot>>>);

impl Left {
    /// The entry, on a ring of the calling thread. None: the connection is gone.
    pub(super) fn take_over(&self, gone: &AtomicBool) -> Option<Entry> {
        loop {
            match EntryRing::new() {
                Ok(ring) => return self.0.lock().take().map(|slot| Entry { ring, slot }),
                Err(_) if gone.load(SeqCst) => return None,
                Err(error) => {
                    tracing::error!(%error, "no ring to answer for a thread that is stuck");
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
        }
    }
}

/// A request and its answer, apart from the entry's buffers. Takes memory when it is first used.
#[derive(Debug, Default)]
pub(super) struct Apart {
    pub(super) parts: [Vec<u8>; 3],
    pub(super) answer: Vec<u8>,
}

impl Apart {
    /// Takes a copy of the request, and makes room for an answer of up to `max` bytes of data.
    pub(super) fn keep(&mut self, request: [&[u8]; 3], max: usize) {
        for (own, part) in self.parts.iter_mut().zip(request) {
            own.clear();
            own.extend_from_slice(part);
        }
        self.answer.resize(max + BESIDES, 0);
    }
}
