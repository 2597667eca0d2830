//! An engine that does nothing, for the cost of the harness.

use std::io;

use super::{Io, IoEngine, Submitted};

/// Operations that are complete at once.
#[derive(Debug, Default)]
pub(super) struct Null {
    seen: u64,
}

impl IoEngine for Null {
    fn submit(&mut self, io: Io) -> io::Result<Submitted> {
        // Keeps the compiler from removing the loop.
        self.seen = std::hint::black_box(self.seen ^ io.offset);
        Ok(Submitted::Done)
    }

    fn reap(&mut self, _: usize, _: &mut Vec<usize>) -> io::Result<()> {
        Ok(())
    }
}
