//! One entry of a queue: the buffers that the kernel writes a request into and reads its answer from.
#![allow(unsafe_code, reason = "the kernel shares these buffers")]

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::transport::device::Buffer;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

/// `FUSE_IO_URING_CMD_REGISTER`: hands an entry's buffers to a queue.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: answers the entry's request and waits for the next.
const COMMIT_AND_FETCH: u32 = 2;
/// How long a kernel that is short of memory is left alone.
const MEMORY_RETRY_PAUSE: Duration = Duration::from_millis(5);
/// Data in buffers that is not worth being given back.
const LEAST_GIVEN_BACK: usize = 64 << 10;
/// Behind the payload: an answer that does not fit behind a request's own data.
const SLACK: usize = 8192;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// `struct fuse_uring_req_header`: filled by the kernel before a completion, read by it at the commit.
#[repr(C)]
struct Header {
    in_out: [u8; 128],
    op_in: [u8; 128],
    flags: u64,
    commit_id: u64,
    payload_size: u32,
    padding: u32,
    reserved: u64,
}

/// A thread's entry, with the ring that it waits on.
pub(crate) struct Entry {
    pub(crate) ring: EntryRing,
    pub(crate) slot: Slot,
    /// Most data that a request or an answer had since memory was given back last.
    pub(crate) touched: usize,
}

/// The ring that an entry's thread waits on.
pub(crate) struct EntryRing(Ring);

/// Buffers of an entry. Their owner can answer the entry's request by any ring, and that ring then gets its next one.
pub(crate) struct Slot {
    device: RawFd,
    queue: u16,
    header: Box<Header>,
    payload: Buffer,
    /// Read by the kernel at REGISTER, two of `struct iovec`: where the two buffers are. They stay there as long as the
    /// connection lives.
    vectors: Box<[[usize; 2]; 2]>,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// Kinds of completion.
pub(crate) enum Fetched {
    /// A request is in the buffers.
    Request,
    /// Nothing: wait again.
    Nothing,
    /// Nothing for a while, and there is memory to be given back.
    Idle,
    /// The connection is gone.
    Gone,
}

/// A request's three parts, and room for its answer.
pub(crate) struct Parts<'a> {
    pub(crate) header: &'a [u8],
    pub(crate) op_in: &'a [u8],
    pub(crate) rest: &'a [u8],
    /// Where the answer is built: behind the request's own data, which it may still use.
    pub(crate) answer: &'a mut [u8],
}

impl Entry {
    /// An entry for queue number `queue` of the connection behind `device`. Its thread must be the one that uses it.
    ///
    /// # Errors
    /// The kernel has no io_uring for this process.
    pub(crate) fn new(device: RawFd, queue: u16, largest: usize) -> io::Result<Self> {
        let ring = EntryRing::new()?;
        let mut header = Box::new(Header {
            in_out: [0; 128],
            op_in: [0; 128],
            flags: 0,
            commit_id: 0,
            payload_size: 0,
            padding: 0,
            reserved: 0,
        });
        let mut payload = Buffer::new(largest + SLACK, 0)?;
        let space = payload.space();
        let vectors = Box::new([
            [(&raw mut *header).expose_provenance(), size_of::<Header>()],
            [space.as_mut_ptr().expose_provenance(), space.len() - SLACK],
        ]);
        Ok(Self { ring, slot: Slot { device, queue, header, payload, vectors }, touched: 0 })
    }

    /// Hands the entry to its queue. Does not wait for a request: what there is beyond `Nothing` came at once.
    ///
    /// # Errors
    /// The kernel does not take the entry.
    pub(crate) fn register(&mut self) -> io::Result<Fetched> {
        let vectors = self.slot.vectors.as_ptr().expose_provenance() as u64;
        let mut sqe = self.slot.command(REGISTER, 0, Some(vectors));
        let words = (&raw mut sqe).cast::<u32>();
        // SAFETY: the entry is 128 bytes.
        let len = unsafe { words.add(6) };
        // SAFETY: a submission entry is `struct io_uring_sqe`, whose `len`, at 24, the crate cannot set for this
        // command: the number of places. The entry is ours and initialised.
        unsafe { len.write(2) };
        self.push(&sqe)?;
        // One that is refused is completed before this returns.
        self.ring.0.submit()?;
        self.completed()
    }

    /// Answers the request and waits for the next.
    ///
    /// # Errors
    /// The ring is broken.
    pub(crate) fn commit(&mut self) -> io::Result<Fetched> {
        self.touched = self.touched.max(self.slot.carried());
        let sqe = self.slot.command(COMMIT_AND_FETCH, self.slot.header.commit_id, None);
        self.push(&sqe)?;
        self.fetch()
    }

    /// Waits once more for the request that was not there yet.
    ///
    /// # Errors
    /// The ring is broken.
    pub(crate) fn fetch(&mut self) -> io::Result<Fetched> {
        let waited = if self.touched <= LEAST_GIVEN_BACK {
            self.ring.0.submit_and_wait(1)
        } else {
            // Only after much data: a timer costs less than that by far.
            let idle = Timespec::from(super::IDLE_BEFORE_GIVING_BACK);
            self.ring.0.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&idle))
        };
        match waited {
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => return Ok(Fetched::Idle),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Fetched::Nothing),
            // Nothing was taken: an answer that is not given now is given a moment later.
            Err(error) if is_passing(&error) => {
                fsstack_sync::thread::sleep(MEMORY_RETRY_PAUSE);
                return Ok(Fetched::Nothing);
            }
            waited => waited?,
        };
        self.completed()
    }

    /// Waits for a request, at most for `limit`.
    ///
    /// # Errors
    /// ETIME: none came; the ring is broken.
    #[cfg(test)]
    pub(super) fn fetch_within(&mut self, limit: Duration) -> io::Result<Fetched> {
        let limit = Timespec::from(limit);
        self.ring.0.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))?;
        self.completed()
    }

    /// Answers the request `unique` of any entry of the queue by this one's ring, and does not wait.
    ///
    /// # Errors
    /// The ring is broken.
    #[cfg(test)]
    pub(super) fn commit_to(&mut self, unique: u64) -> io::Result<()> {
        let sqe = self.slot.command(COMMIT_AND_FETCH, unique, None);
        self.push(&sqe)?;
        self.ring.0.submit().map(drop)
    }

    /// Gives the memory of its buffers back, and waits on. Nothing is in them.
    ///
    /// # Errors
    /// The ring is broken.
    pub(crate) fn give_back(&mut self) -> io::Result<Fetched> {
        let came = self.completed()?;
        if !matches!(came, Fetched::Nothing) {
            return Ok(came);
        }
        self.slot.payload.give_back();
        self.touched = 0;
        self.fetch()
    }

    /// The next completion, if there is one.
    fn completed(&mut self) -> io::Result<Fetched> {
        let Some(done) = self.ring.0.completion().next() else { return Ok(Fetched::Nothing) };
        match -done.result() {
            0 => {
                self.touched = self.touched.max(self.slot.carried());
                Ok(Fetched::Request)
            }
            libc::ENOTCONN | libc::ENODEV => Ok(Fetched::Gone),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn push(&mut self, sqe: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: what the entry points to, header and payload, lives in the slot and does not move; the slot outlives
        // the ring, or goes on to another ring that answers the entry's request.
        let pushed = unsafe { self.ring.0.submission().push(sqe) };
        pushed.map_err(|_| io::Error::other("the ring is full"))
    }
}

impl EntryRing {
    /// A ring for the calling thread.
    ///
    /// # Errors
    /// The kernel has no io_uring for this process.
    pub(crate) fn new() -> io::Result<Self> {
        Ring::builder().setup_single_issuer().setup_defer_taskrun().build(4).map(Self)
    }
}

impl Slot {
    /// The number of the request. Every one is answered, also one of a kind that has no answer at the device.
    pub(crate) fn unique(&self) -> u64 {
        self.header.commit_id
    }

    /// The request's three parts, as they were before it was answered.
    pub(crate) fn request(&mut self) -> [&[u8]; 3] {
        let Parts { header, op_in, rest, .. } = self.parts();
        [header, op_in, rest]
    }

    /// Puts an answer that was built elsewhere where the kernel reads it.
    pub(crate) fn put(&mut self, out: &[u8], body: &[u8]) {
        let payload = self.payload.space();
        let len = body.len().min(payload.len() - SLACK);
        payload[..len].copy_from_slice(&body[..len]);
        self.header.in_out[..out.len()].copy_from_slice(out);
        self.header.payload_size = u32::try_from(len).unwrap_or(0);
    }

    /// The request that was fetched.
    pub(crate) fn parts(&mut self) -> Parts<'_> {
        let payload = self.payload.space();
        let size = usize::try_from(self.header.payload_size).unwrap_or(0).min(payload.len() - SLACK);
        let (rest, answer) = payload.split_at_mut(size.next_multiple_of(8));
        let limit = answer.len().min(self.vectors[1][1]);
        Parts {
            header: &self.header.in_out,
            op_in: &self.header.op_in,
            rest: &rest[..size],
            answer: &mut answer[..limit],
        }
    }

    /// Puts the answer where the kernel reads it: `out` before it, `len` bytes behind the request's data.
    pub(crate) fn answer(&mut self, out: &[u8], len: usize) {
        let payload = self.payload.space();
        let size = usize::try_from(self.header.payload_size).unwrap_or(0).min(payload.len() - SLACK);
        let at = size.next_multiple_of(8);
        if len > 0 && at > 0 {
            payload.copy_within(at..at + len, 0);
        }
        self.header.in_out[..out.len()].copy_from_slice(out);
        self.header.payload_size = u32::try_from(len).unwrap_or(0);
    }

    /// Bytes of data of the request at hand, or of its answer.
    fn carried(&self) -> usize {
        usize::try_from(self.header.payload_size).unwrap_or(0)
    }

    fn command(&self, operation: u32, commit: u64, vectors: Option<u64>) -> squeue::Entry128 {
        let mut command = [0; 80]; // struct fuse_uring_cmd_req: flags, commit id, queue, padding
        command[8..16].copy_from_slice(&commit.to_ne_bytes());
        command[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        opcode::UringCmd80::new(Fd(self.device), operation).cmd(command).addr(vectors).build()
    }
}

/// Whether the kernel was short of memory for a submission.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM | libc::EBUSY))
}

/// Whether this process may make rings of the kind that the transport needs, one for each of `queues` at once.
pub(crate) fn probe(queues: usize) -> io::Result<()> {
    (0..queues).map(|_| EntryRing::new()).collect::<io::Result<Vec<_>>>().map(drop)
}
