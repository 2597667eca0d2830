//! How long a job stands aside between moves: pure, without I/O and clock.
//!
//! A job is to notice that programs wait longer for its branches. The calls of each kind that the branches answered while it stood
//! aside, or before it began, show how long 99 of 100 take then. While it is at work, calls that take more than twice as long are
//! late. More than one late call in a hundred means that the 99th has doubled, whatever mix of calls programs make now. Times are
//! known to a factor of two: a call counts as late only if it certainly took that much longer.
//!
//! Each time that happens the job is at work for half as much of the time as before, and twice as much when it does not. It never
//! stands still: a pause is bounded.

use std::collections::HashMap;
use std::time::Duration;

use fsstack_branch::metrics::CallTimes;
use fsstack_pool::BranchIx;

/// Calls of a kind that tell how long it takes at rest.
const LEAST_AT_REST: u64 = 100;
/// Calls that a judgement needs.
const LEAST_AT_WORK: u64 = 200;
/// Late calls that are no chance.
const LEAST_LATE: u64 = 3;
/// Work of a job after which a judgement is due even if programs make hardly a call.
const LONGEST_WORK: Duration = Duration::from_secs(10);
/// Work of a job that is not looked at.
const SHORTEST_WORK: Duration = Duration::from_millis(100);
/// Pause of a job to learn what is usual.
const LEARNING_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause of a job for the sake of programs.
const LONGEST_PACE_PAUSE: Duration = Duration::from_secs(10);
/// Work of a job between two pauses that only serve to learn.
const LEARN_AFTER_WORK: Duration = Duration::from_secs(20);
/// Halvings of the time at work.
const LOWEST: u32 = 3;

/// A branch's calls by programs.
#[derive(Clone, Debug, Default)]
struct Compared {
    at_rest: CallTimes,
    at_work: CallTimes,
}

/// Judgement of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Slower,
    AsUsual,
    /// Programs use it, but what is usual is not known.
    Unknown,
    TooFew,
}

impl Compared {
    fn verdict(&self) -> Verdict {
        let (mut compared, mut late, mut unknown) = (0_u64, 0_u64, 0_u64);
        for (at_rest, at_work) in self.at_rest.kinds().zip(self.at_work.kinds()) {
            let made: u64 = at_work.iter().sum();
            let known: u64 = at_rest.iter().sum();
            if known < LEAST_AT_REST {
                unknown += made;
                continue;
            }
            let mut up_to = 0;
            let usual = at_rest.iter().position(|count| {
                up_to += count;
                up_to * 100 >= known * 99
            });
            compared += made;
            // The next bucket begins where this one ends, and is as wide.
            late += at_work.iter().skip(usual.map_or(0, |usual| usual + 2)).sum::<u64>();
        }
        match (compared, unknown) {
            (LEAST_AT_WORK.., _) if late >= LEAST_LATE && late * 100 > compared => Verdict::Slower,
            (LEAST_AT_WORK.., _) => Verdict::AsUsual,
            (_, LEAST_AT_WORK..) => Verdict::Unknown,
            _ => Verdict::TooFew,
        }
    }
}

/// Knowledge of a job about its branches, and how much it stands aside.
#[derive(Debug, Default)]
pub(super) struct Pace {
    branches: HashMap<BranchIx, Compared>,
    /// Halvings of the time at work.
    level: u32,
    /// Work since the last judgement, since the last look, and since the last pause.
    unjudged: Duration,
    unlooked: Duration,
    unpaused: Duration,
}

impl Pace {
    /// Programs made these calls while the job was not at work.
    pub(super) fn rested(&mut self, branch: BranchIx, calls: &CallTimes) {
        let known = &mut self.branches.entry(branch).or_default().at_rest;
        // The last times count most. Few calls say little.
        if calls.total() >= LEAST_AT_REST {
            known.halve();
        }
        known.add(calls);
    }

    /// The job was at work for `time`. True: [`Self::pause`] is to be asked.
    pub(super) fn worked(&mut self, time: Duration) -> bool {
        for sum in [&mut self.unjudged, &mut self.unlooked, &mut self.unpaused] {
            *sum = sum.saturating_add(time);
        }
        self.unpaused >= SHORTEST_WORK
    }

    /// Pause before the next move. Programs made the calls in `at_work` since the last one.
    pub(super) fn pause<'c>(
        &mut self,
        at_work: impl IntoIterator<Item = (BranchIx, &'c CallTimes)>,
    ) -> Duration {
        for (branch, calls) in at_work {
            self.branches.entry(branch).or_default().at_work.add(calls);
        }
        let verdicts: Vec<Verdict> = self.branches.values().map(Compared::verdict).collect();
        let is_slower = verdicts.contains(&Verdict::Slower);
        if is_slower || verdicts.contains(&Verdict::AsUsual) || self.unjudged >= LONGEST_WORK {
            self.level = if is_slower { (self.level + 1).min(LOWEST) } else { self.level.saturating_sub(1) };
            self.unjudged = Duration::ZERO;
            self.branches.values_mut().for_each(|branch| branch.at_work = CallTimes::default());
        }
        let worked = std::mem::take(&mut self.unpaused);
        let aside = worked.saturating_mul((1 << self.level) - 1).min(LONGEST_PACE_PAUSE);
        let looks = verdicts.contains(&Verdict::Unknown) && self.unlooked >= LEARN_AFTER_WORK;
        let pause = if looks { aside.max(LEARNING_PAUSE) } else { aside };
        if !pause.is_zero() {
            self.unlooked = Duration::ZERO;
        }
        pause
    }

    /// Share of the time at work, in percent.
    pub(super) fn percent(&self) -> u32 {
        100 >> self.level
    }
}

#[cfg(test)]
mod tests {
    use fsstack_branch::metrics::BUCKETS;
    use proptest::prelude::*;

    use super::*;

    const BRANCH: BranchIx = BranchIx(1);

    /// So many calls of two kinds in these buckets.
    fn calls(one: &[(usize, u64)], other: &[(usize, u64)]) -> CallTimes {
        let mut calls = CallTimes::default();
        for (kind, rows) in [one, other].into_iter().enumerate() {
            rows.iter().for_each(|(bucket, count)| calls.count(kind, *bucket, *count));
        }
        calls
    }

    fn after(pace: &mut Pace, at_work: &CallTimes) -> Duration {
        assert!(pace.worked(Duration::from_secs(1)));
        pace.pause([(BRANCH, at_work)])
    }

    #[test]
    fn a_job_stands_aside_while_calls_take_more_than_twice_as_long_and_not_for_another_mix() {
        let mut pace = Pace::default();
        pace.rested(BRANCH, &calls(&[(5, 1000)], &[(12, 1000)]));
        // Only slow ones now, and a bucket more, which may be no time at all.
        assert_eq!(after(&mut pace, &calls(&[], &[(12, 500), (13, 500)])), Duration::ZERO);
        let slow = calls(&[(5, 980), (7, 20)], &[]);
        let pauses: Vec<u64> = (0..7).map(|_| after(&mut pace, &slow).as_secs()).collect();
        assert_eq!((pauses, pace.percent()), (vec![1, 3, 7, 7, 7, 7, 7], 12));
        let usual = calls(&[(5, 995), (7, 5)], &[]);
        let pauses: Vec<u64> = (0..6).map(|_| after(&mut pace, &usual).as_secs()).collect();
        assert_eq!((pauses, pace.percent()), (vec![3, 1, 0, 0, 0, 0], 100));
    }

    #[test]
    fn where_calls_are_as_slow_while_it_stands_aside_the_job_is_not_why() {
        let mut pace = Pace::default();
        pace.rested(BRANCH, &calls(&[(5, 1000)], &[]));
        let slow = calls(&[(9, 500)], &[]);
        assert!(after(&mut pace, &slow) > Duration::ZERO);
        (0..8).for_each(|_| pace.rested(BRANCH, &slow));
        assert_eq!((after(&mut pace, &slow), pace.percent()), (Duration::ZERO, 100));
    }

    #[test]
    fn what_is_usual_is_looked_for_now_and_then_and_nobody_is_waited_for() {
        let mut pace = Pace::default();
        let unknown = calls(&[(5, 1000)], &[]);
        let pauses: Vec<bool> = (0..41).map(|_| after(&mut pace, &unknown) == LEARNING_PAUSE).collect();
        assert_eq!(pauses.iter().filter(|looked| **looked).count(), 2);
        // Programs have gone.
        pace.rested(BRANCH, &calls(&[(1, 1000)], &[]));
        assert!(after(&mut pace, &unknown) > Duration::ZERO);
        (0..20).for_each(|_| _ = after(&mut pace, &CallTimes::default()));
        assert_eq!(after(&mut pace, &CallTimes::default()), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn the_same_times_never_slow_a_job_down(
            rows in prop::collection::vec((0..BUCKETS, 1_u64..2000), 1..12),
            other in prop::collection::vec((0..BUCKETS, 1_u64..2000), 0..12),
        ) {
            let (mut pace, same) = (Pace::default(), calls(&rows, &other));
            pace.rested(BRANCH, &same);
            for _ in 0..5 {
                prop_assert_eq!(after(&mut pace, &same), Duration::ZERO);
            }
        }

        #[test]
        fn a_pause_is_bounded_and_the_job_is_always_at_work_for_some_of_the_time(
            steps in prop::collection::vec((0..BUCKETS, 0_u64..5000, 0_u64..100_000, any::<bool>()), 0..60),
        ) {
            let mut pace = Pace::default();
            for (bucket, count, millis, rests) in steps {
                let calls = calls(&[(bucket, count)], &[]);
                if rests {
                    pace.rested(BRANCH, &calls);
                } else if pace.worked(Duration::from_millis(millis)) {
                    prop_assert!(pace.pause([(BRANCH, &calls)]) <= LONGEST_PACE_PAUSE);
                }
                prop_assert!((12..=100).contains(&pace.percent()));
            }
        }
    }
}
