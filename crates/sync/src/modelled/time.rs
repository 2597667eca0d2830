//! Time of a model: a counter that sleeps and timeouts advance.

use std::cell::Cell;
use std::ops::{Add, AddAssign, Sub};

pub use std::time::{Duration, SystemTime, UNIX_EPOCH};

thread_local! {
    // All threads of a model run on one of the machine's.
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// A moment of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// The present moment.
    pub fn now() -> Self {
        Self(NOW.get())
    }

    /// Time since then.
    pub fn elapsed(&self) -> Duration {
        NOW.get().saturating_sub(self.0)
    }

    /// Time since `earlier`; zero if that is later.
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Like [`Self::duration_since`].
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }

    /// The moment `time` before, if there is one.
    pub fn checked_sub(&self, time: Duration) -> Option<Self> {
        self.0.checked_sub(time).map(Self)
    }

    /// The moment `time` after, if there is one.
    pub fn checked_add(&self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }
}

/// Time passes for all threads of the model.
pub fn pass(time: Duration) {
    NOW.set(NOW.get().saturating_add(time));
}

/// Begins anew.
pub(crate) fn reset() {
    NOW.set(Duration::ZERO);
}
