//! io_uring: a queue of reads or writes, with registered buffers and files where asked.
//!
//! The kernel reads and writes `memory` while operations are in flight. Three things keep that sound: the memory
//! belongs to the `Ring` and is never moved or freed while it lives; only free slots are submitted, so no two
//! operations read into one place; and a `Ring` that is dropped first waits for all that is in flight. If even the
//! waiting fails, the memory is leaked.
#![allow(unsafe_code, reason = "the ring shares memory with the kernel: each block says what keeps it sound")]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use io_uring::{IoUring, opcode, squeue, types};

use super::{Direction, Io, IoEngine, Submitted};
use crate::buffers::Aligned;

/// Parameters of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingPlan {
    pub(super) depth: u32,
    pub(super) registered: bool,
    pub(super) direction: Direction,
    pub(super) block: usize,
}

/// A ring with its file and memory.
pub(super) struct Ring {
    ring: ManuallyDrop<IoUring>,
    memory: ManuallyDrop<Aligned>,
    file: File,
    plan: RingPlan,
    /// Operation in each slot.
    flying: Vec<Option<Io>>,
    in_flight: usize,
}

impl Ring {
    /// A ring of `plan.depth` entries on `file`.
    pub(super) fn new(file: File, mut memory: Aligned, plan: RingPlan) -> io::Result<Self> {
        let refused = |e: io::Error| {
            io::Error::new(e.kind(), format!("io_uring cannot be used here: {e}; use engine psync"))
        };
        let entries = plan.depth.next_power_of_two();
        // Completions are worked on when this thread asks for them, and interrupt no other call: from Linux 6.1.
        let quietly = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
        let ring = quietly.or_else(|_| IoUring::new(entries)).map_err(refused)?;
        if plan.registered {
            let whole = memory.bytes_mut();
            let one = libc::iovec { iov_base: whole.as_mut_ptr().cast(), iov_len: whole.len() };
            // SAFETY: the memory is owned by the `Ring` that is made below and outlives the ring in it: `drop`
            // closes the ring first.
            unsafe { ring.submitter().register_buffers(&[one]) }.map_err(refused)?;
            ring.submitter().register_files(&[file.as_raw_fd()]).map_err(refused)?;
        }
        let slots = usize::try_from(plan.depth).map_err(io::Error::other)?;
        Ok(Self {
            ring: ManuallyDrop::new(ring),
            memory: ManuallyDrop::new(memory),
            file,
            plan,
            flying: vec![None; slots],
            in_flight: 0,
        })
    }

    /// Offset of an operation's bytes in the memory.
    fn place(&self, io: Io) -> usize {
        match self.plan.direction {
            Direction::Read => io.slot * self.plan.block,
            Direction::Write => io.from,
        }
    }

    fn entry(&mut self, io: Io) -> io::Result<squeue::Entry> {
        let len = u32::try_from(self.plan.block).map_err(io::Error::other)?;
        let start = self.place(io);
        let memory = &mut self.memory.bytes_mut()[start..start + self.plan.block];
        let (at, fd) = (memory.as_mut_ptr(), types::Fd(self.file.as_raw_fd()));
        let entry = match (self.plan.direction, self.plan.registered) {
            (Direction::Read, false) => opcode::Read::new(fd, at, len).offset(io.offset).build(),
            (Direction::Write, false) => opcode::Write::new(fd, at, len).offset(io.offset).build(),
            (Direction::Read, true) => {
                opcode::ReadFixed::new(types::Fixed(0), at, len, 0).offset(io.offset).build()
            }
            (Direction::Write, true) => {
                opcode::WriteFixed::new(types::Fixed(0), at, len, 0).offset(io.offset).build()
            }
        };
        Ok(entry.user_data(io.slot as u64))
    }

    /// Completes a short operation after `did` bytes, as a program would.
    fn finish_short(&mut self, io: Io, did: usize) -> io::Result<()> {
        if did == 0 {
            let what = if self.plan.direction == Direction::Read {
                "the file is shorter than it should be"
            } else {
                "nothing was written"
            };
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        let start = self.place(io);
        let (memory, offset) = (start + did..start + self.plan.block, io.offset + did as u64);
        match self.plan.direction {
            Direction::Read => self.file.read_exact_at(&mut self.memory.bytes_mut()[memory], offset),
            Direction::Write => self.file.write_all_at(&self.memory.bytes()[memory], offset),
        }
    }

    /// Takes a completion, if there is one.
    fn completed(&mut self) -> Option<(u64, i32)> {
        self.ring.completion().next().map(|c| (c.user_data(), c.result()))
    }

    /// Collects available completions.
    fn collect(&mut self, done: &mut Vec<usize>) -> io::Result<()> {
        let mut first_error = None;
        while let Some((slot, result)) = self.completed() {
            let slot = usize::try_from(slot).map_err(io::Error::other)?;
            let Some(io) = self.flying.get_mut(slot).and_then(Option::take) else { continue };
            self.in_flight -= 1;
            let settled = match usize::try_from(result) {
                Err(_) => Err(io::Error::from_raw_os_error(-result)),
                Ok(did) if did < self.plan.block => self.finish_short(io, did),
                Ok(_) => Ok(()),
            };
            match settled {
                Ok(()) => done.push(slot),
                Err(e) => first_error = first_error.or(Some(e)),
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn enter(&mut self, wait: usize) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(wait) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                entered => return entered.map(drop),
            }
        }
    }
}

impl IoEngine for Ring {
    fn submit(&mut self, io: Io) -> io::Result<Submitted> {
        let entry = self.entry(io)?;
        // SAFETY: the entry's buffer lies in `memory` (sliced, so in bounds) and its file is `file`; both live until
        // `drop` has waited for the operation.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| io::Error::other("the ring is full"))?;
        self.flying[io.slot] = Some(io);
        self.in_flight += 1;
        Ok(Submitted::Queued)
    }

    fn reap(&mut self, at_least: usize, done: &mut Vec<usize>) -> io::Result<()> {
        let goal = done.len() + at_least.min(self.in_flight);
        loop {
            self.enter(goal.saturating_sub(done.len()))?;
            self.collect(done)?;
            if goal <= done.len() {
                return Ok(());
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut done = Vec::new();
        while 0 < self.in_flight {
            let before = self.in_flight;
            let waited = self.enter(1);
            // Errors of single operations were reported, or do not matter any more.
            let _collected = self.collect(&mut done);
            if waited.is_err() && self.in_flight == before {
                break;
            }
        }
        // SAFETY: nobody uses the ring after `drop`, and it is dropped nowhere else.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        if self.in_flight == 0 {
            // SAFETY: the ring is closed and nothing is in flight: the kernel has no use of the memory any more.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_written_by_a_ring_are_read_by_a_ring() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for registered in [false, true] {
            let file =
                File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
            let mut source = Aligned::zeroed(16 * 512);
            source.bytes_mut().iter_mut().enumerate().for_each(|(n, b)| *b = u8::try_from(n / 512).unwrap());
            let plan = RingPlan { depth: 4, registered, direction: Direction::Write, block: 512 };
            let mut writer = Ring::new(file.try_clone().unwrap(), source, plan).unwrap();
            for batch in 0..4 {
                for slot in 0..4 {
                    let n = batch * 4 + slot;
                    writer.submit(Io { slot, offset: n as u64 * 512, from: n * 512 }).unwrap();
                }
                let mut done = Vec::new();
                writer.reap(4, &mut done).unwrap();
                done.sort_unstable();
                assert_eq!(done, [0, 1, 2, 3]);
            }
            drop(writer);
            let plan = RingPlan { direction: Direction::Read, ..plan };
            let mut reader = Ring::new(file.try_clone().unwrap(), Aligned::zeroed(4 * 512), plan).unwrap();
            for slot in 0..4 {
                reader.submit(Io { slot, offset: (12 + slot as u64) * 512, from: 0 }).unwrap();
            }
            reader.reap(4, &mut Vec::new()).unwrap();
            assert!(reader.memory.bytes().iter().enumerate().all(|(n, &b)| usize::from(b) == 12 + n / 512));
            // Past the end: an error, and the drop that follows does not hang.
            reader.submit(Io { slot: 0, offset: 1 << 20, from: 0 }).unwrap();
            assert_eq!(reader.reap(1, &mut Vec::new()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            reader.submit(Io { slot: 1, offset: 0, from: 0 }).unwrap();
        }
    }
}
