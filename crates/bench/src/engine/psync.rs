//! pread(2) and pwrite(2), one at a time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{Direction, Io, IoEngine, Submitted};
use crate::buffers::Aligned;

/// A file and a buffer.
#[derive(Debug)]
pub(super) struct Psync {
    pub(super) file: File,
    pub(super) direction: Direction,
    pub(super) block: usize,
    pub(super) memory: Aligned,
}

impl IoEngine for Psync {
    fn submit(&mut self, io: Io) -> io::Result<Submitted> {
        match self.direction {
            Direction::Read => {
                self.file.read_exact_at(&mut self.memory.bytes_mut()[..self.block], io.offset)?
            }
            Direction::Write => {
                self.file.write_all_at(&self.memory.bytes()[io.from..io.from + self.block], io.offset)?;
            }
        }
        Ok(Submitted::Done)
    }

    fn reap(&mut self, _: usize, _: &mut Vec<usize>) -> io::Result<()> {
        Ok(())
    }
}
