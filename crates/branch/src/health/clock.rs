//! Time that calls spend in a branch, as the daemon sees it: time during which the daemon itself stands still (SIGSTOP, a
//! frozen cgroup, a suspended machine) says nothing of a branch.

/// Clock in milliseconds that stands still while the daemon does: the monitor's looks move it on, each by no more than the
/// pause that was planned between two of them.
#[derive(Debug)]
pub(super) struct Clock {
    now: u64,
    /// Real time of the last look.
    looked: u64,
    pause: u64,
    was_late: bool,
}

impl Clock {
    /// A clock whose looks are `pause` apart.
    pub(super) fn new(pause: u64) -> Self {
        Self { now: 1, looked: 0, pause, was_late: false }
    }

    /// Looks are `pause` apart from now on.
    pub(super) fn set_pause(&mut self, pause: u64) {
        self.pause = pause;
    }

    /// Time at `real`; never 0.
    pub(super) fn at(&self, real: u64) -> u64 {
        self.now + real.saturating_sub(self.looked).min(self.pause)
    }

    /// A look at `real`. False: it is late, and calls may have returned whose threads did not run yet; the next look counts
    /// however late it is.
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
        // Paused for an hour: that look does not count, and next to nothing has passed.
        assert_eq!((clock.at(3_600_000), clock.look(3_600_000), clock.at(3_600_000)), (19, false, 19));
        assert!(clock.look(3_600_010));
        assert_eq!(clock.at(3_600_010), 29);
        // Looks that are always late count all the same.
        assert!(!clock.look(3_601_000) && clock.look(3_602_000) && !clock.look(3_603_000));
    }
}
