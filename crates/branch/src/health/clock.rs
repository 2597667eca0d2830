//! Clock for the time that calls spend in a branch.
//!
//! It excludes time during which the daemon itself was stopped by SIGSTOP, a frozen cgroup or a suspended machine: that time
//! says nothing about a branch.

/// Clock in milliseconds that stops while the daemon is stopped. Each check of the monitor advances it by at most the
/// planned pause between two checks.
#[derive(Debug)]
pub(super) struct Clock {
    now: u64,
    /// Real time of the last check.
    looked: u64,
    pause: u64,
    was_late: bool,
}

impl Clock {
    /// A clock with checks `pause` apart.
    pub(super) fn new(pause: u64) -> Self {
        Self { now: 1, looked: 0, pause, was_late: false }
    }

    /// Sets the pause between checks.
    pub(super) fn set_pause(&mut self, pause: u64) {
        self.pause = pause;
    }

    /// Returns the time at `real`; never 0.
    pub(super) fn at(&self, real: u64) -> u64 {
        self.now + real.saturating_sub(self.looked).min(self.pause)
    }

    /// Records a check at `real`. False if it is late: calls may have returned whose threads have not run yet. The
    /// check after a late one counts, however late it is.
    pub(super) fn look(&mut self, real: u64) -> bool {
        let gone = real.saturating_sub(self.looked);
        let is_late = gone > 2 * self.pause;
        self.now += if is_late { self.pause } else { gone };
        self.looked = real;
        let counts = !is_late || self.was_late;
        self.was_late = is_late && !self.was_late;
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_stands_still_while_the_daemon_does() {
        let mut clock = Clock::new(10);
        assert_eq!((clock.at(4), clock.look(8), clock.at(12)), (5, true, 13));
        // After an hour's stop that check does not count, and almost no time has passed.
        assert_eq!((clock.at(3_600_000), clock.look(3_600_000), clock.at(3_600_000)), (19, false, 19));
        assert!(clock.look(3_600_010));
        assert_eq!(clock.at(3_600_010), 29);
        // If all checks are late, every second one counts.
        assert!(!clock.look(3_601_000) && clock.look(3_602_000) && !clock.look(3_603_000));
    }
}
