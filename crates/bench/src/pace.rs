//! Operations at a given rate: an open loop, whose latencies count from the time at which an operation was due.
//!
//! A closed loop starts an operation when the one before has ended, so that a pause of the target delays the operations
//! after it without anybody noticing. Here they are late, and their latency says so.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// When each operation of a task is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    began: Instant,
    /// Seconds between two operations; none for a closed loop.
    step: Option<f64>,
}

impl Schedule {
    /// So many operations a second from `began` on; a closed loop if none is given.
    pub(crate) fn of(rate: Option<f64>, began: Instant) -> Self {
        Self { began, step: rate.map(|rate| 1.0 / rate) }
    }

    /// Time at which operation number `n` is due.
    fn due(&self, n: u64) -> Option<Instant> {
        Some(self.began + Duration::from_secs_f64(self.step? * n as f64))
    }

    /// Waits until operation number `n` is due. Returns the time from which its latency counts: when it was due if the task
    /// is late, else `now`, as a sleep that ends late is no fault of the target.
    pub(crate) fn await_start(&self, n: u64, now: Instant) -> Instant {
        let Some(due) = self.due(n) else { return now };
        let early = due.saturating_duration_since(now);
        if early.is_zero() {
            return due;
        }
        sleep(early);
        Instant::now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_due_at_equal_times_and_late_ones_count_from_there() {
        let began = Instant::now();
        let pace = Schedule::of(Some(1000.0), began);
        assert_eq!(pace.due(250), Some(began + Duration::from_millis(250)));
        // The target stood still for a second: operation 3 was due long before.
        let late = began + Duration::from_secs(1);
        assert_eq!(pace.await_start(3, late), began + Duration::from_millis(3));
        assert!(began + Duration::from_millis(2) <= pace.await_start(2, began));
        assert_eq!(Schedule::of(None, began).await_start(7, late), late);
    }
}
