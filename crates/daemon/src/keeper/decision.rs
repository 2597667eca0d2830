//! Decisions of the keeper, without clock, descriptor or process.

use std::time::Duration;

/// Daemons that may die within [`DEATHS_WITHIN`].
pub(super) const DEATHS: usize = 3;
/// Time in which deaths of daemons are counted.
const DEATHS_WITHIN: Duration = Duration::from_secs(60);

/// The daemon serves: its death is survived.
pub(super) const SERVES: u64 = 1;
/// The mount is gone.
pub(super) const ENDED: u64 = 2;
/// The daemon has ended for an upgrade, or the next one does not serve yet.
pub(super) const HANDS_OVER: u64 = 3;

/// The daemon ends the pool.
pub(super) const ENDS: u64 = 4;

/// Action of the keeper at the end of its daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterEnd {
    /// Starts the same program again, or ends the pool in place of a daemon that was about to.
    Revive,
    /// Becomes the program that was passed.
    Upgrade,
    /// Becomes the program before: the next one has ended before it served.
    GoBack,
    /// Ends with the daemon.
    End,
}

/// Decides by the daemon's `stage`; `is_passed`: a program to become was set, and not taken yet.
pub(super) fn after_end(stage: u64, is_passed: bool) -> AfterEnd {
    match stage {
        SERVES | ENDS => AfterEnd::Revive,
        HANDS_OVER if is_passed => AfterEnd::Upgrade,
        HANDS_OVER => AfterEnd::GoBack,
        _ => AfterEnd::End,
    }
}

/// Adds a death to the `times` of the last ones, in milliseconds since the machine's start. True: too many within a while.
pub(super) fn add_death(times: &mut [u64; DEATHS], at: u64) -> bool {
    // The oldest goes.
    times.rotate_left(1);
    times[DEATHS - 1] = at;
    let within = u64::try_from(DEATHS_WITHIN.as_millis()).unwrap_or(u64::MAX);
    times[0] != 0 && at.saturating_sub(times[0]) < within
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A keeper with its daemon, as far as the decisions go.
    #[derive(Clone, Copy, Debug, Default)]
    struct KeptPool {
        now: u64,
        stage: u64,
        is_passed: bool,
        /// An upgrade has not served yet: the program before is held for the way back.
        is_new: bool,
        is_over: bool,
        times: [u64; DEATHS],
        /// Times of all restarts after a death.
        restarts: [u64; STEPS],
        restarted: usize,
    }

    /// Length of a history.
    const STEPS: usize = 9;

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Serves,
        Dies,
        DiesLater,
        HandsOver,
        Unmounted,
    }

    impl KeptPool {
        fn step(&mut self, event: Event) {
            self.now += 10_000;
            match event {
                Event::Serves => (self.stage, self.is_new) = (SERVES, false),
                Event::HandsOver if self.stage == SERVES => {
                    (self.stage, self.is_passed) = (HANDS_OVER, true);
                    self.ends();
                }
                Event::Unmounted if self.stage == SERVES => {
                    self.stage = ENDED;
                    self.ends();
                    assert!(self.is_over, "a daemon is started for a mount that is gone");
                }
                Event::HandsOver | Event::Unmounted => {}
                Event::Dies => self.ends(),
                Event::DiesLater => {
                    self.now += 60_000;
                    self.ends();
                }
            }
        }

        fn ends(&mut self) {
            match after_end(self.stage, self.is_passed) {
                AfterEnd::Revive => {
                    if add_death(&mut self.times, self.now) {
                        self.is_over = true;
                        return;
                    }
                    self.restarts[self.restarted] = self.now;
                    self.restarted += 1;
                    let late = self.restarts[..self.restarted].iter().filter(|at| **at + 60_000 > self.now);
                    assert!(late.count() < DEATHS, "it is restarted as often as it dies");
                }
                AfterEnd::Upgrade => {
                    assert!(!self.is_new, "an upgrade in an upgrade");
                    (self.is_passed, self.is_new) = (false, true);
                }
                AfterEnd::GoBack => {
                    assert!(self.is_new, "there is no program to go back to");
                    // The next failure has no older program to go back to; `revive::upgrade` sees to it likewise.
                    (self.stage, self.is_new) = (SERVES, false);
                }
                AfterEnd::End => self.is_over = true,
            }
        }
    }

    fn go_on(pool: KeptPool, steps: usize) -> usize {
        if pool.is_over || steps == 0 {
            return 1;
        }
        let events = [Event::Serves, Event::Dies, Event::DiesLater, Event::HandsOver, Event::Unmounted];
        let after = |event| {
            let mut next = pool;
            next.step(event);
            go_on(next, steps - 1)
        };
        events.into_iter().map(after).sum()
    }

    /// All histories of so many events: a daemon that dies is restarted, but not for ever; a next program that does not serve is
    /// followed by the one before, once; the keeper ends with a mount that is gone.
    #[test]
    fn the_keeper_goes_on_or_ends_in_every_history() {
        let begun = KeptPool { stage: SERVES, ..KeptPool::default() };
        assert!(go_on(begun, STEPS) > 100_000);
    }

    #[test]
    fn a_daemon_that_never_served_is_not_restarted() {
        assert_eq!(after_end(0, false), AfterEnd::End);
    }

    /// The program that it becomes unmounts it.
    #[test]
    fn the_keeper_of_a_daemon_that_was_ending_ends_the_pool() {
        assert_eq!(after_end(ENDS, false), AfterEnd::Revive);
    }

    #[test]
    fn deaths_far_apart_are_no_reason_to_end() {
        let mut times = [0; DEATHS];
        assert!((1..10).all(|n| !add_death(&mut times, n * 30_000)));
        assert!(add_death(&mut times, 9 * 30_000 + 1));
    }
}
