//! How many calls are inside a branch that others serve, and since when.
//!
//! A branch whose server hangs keeps the threads that asked it. So that some are left for the other branches, only a
//! few calls are let in at once; and while one of them has been inside for longer than the branch's timeout, the
//! branch is suspect and nobody else is let in: the caller gets an error at once. When the stuck calls return, or
//! somebody frees them (by aborting the branch's FUSE connection), it is asked again. Local disks pay nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fsstack_sys::{Call, Errno, SysError};

/// Calls inside one branch at once. A door has more threads than this.
const PLACES: usize = 24;

/// The calls inside a branch.
#[derive(Debug)]
pub(crate) struct Crowd {
    since: Instant,
    /// When the call in each place began: milliseconds since `since`, never 0. 0: the place is free.
    places: [AtomicU64; PLACES],
    timeout: Duration,
}

/// A place inside, given up when this drops.
pub(crate) struct Inside<'a>(&'a AtomicU64);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(0, Relaxed);
    }
}

impl Crowd {
    /// Calls may stay for `timeout`; zero: for ever.
    pub(crate) fn new(timeout: Duration) -> Self {
        let timeout = if timeout.is_zero() { Duration::MAX } else { timeout };
        Self { since: Instant::now(), places: [const { AtomicU64::new(0) }; PLACES], timeout }
    }

    /// A place inside; waits for one while nobody has overstayed.
    ///
    /// # Errors
    /// ETIMEDOUT if somebody has.
    pub(crate) fn enter(&self) -> Result<Inside<'_>, SysError> {
        loop {
            let now = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
            let limit = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
            let mut free = None;
            for place in &self.places {
                match place.load(Relaxed) {
                    0 => free = Some(place),
                    began if now.saturating_sub(began) > limit => {
                        return Err(SysError { call: Call::Access, errno: Errno::TIMEDOUT });
                    }
                    _ => {}
                }
            }
            if let Some(place) = free
                && place.compare_exchange(0, now, Relaxed, Relaxed).is_ok()
            {
                return Ok(Inside(place));
            }
            if free.is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Whether a call has been inside for longer than it may.
    pub(crate) fn is_suspect(&self) -> bool {
        let now = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let limit = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        let over = |began: u64| began != 0 && now.saturating_sub(began) > limit;
        self.places.iter().any(|place| over(place.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_enters_while_a_call_overstays() {
        let crowd = Crowd::new(Duration::from_millis(1));
        let stuck = crowd.enter().expect("the branch is empty");
        while !crowd.is_suspect() {
            std::thread::yield_now();
        }
        assert_eq!(crowd.enter().map(drop).expect_err("suspect").errno, Errno::TIMEDOUT);
        drop(stuck);
        assert!(crowd.enter().is_ok());
    }

    #[test]
    fn without_a_timeout_nobody_overstays() {
        let crowd = Crowd::new(Duration::ZERO);
        let _inside = crowd.enter().expect("the branch is empty");
        assert!(!crowd.is_suspect());
        assert!(crowd.enter().is_ok());
    }
}
