//! Copies to and from a shared memory map of the file.

use std::fs::File;
use std::io;

use fsstack_sys::mapped::Mapped;

use super::{Direction, Io, IoEngine, Submitted};
use crate::buffers::Aligned;

/// A mapped part of a file, and a buffer.
#[derive(Debug)]
pub(super) struct MemoryMap {
    map: Mapped,
    begins: u64,
    direction: Direction,
    block: usize,
    memory: Aligned,
}

impl MemoryMap {
    /// Maps the pages that hold `part` of `file`, which must be as long already.
    pub(super) fn new(
        file: &File,
        part: (u64, u64),
        direction: Direction,
        block: usize,
        memory: Aligned,
    ) -> io::Result<Self> {
        // A map begins at a page.
        let begins = part.0 - part.0 % 4096;
        let len = usize::try_from(part.0 + part.1 - begins).map_err(io::Error::other)?;
        let map = match direction {
            Direction::Read => Mapped::to_read(file, begins, len)?,
            Direction::Write => Mapped::to_write(file, begins, len)?,
        };
        Ok(Self { map, begins, direction, block, memory })
    }
}

impl IoEngine for MemoryMap {
    fn submit(&mut self, io: Io) -> io::Result<Submitted> {
        let at = usize::try_from(io.offset - self.begins).map_err(io::Error::other)?;
        match self.direction {
            Direction::Read => self.map.copy_out(at, &mut self.memory.bytes_mut()[..self.block]),
            Direction::Write => self.map.copy_in(at, &self.memory.bytes()[io.from..io.from + self.block]),
        }?;
        Ok(Submitted::Done)
    }

    fn reap(&mut self, _: usize, _: &mut Vec<usize>) -> io::Result<()> {
        Ok(())
    }
}
