//! The engine that does nothing: what remains is the harness.

use std::io;

use super::{Io, IoEngine, Submitted};

/// Done before it began.
#[derive(Debug, Default)]
pub(super) struct Null {
    seen: u64,
}

impl IoEngine for Null {
    fn submit(&mut self, io: Io) -> io::Result<Submitted> {
        // Keeps the compiler from seeing through the loop.
        self.seen = std::hint::black_box(self.seen ^ io.offset);
        Ok(Submitted::Done)
    }

    fn reap(&mut self, _: usize, _: &mut Vec<usize>) -> io::Result<()> {
        Ok(())
    }
}
