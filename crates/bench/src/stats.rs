//! Statistics of few rounds: median, quartiles, a ratio with its interval, and a verdict if possible.

use serde::{Deserialize, Serialize};

/// Resamples of a bootstrap.
const RESAMPLES: usize = 2000;

/// Minimum number of rounds for a verdict.
pub(crate) const FEWEST_ROUNDS: usize = 5;

/// The middle of samples and how they spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spread {
    pub(crate) rounds: usize,
    pub(crate) median: f64,
    pub(crate) lower_quartile: f64,
    pub(crate) upper_quartile: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// Quantile `q` of sorted samples, interpolated.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = q * last as f64;
    let mut below = 0;
    // Counts up, so that no float is cast to an index.
    while below < last && (below + 1) as f64 <= place {
        below += 1;
    }
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut all = samples.to_vec();
    all.sort_by(f64::total_cmp);
    all
}

/// The median; NaN of nothing.
pub(crate) fn median(samples: &[f64]) -> f64 {
    quantile(&sorted(samples), 0.5)
}

impl Spread {
    /// Quartiles of samples; `None` if there are none.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
        let all = sorted(samples);
        let (least, most) = (*all.first()?, *all.last()?);
        Some(Self {
            rounds: all.len(),
            median: quantile(&all, 0.5),
            lower_quartile: quantile(&all, 0.25),
            upper_quartile: quantile(&all, 0.75),
            least,
            most,
        })
    }

    /// Half the interquartile range as a fraction of the median.
    pub(crate) fn relative(&self) -> f64 {
        (self.upper_quartile - self.lower_quartile) / 2.0 / self.median
    }
}

/// Ratio of a target to the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ratio {
    /// The ratio of the medians.
    pub(crate) value: f64,
    /// The ends of its 95 % interval.
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) verdict: Verdict,
}

/// Verdict on a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// The whole interval lies above 1.
    Faster,
    /// The whole interval lies below 1.
    Slower,
    /// The whole interval lies within 3 % of 1.
    Same,
    /// The interval contains 1 but is wider.
    Unclear,
    /// Too few rounds for a verdict.
    TooFewRounds,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Same => "the same within 3 %",
            Self::Unclear => "cannot be told apart",
            Self::TooFewRounds => "too few rounds to say",
        })
    }
}

impl Verdict {
    fn of(low: f64, high: f64, rounds: usize) -> Self {
        match () {
            () if rounds < FEWEST_ROUNDS => Self::TooFewRounds,
            () if 0.97 <= low && high <= 1.03 => Self::Same,
            () if 1.0 < low => Self::Faster,
            () if high < 1.0 => Self::Slower,
            () => Self::Unclear,
        }
    }
}

/// Ratio of two targets measured in the same rounds, as pairs of theirs and the baseline's. Resampling keeps pairs
/// together, so that disturbances of a whole round cancel out. `None` without rounds, or with a baseline of 0.
pub(crate) fn paired_ratio(pairs: &[(f64, f64)], seed: u64) -> Option<Ratio> {
    let of = |pairs: &[(f64, f64)]| {
        let (theirs, baseline): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        median(&theirs) / median(&baseline)
    };
    bootstrap(of(pairs), pairs.len(), seed, |rng| {
        of(&(0..pairs.len()).map(|_| pairs[rng.usize(..pairs.len())]).collect::<Vec<_>>())
    })
}

/// Ratio of two independently measured sets of samples.
pub(crate) fn unpaired_ratio(theirs: &[f64], baseline: &[f64], seed: u64) -> Option<Ratio> {
    let rounds = theirs.len().min(baseline.len());
    bootstrap(median(theirs) / median(baseline), rounds, seed, |rng| {
        let mut draw =
            |from: &[f64]| median(&from.iter().map(|_| from[rng.usize(..from.len())]).collect::<Vec<_>>());
        draw(theirs) / draw(baseline)
    })
}

/// Interval of `value` over resamples, with the verdict.
fn bootstrap(
    value: f64,
    rounds: usize,
    seed: u64,
    resample: impl Fn(&mut fastrand::Rng) -> f64,
) -> Option<Ratio> {
    if !value.is_finite() || rounds == 0 {
        return None;
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut ratios: Vec<f64> = (0..RESAMPLES).map(|_| resample(&mut rng)).filter(|r| r.is_finite()).collect();
    ratios.sort_by(f64::total_cmp);
    let (low, high) = (quantile(&ratios, 0.025).min(value), quantile(&ratios, 0.975).max(value));
    Some(Ratio { value, low, high, verdict: Verdict::of(low, high, rounds) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rates() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(1.0_f64..1e10, 1..20)
    }

    proptest! {
        #[test]
        fn a_spread_is_in_order(samples in rates()) {
            let s = Spread::of(&samples).unwrap();
            let order = [s.least, s.lower_quartile, s.median, s.upper_quartile, s.most];
            prop_assert!(order.windows(2).all(|w| w[0] <= w[1]));
            let below = samples.iter().filter(|&&x| x <= s.median).count();
            let above = samples.iter().filter(|&&x| s.median <= x).count();
            prop_assert!(samples.len() <= 2 * below && samples.len() <= 2 * above);
        }

        #[test]
        fn the_order_of_samples_says_nothing(samples in rates(), seed: u64) {
            let mut other = samples.clone();
            fastrand::Rng::with_seed(seed).shuffle(&mut other);
            prop_assert_eq!(Spread::of(&samples), Spread::of(&other));
        }

        #[test]
        fn an_interval_holds_its_ratio(pairs in prop::collection::vec((1.0_f64..1e6, 1.0_f64..1e6), 1..12), seed: u64) {
            let r = paired_ratio(&pairs, seed).unwrap();
            prop_assert!(r.low <= r.value && r.value <= r.high, "{:?}", r);
            let single: Vec<f64> = pairs.iter().map(|p| p.0).collect();
            let base: Vec<f64> = pairs.iter().map(|p| p.1).collect();
            prop_assert!((r.value - median(&single) / median(&base)).abs() <= 1e-9 * r.value);
            let u = unpaired_ratio(&single, &base, seed).unwrap();
            prop_assert!(u.low <= u.value && u.value <= u.high);
            prop_assert_eq!(paired_ratio(&pairs, seed), Some(r), "the same seed says the same");
        }

        #[test]
        fn a_common_factor_is_found_exactly(base in prop::collection::vec(1.0_f64..1e6, 5..12), factor in 0.1_f64..10.0) {
            // Each round is disturbed differently, both targets alike: each resample's ratio is the factor.
            let pairs: Vec<(f64, f64)> = base.iter().map(|b| (b * factor, *b)).collect();
            let r = paired_ratio(&pairs, 1).unwrap();
            prop_assert!((r.low - factor).abs() < 1e-6 * factor && (r.high - factor).abs() < 1e-6 * factor);
        }

        #[test]
        fn words_are_said_only_if_the_interval_allows(pairs in prop::collection::vec((1.0_f64..100.0, 1.0_f64..100.0), 1..12)) {
            let r = paired_ratio(&pairs, 3).unwrap();
            match r.verdict {
                Verdict::Faster => prop_assert!(1.0 < r.low),
                Verdict::Slower => prop_assert!(r.high < 1.0),
                Verdict::Same => prop_assert!(0.97 <= r.low && r.high <= 1.03),
                Verdict::Unclear => prop_assert!(r.low <= 1.0 && 1.0 <= r.high),
                Verdict::TooFewRounds => prop_assert!(pairs.len() < FEWEST_ROUNDS),
            }
        }
    }

    #[test]
    fn nothing_has_no_spread_and_no_ratio() {
        assert_eq!(Spread::of(&[]), None);
        assert!(median(&[]).is_nan());
        assert_eq!(paired_ratio(&[], 1), None);
        assert_eq!(paired_ratio(&[(1.0, 0.0)], 1), None);
        assert_eq!(unpaired_ratio(&[1.0], &[], 1), None);
    }

    #[test]
    fn quartiles_lie_between_neighbours() {
        let s = Spread::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((s.lower_quartile, s.median, s.upper_quartile), (1.75, 2.5, 3.25));
    }
}
