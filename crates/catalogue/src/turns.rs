//! Giving up the CPU between names.
//!
//! The thread that keeps the catalogue runs under `SCHED_IDLE`, and so may the threads that serve requests. The kernel does not
//! interrupt one such thread for another that wakes: a request would wait until the next tick of the clock, for up to 4 ms.

/// Names between two offers of the CPU: some 50 microseconds.
const NAMES: u32 = 16;

/// Counter of names that a thread has worked on.
#[derive(Debug, Default)]
pub struct Turns(u32);

impl Turns {
    /// Counts a name; from time to time other threads that wait for this CPU run first.
    pub fn next(&mut self) {
        self.0 = self.0.wrapping_add(1);
        if self.0.is_multiple_of(NAMES) {
            fsstack_sync::thread::yield_now();
        }
    }
}
