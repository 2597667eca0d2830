//! Copies a range of bytes between files with io_uring, several blocks in flight at a time.
#![allow(
    unsafe_code,
    reason = "the kernel reads and writes the blocks while a request of the ring is on its way"
)]

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use crate::call::{Call, Result, SysError, call};

/// Memory alignment that direct I/O requires.
pub const ALIGNMENT: usize = 4096;

/// One buffer per block.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; ALIGNMENT]);

/// A ring and its blocks.
pub struct Carrier {
    ring: IoUring,
    blocks: Vec<Box<[Page]>>,
    /// Block size in bytes.
    block: usize,
    /// Number of requests in flight.
    out: usize,
}

/// A block's current read or write.
#[derive(Clone, Copy)]
struct Trip {
    call: Call,
    /// Offset of the block in both files, and how much of it is to be read or written.
    at: u64,
    len: usize,
    /// Bytes of it that are done.
    done: usize,
}

impl fmt::Debug for Carrier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Carrier").field("blocks", &self.blocks.len()).field("block", &self.block).finish()
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if self.out > 0 {
            // The kernel may still write into the buffers, so they are leaked.
            std::mem::forget(std::mem::take(&mut self.blocks));
        }
    }
}

impl Carrier {
    /// Makes a ring with `depth` blocks of `block` bytes, a multiple of [`ALIGNMENT`].
    ///
    /// # Errors
    ///
    /// The kernel has no io_uring, or does not permit it here.
    pub fn new(depth: u16, block: usize) -> Result<Self> {
        let ring = call(Call::Open, || IoUring::new(u32::from(depth).next_power_of_two()).map_err(errno))?;
        let pages = block / ALIGNMENT;
        let blocks = (0..depth).map(|_| vec![Page([0; ALIGNMENT]); pages].into_boxed_slice()).collect();
        Ok(Self { ring, blocks, block: pages * ALIGNMENT, out: 0 })
    }

    /// Copies `range` of `from` to the same offsets in `to` and reports written bytes to `carried`. Returns where the
    /// copy ends: before the end of the range if the file is shorter.
    ///
    /// # Errors
    ///
    /// The first failure; `to` is then partly written.
    pub fn carry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        range: Range<u64>,
        mut carried: impl FnMut(u64),
    ) -> Result<u64> {
        if self.out > 0 {
            return Err(SysError::new(Call::Write, Errno::BUSY)); // an earlier copy failed with requests in flight
        }
        let (mut next, mut end) = (range.start, range.end);
        let mut trips: Vec<Option<Trip>> = vec![None; self.blocks.len()];
        let mut failed = None;
        loop {
            for (slot, trip) in trips.iter_mut().enumerate().filter(|(_, trip)| trip.is_none()) {
                if failed.is_some() || next >= end {
                    break;
                }
                let len = usize::try_from(end - next).map_or(self.block, |left| left.min(self.block));
                let begun = Trip { call: Call::Read, at: next, len, done: 0 };
                self.send(from, slot, begun)?;
                *trip = Some(begun);
                next += len as u64;
            }
            if self.out == 0 {
                return failed.map_or(Ok(end), Err);
            }
            self.wait()?;
            while let Some((slot, answer)) = self.next_answer() {
                let Some(trip) = trips.get_mut(slot).and_then(Option::take) else { continue };
                let onward = trip.goes_on(answer).inspect_err(|error| {
                    failed.get_or_insert(*error);
                });
                let Ok(onward) = onward else { continue };
                if trip.call == Call::Read && onward.is_none_or(|onward| onward.len < trip.len) {
                    // End of the file.
                    end = end.min(trip.at + trip.done as u64);
                }
                if trip.call == Call::Write {
                    carried(answer.unwrap_or(0) as u64);
                }
                if let (Some(onward), None) = (onward, failed) {
                    let fd = if onward.call == Call::Read { from } else { to };
                    self.send(fd, slot, onward)?;
                    trips[slot] = Some(onward);
                }
            }
        }
    }

    fn send(&mut self, fd: BorrowedFd<'_>, slot: usize, trip: Trip) -> Result<()> {
        let fd = types::Fd(fd.as_raw_fd());
        let block = self.blocks[slot].as_mut_ptr().cast::<u8>().wrapping_add(trip.done);
        let len = u32::try_from(trip.len - trip.done).unwrap_or(u32::MAX);
        let at = trip.at + trip.done as u64;
        let entry = match trip.call {
            Call::Read => opcode::Read::new(fd, block, len).offset(at).build(),
            _ => opcode::Write::new(fd, block, len).offset(at).build(),
        };
        let entry = entry.user_data(slot as u64);
        // SAFETY: the block has the request's length, belongs to no other request until this one completes, and is not
        // freed before. The descriptor is open until then, or the request fails.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // The queue has room for a request of each block.
        pushed.map_err(|_| SysError::new(trip.call, Errno::NOBUFS))?;
        self.out += 1;
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        call(Call::Read, || self.ring.submit_and_wait(1).map(drop).map_err(errno))
    }

    fn next_answer(&mut self) -> Option<(usize, Result<usize, Errno>)> {
        let entry = self.ring.completion().next()?;
        self.out -= 1;
        let slot = usize::try_from(entry.user_data()).ok()?;
        let answer = entry.result();
        Some((slot, usize::try_from(answer).map_err(|_| Errno::from_raw_os_error(answer.wrapping_neg()))))
    }
}

impl Trip {
    /// Returns the next step after `answer`; `None` if the block is done.
    fn goes_on(self, answer: Result<usize, Errno>) -> Result<Option<Self>> {
        let moved = match answer {
            Ok(moved) => moved,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(Some(self)),
            Err(errno) => return Err(SysError::new(self.call, errno)),
        };
        let done = self.done + moved;
        let written = Self { call: Call::Write, done: 0, ..self };
        Ok(match self.call {
            Call::Read if moved == 0 => (self.done > 0).then_some(Self { len: self.done, ..written }),
            Call::Read if done == self.len => Some(written),
            _ if moved == 0 => return Err(SysError::new(self.call, Errno::NOSPC)),
            _ => (done < self.len).then_some(Self { done, ..self }),
        })
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Seek as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::FileExt as _;

    /// `None` if this process may not use io_uring.
    fn carrier() -> Option<Carrier> {
        Carrier::new(4, 2 * ALIGNMENT).ok()
    }

    #[test]
    fn carried_attributes_are_the_same_and_in_place() {
        let Some(mut carrier) = carrier() else { return };
        let data: Vec<u8> = (0..250_000_u32).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let (from, mut to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.write_all_at(&data, 0).unwrap();
        let mut reported = 0;
        let range = 3..data.len() as u64;
        let end = carrier.carry(from.as_fd(), to.as_fd(), range.clone(), |bytes| reported += bytes).unwrap();
        assert_eq!((end, reported), (range.end, range.end - 3));
        let mut copy = Vec::new();
        to.rewind().unwrap();
        to.read_to_end(&mut copy).unwrap();
        assert_eq!(&copy[..3], [0; 3]);
        assert!(copy[3..] == data[3..]);
    }

    #[test]
    fn a_file_that_ends_early_is_reported_and_an_error_leaves_the_ring_usable() {
        let Some(mut carrier) = carrier() else { return };
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.set_len(100_001).unwrap();
        assert_eq!(carrier.carry(from.as_fd(), to.as_fd(), 0..1 << 20, |_| ()).unwrap(), 100_001);
        assert_eq!(to.metadata().unwrap().len(), 100_001);
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let refused = carrier.carry(from.as_fd(), full.as_fd(), 0..100_001, |_| ()).unwrap_err();
        assert_eq!(refused, SysError::new(Call::Write, Errno::NOSPC));
        assert_eq!(carrier.carry(from.as_fd(), to.as_fd(), 0..5, |_| ()).unwrap(), 5);
    }
}
