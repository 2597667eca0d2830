//! Takeover of a ring entry: a thread leaves its entry here while it serves the request, and another thread may take it.
//!
//! An entry belongs to the owner of its buffers ([`Slot`]). The thread leaves them here and takes them back when it has
//! served the request. If it does not come back from a branch, a new thread takes them. That one serves the request again if
//! it only reads (`transport/repeatable.rs`) or answers with an error, by a ring of its own, and serves the entry from then on. The
//! old thread finds its entry gone and ends.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fsstack_branch::health::reply_takeover::{ReplyTakeover, RequestAtHand};
use fsstack_sync::Mutex;
use fsstack_wire::OutHeader;
use rustix::io::Errno;

use super::entry::{Entry, EntryRing, Slot};
use super::{FirstEntry, RingShared};
use crate::transport::device::Buffer;
use crate::transport::ending::Ending;
use crate::transport::workers::Worker;

/// Room for an answer besides its data.
const BESIDES: usize = 4096;
/// Pause before a ring for an entry that a thread left is set up again.
const NEW_RING_PAUSE: Duration = Duration::from_secs(1);

/// A thread's place at the transport.
#[derive(Debug)]
pub(super) struct EntryAtHand {
    transport: Arc<RingShared>,
    worker: Arc<Worker>,
    request: RequestAtHand<RequestInEntry>,
}

/// A request in the buffers of its entry.
#[derive(Debug)]
struct RequestInEntry {
    /// It may be served again.
    again: bool,
    slot: Slot,
}

impl EntryAtHand {
    /// The request at hand of the thread `worker`.
    pub(super) fn new(transport: &Arc<RingShared>, worker: &Arc<Worker>) -> Arc<Self> {
        Arc::new(Self {
            transport: transport.clone(),
            worker: worker.clone(),
            request: RequestAtHand::default(),
        })
    }

    /// The thread begins the request `unique`.
    pub(super) fn leave(&self, unique: u64, again: bool, slot: Slot) {
        self.request.begin(unique, RequestInEntry { again, slot });
    }

    /// The thread has come back: its entry, unless another has it now.
    pub(super) fn come_back(&self) -> Option<Slot> {
        self.request.end().map(|request| request.slot)
    }
}

impl ReplyTakeover for EntryAtHand {
    fn refuse(&self, unique: u64) -> bool {
        self.request.take_over(unique, |RequestInEntry { again, mut slot }| {
            if !again {
                slot.put(OutHeader::refused(unique, Errno::IO.raw_os_error()).as_bytes(), &[]);
            }
            let taken = TakenEntry(Arc::new(Mutex::new(Some(slot))));
            let first = || {
                if again { FirstEntry::Again(taken.clone()) } else { FirstEntry::TakenOver(taken.clone()) }
            };
            let Err(error) = self.transport.replace(self.worker.number(), first) else {
                self.worker.is_stuck();
                return Ok(());
            };
            tracing::warn!(%error, "stuck request: cannot start a thread to answer it");
            let left = taken.0.lock().take();
            left.map_or(Ok(()), |slot| Err(RequestInEntry { again, slot }))
        })
    }
}

/// An entry that a thread left, to be served on.
#[derive(Clone, Debug)]
pub(super) struct TakenEntry(Arc<Mutex<Option<Slot>>>);

impl TakenEntry {
    /// The entry, on a ring of the calling thread. None: the connection is gone.
    pub(super) fn take_over(&self, ending: &Ending) -> Option<Entry> {
        loop {
            match EntryRing::new() {
                Ok(ring) => {
                    return self.0.lock().take().map(|slot| Entry { ring, slot, touched: usize::MAX });
                }
                Err(_) if ending.is_gone() => return None,
                Err(error) => {
                    tracing::error!(%error, "stuck request: cannot set up a ring to answer it");
                    fsstack_sync::thread::sleep(NEW_RING_PAUSE);
                }
            }
        }
    }
}

/// A request and its answer, apart from the entry's buffers. Only what was used of it is in memory.
#[derive(Debug)]
pub(super) struct RequestCopy {
    header: Vec<u8>,
    op_in: Vec<u8>,
    rest: Buffer,
    answer: Buffer,
}

impl RequestCopy {
    /// Room for requests and answers of up to `max` bytes of data.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn new(max: usize) -> io::Result<Self> {
        let (header, op_in) = (Vec::new(), Vec::new());
        Ok(Self { header, op_in, rest: Buffer::new(max, 0)?, answer: Buffer::new(max + BESIDES, 0)? })
    }

    /// Takes a copy of the request: that, and room for its answer.
    pub(super) fn keep(&mut self, [header, op_in, rest]: [&[u8]; 3]) -> ([&[u8]; 3], &mut [u8]) {
        for (own, part) in [(&mut self.header, header), (&mut self.op_in, op_in)] {
            own.clear();
            own.extend_from_slice(part);
        }
        let kept = &mut self.rest.space()[..rest.len()];
        kept.copy_from_slice(rest);
        ([&self.header, &self.op_in, kept], self.answer.space())
    }

    /// Gives memory back.
    pub(super) fn give_back(&mut self) {
        self.rest.give_back();
        self.answer.give_back();
    }
}
