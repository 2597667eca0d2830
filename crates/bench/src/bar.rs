//! Bars: what a plan promises about a target, and whether its rounds decide it. decisions/0102 has the reasons.

use serde::{Deserialize, Serialize};

use crate::record::Measurement;
use crate::stats::{Estimate, MISS, fewest, hodges_lehmann, paired_estimate};

/// A promise about one case on one target.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Promise {
    /// Subject of the promise in a word or two: `writes`.
    pub(crate) name: String,
    pub(crate) case: String,
    pub(crate) target: String,
    /// The target that it is compared with.
    pub(crate) baseline: String,
    pub(crate) limit: Limit,
}

/// The limit of a bar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Limit {
    /// The rate is at least this part of the baseline's.
    RateAtLeast(f64),
    /// A program uses at most this part of the stack's CPU time.
    CpuPartAtMost { program: &'static str, part: f64 },
}

/// Decision on a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Decision {
    /// The whole interval lies on the promised side.
    Met,
    /// The whole interval lies on the other side.
    Missed,
    /// The interval holds the limit, or there are too few rounds for one.
    NotDecided,
}

impl std::fmt::Display for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::NotDecided => "not decided",
        })
    }
}

/// A bar with its decision, in results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct DecidedBar {
    pub(crate) name: String,
    pub(crate) case: String,
    pub(crate) target: String,
    /// `rate`, or `cpu-part` of the stack.
    pub(crate) of: Measure,
    /// At least this for `rate`, at most this for `cpu-part`.
    pub(crate) limit: f64,
    pub(crate) value: f64,
    /// Ends of the interval that decides.
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) rounds: usize,
    pub(crate) decision: Decision,
}

/// Quantity that a bar limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Measure {
    /// Ratio of the rate to the baseline's.
    Rate,
    /// Part of the stack's CPU time.
    CpuPart,
}

impl Promise {
    /// Decides it by the rounds measured so far, at one of `looks` looks. `None` without rounds.
    pub(crate) fn decided(&self, measured: &[Measurement], looks: usize) -> Option<DecidedBar> {
        // Each look may be wrong; together they are as rarely as one interval of 95 %.
        let miss = MISS / looks.max(1) as f64;
        let mine = || measured.iter().filter(|m| m.case == self.case && m.target == self.target);
        let (of, limit, rounds, estimate) = match self.limit {
            Limit::RateAtLeast(limit) => {
                let pairs = pairs(measured, &self.case, &self.target, &self.baseline);
                (Measure::Rate, limit, pairs.len(), paired_estimate(&pairs, miss)?)
            }
            Limit::CpuPartAtMost { program, part } => {
                // A stack without the program has no such part.
                mine().find(|m| m.used.iter().any(|used| used.program == program))?;
                let parts: Vec<f64> = mine().filter_map(|m| cpu_part(m, program)).collect();
                (Measure::CpuPart, part, parts.len(), hodges_lehmann(&parts, miss)?)
            }
        };
        let Estimate { value, low, high } = estimate;
        let (name, case, target) = (self.name.clone(), self.case.clone(), self.target.clone());
        let decision = match rounds {
            few if few < fewest(miss) => Decision::NotDecided,
            _ => decide(of, limit, low, high),
        };
        Some(DecidedBar { name, case, target, of, limit, value, low, high, rounds, decision })
    }
}

fn decide(of: Measure, limit: f64, low: f64, high: f64) -> Decision {
    let (surely_above, surely_below) = (limit <= low, high < limit);
    match of {
        Measure::Rate if surely_above => Decision::Met,
        Measure::Rate if surely_below => Decision::Missed,
        Measure::CpuPart if high <= limit => Decision::Met,
        Measure::CpuPart if limit < low => Decision::Missed,
        Measure::Rate | Measure::CpuPart => Decision::NotDecided,
    }
}

/// Rates of a target and of its baseline in the rounds that both have.
pub(crate) fn pairs(measured: &[Measurement], case: &str, target: &str, baseline: &str) -> Vec<(f64, f64)> {
    let of = |target: &str| {
        let target = target.to_owned();
        measured.iter().filter(move |m| m.case == case && m.target == target)
    };
    let pair = |m: &Measurement| of(baseline).find(|b| b.round == m.round).map(|b| (m.rate, b.rate));
    of(target).filter_map(pair).collect()
}

fn cpu_part(measured: &Measurement, program: &str) -> Option<f64> {
    let all: f64 = measured.used.iter().map(|used| used.cpu_seconds).sum();
    let own: f64 = measured.used.iter().filter(|u| u.program == program).map(|u| u.cpu_seconds).sum();
    // An empty sum is -0.
    (0.0 < all).then(|| (own / all).abs())
}

/// Numbers of rounds after which bars are decided: `rounds`, and twice as many each time up to `most`.
pub(crate) fn looks(rounds: u32, most: u32) -> Vec<u32> {
    let next = |now: &u32| (*now < most).then(|| now.saturating_mul(2).min(most));
    if rounds == 0 { Vec::new() } else { std::iter::successors(Some(rounds), next).collect() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stack::Used;

    fn measurement(target: &str, round: u32, rate: f64, cpu: &[(&str, f64)]) -> Measurement {
        let used = |&(program, cpu_seconds): &(&str, f64)| Used {
            program: program.to_owned(),
            processes: 1,
            cpu_seconds,
            voluntary_switches: 0,
            involuntary_switches: 0,
        };
        let example = Measurement::example(cpu.iter().map(used).collect());
        Measurement { target: target.into(), round, rate, ..example }
    }

    fn bar(limit: Limit) -> Promise {
        let [name, case, target, baseline] = ["writes", "write", "pool", "direct"].map(str::to_owned);
        Promise { name, case, target, baseline, limit }
    }

    /// Rounds with these ratios.
    fn rounds(ratios: &[f64]) -> Vec<Measurement> {
        let both = |(n, ratio): (usize, &f64)| {
            let round = u32::try_from(n).unwrap();
            [measurement("direct", round, 100.0, &[]), measurement("pool", round, 100.0 * ratio, &[])]
        };
        ratios.iter().enumerate().flat_map(both).collect()
    }

    proptest! {
        #[test]
        fn a_decision_is_said_only_if_the_interval_allows(
            ratios in prop::collection::vec(0.5_f64..1.5, 1..30), limit in 0.7_f64..1.2, looks in 1_usize..5
        ) {
            let bar = bar(Limit::RateAtLeast(limit)).decided(&rounds(&ratios), looks).unwrap();
            prop_assert!(bar.low <= bar.value && bar.value <= bar.high && bar.rounds == ratios.len());
            let enough = fewest(MISS / looks as f64) <= ratios.len();
            match bar.decision {
                Decision::Met => prop_assert!(enough && limit <= bar.low),
                Decision::Missed => prop_assert!(enough && bar.high < limit),
                Decision::NotDecided => prop_assert!(!enough || (bar.low < limit && limit <= bar.high)),
            }
        }

        #[test]
        fn looks_end_with_the_most_rounds(rounds in 1_u32..50, more in 0_u32..500) {
            let looks = looks(rounds, rounds + more);
            prop_assert!(looks[0] == rounds && looks[looks.len() - 1] == rounds + more);
            prop_assert!(looks.windows(2).all(|two| two[0] < two[1] && two[1] <= 2 * two[0]));
        }
    }

    #[test]
    fn a_bar_is_met_missed_or_not_decided() {
        let decided = |ratios: &[f64]| bar(Limit::RateAtLeast(0.97)).decided(&rounds(ratios), 1).unwrap();
        assert_eq!(decided(&[1.0, 1.01, 0.99, 0.98, 1.02, 1.0]).decision, Decision::Met);
        assert_eq!(decided(&[0.9, 0.91, 0.92, 0.9, 0.91, 0.9]).decision, Decision::Missed);
        assert_eq!(decided(&[0.9, 1.1, 0.95, 1.0, 1.05, 0.9]).decision, Decision::NotDecided);
        assert_eq!(decided(&[1.0; 5]).decision, Decision::NotDecided, "five rounds have no interval");
        assert_eq!(bar(Limit::RateAtLeast(0.97)).decided(&[], 1), None);
    }

    #[test]
    fn cpu_time_has_a_bar_of_its_own() {
        let limit = || bar(Limit::CpuPartAtMost { program: "fsstack", part: 0.01 });
        let rounds = |part: f64| -> Vec<Measurement> {
            let one = |n| measurement("pool", n, 1.0, &[("fsstack", part), ("glusterfs", 1.0 - part)]);
            (0..6).map(one).collect()
        };
        let met = limit().decided(&rounds(0.004), 1).unwrap();
        assert_eq!((met.decision, met.of), (Decision::Met, Measure::CpuPart));
        assert!((met.value - 0.004).abs() < 1e-9);
        assert_eq!(limit().decided(&rounds(0.02), 1).unwrap().decision, Decision::Missed);
        let without: Vec<_> = (0..6).map(|n| measurement("pool", n, 1.0, &[("glusterfs", 1.0)])).collect();
        assert_eq!(limit().decided(&without, 1), None);
    }

    #[test]
    fn looking_several_times_is_not_wrong_more_often() {
        let mut rng = fastrand::Rng::with_seed(7);
        let looks = looks(6, 48);
        assert_eq!(looks, [6, 12, 24, 48]);
        let (mut wrong, runs) = (0, 400);
        for _ in 0..runs {
            // The truth is just below the bar: met is wrong, and being on the bar is the worst case.
            let mut noise = || (0..12).map(|_| rng.f64() - 0.5).sum::<f64>() * 0.1;
            let ratios: Vec<f64> = (0..48).map(|_| 0.9699 * noise().exp()).collect();
            let all = rounds(&ratios);
            let met = |look: &u32| {
                let so_far = usize::try_from(*look).unwrap() * 2;
                let bar = bar(Limit::RateAtLeast(0.97)).decided(&all[..so_far], looks.len()).unwrap();
                bar.decision == Decision::Met
            };
            wrong += u32::from(looks.iter().any(met));
        }
        // One side of four intervals of 98.75 %: at most 2.5 % of 400.
        assert!(wrong <= 20, "{wrong} of {runs}");
    }
}
