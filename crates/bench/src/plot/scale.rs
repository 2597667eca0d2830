//! Axes: map values to positions and place the marks.

/// Type of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    /// Equal steps, from 0.
    Linear,
    /// Equal factors; values must be above 0.
    Log,
}

/// An axis that covers given values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    axis: Axis,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Makes an axis for `values` between the positions `from` and `to`. A log axis ignores values that it cannot show.
    pub(super) fn covering(axis: Axis, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let usable = values.filter(|v| v.is_finite() && (axis == Axis::Linear || 0.0 < *v));
        let (low, high) = usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = if low.is_finite() { (low, high) } else { (1.0, 1.0) };
        let (low, high) = match axis {
            Axis::Linear => (low.min(0.0), if high <= 0.0 { 1.0 } else { high * 1.02 }),
            Axis::Log if high / low < 2.0 => (low / 1.5, high * 1.5),
            Axis::Log => (low / 1.1, high * 1.1),
        };
        Self { axis, low, high, from, to }
    }

    /// Position of a value, clamped to the axis.
    pub(super) fn place(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        let part = match self.axis {
            Axis::Linear => (value - self.low) / (self.high - self.low),
            Axis::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from + part * (self.to - self.from)
    }

    /// Round values within the axis, at most `most`.
    pub(super) fn ticks(&self, most: usize) -> Vec<f64> {
        match self.axis {
            Axis::Linear => self.linear_ticks(most),
            Axis::Log => self.log_ticks(most),
        }
    }

    fn linear_ticks(&self, most: usize) -> Vec<f64> {
        let raw = (self.high - self.low) / most.max(1) as f64;
        let power = 10_f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|s| raw <= *s).unwrap_or(raw);
        let first = (self.low / step).ceil() * step;
        let values = std::iter::successors(Some(first), |v| Some(v + step));
        values.take_while(|v| *v <= self.high).take(most + 1).collect()
    }

    fn log_ticks(&self, most: usize) -> Vec<f64> {
        let within = |steps: &[f64]| -> Vec<f64> {
            let mut power = 10_f64.powf(self.low.log10().floor());
            let mut found = Vec::new();
            while power <= self.high && found.len() < 200 {
                found.extend(steps.iter().map(|s| s * power).filter(|v| self.low <= *v && *v <= self.high));
                power *= 10.0;
            }
            found
        };
        let tries = [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]];
        let fitting = tries.into_iter().map(within).find(|t| t.len() <= most);
        let mut ticks = fitting.unwrap_or_else(|| {
            let all = within(&[1.0]);
            let every = all.len().div_ceil(most.max(1)).max(1);
            all.into_iter().step_by(every).collect()
        });
        if ticks.len() < 2 {
            ticks = within(&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        }
        ticks
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn values_keep_their_order_and_ticks_lie_within(
            values in prop::collection::vec(1e-3_f64..1e12, 1..20), log: bool, most in 3_usize..9
        ) {
            let axis = if log { Axis::Log } else { Axis::Linear };
            let scale = Scale::covering(axis, values.iter().copied(), 0.0, 100.0);
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            prop_assert!(sorted.windows(2).all(|w| scale.place(w[0]) <= scale.place(w[1])));
            prop_assert!(sorted.iter().all(|v| (-0.01..=100.01).contains(&scale.place(*v))));
            let ticks = scale.ticks(most);
            prop_assert!(!ticks.is_empty() && ticks.len() <= most.max(10) + 1, "{:?}", ticks);
            prop_assert!(ticks.iter().all(|t| (-0.01..=100.01).contains(&scale.place(*t))));
        }
    }

    #[test]
    fn ticks_are_round() {
        let shown =
            |scale: Scale, most| scale.ticks(most).iter().map(|t| format!("{t:.1e}")).collect::<Vec<_>>();
        let log = Scale::covering(Axis::Log, [4e6, 2e9].into_iter(), 0.0, 1.0);
        assert_eq!(shown(log, 6), ["1.0e7", "3.0e7", "1.0e8", "3.0e8", "1.0e9"]);
        let linear = Scale::covering(Axis::Linear, [1.17].into_iter(), 0.0, 1.0);
        assert_eq!(shown(linear, 6), ["0.0e0", "2.0e-1", "4.0e-1", "6.0e-1", "8.0e-1", "1.0e0"]);
    }

    #[test]
    fn nothing_at_all_is_an_axis_too() {
        let empty = Scale::covering(Axis::Log, [0.0, f64::NAN].into_iter(), 0.0, 1.0);
        assert!(empty.place(5.0).is_finite() && !empty.ticks(5).is_empty());
    }
}
