//! How much each branch gives or takes until all are about as full: pure, without I/O.
//!
//! A branch's level is the share of it that is used, or the bytes that it has not free. Levels may differ by a tolerance
//! afterwards. Branches above some level give what is above it, and those below it by more than the tolerance take what they
//! lack. The level is the one at which both are as much: moving less leaves two branches too far apart.

use fsstack_pool::{BranchIx, BranchSet};
use serde::{Deserialize, Serialize};

/// Measure of a branch's level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    /// Free bytes.
    Free,
    /// Used share.
    Percent,
}

/// A branch, as a balance sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The branch.
    pub branch: BranchIx,
    /// Its size in bytes.
    pub total: u64,
    /// Free bytes for new files.
    pub available: u64,
    /// Free bytes that new files leave.
    pub floor: u64,
    /// Files may leave it.
    pub gives: bool,
    /// Files may come to it.
    pub takes: bool,
}

/// Bytes of a branch that are to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The branch.
    pub branch: BranchIx,
    /// The bytes.
    pub bytes: u64,
}

/// Bytes that are to leave branches and to come to others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    gives: Vec<Quota>,
    takes: Vec<Quota>,
}

/// Hundredths of a percent in one.
const WHOLE: f64 = 10_000.0;
/// Halvings of the range of levels: more than a double has digits.
const HALVINGS: usize = 64;

impl Load {
    /// The level, and the bytes that raise it by one.
    fn level(&self, by: By) -> (f64, f64) {
        let used = self.total.saturating_sub(self.available);
        match by {
            By::Percent => (used as f64 / self.total.max(1) as f64, self.total as f64),
            By::Free => (-(self.available as f64), 1.0),
        }
    }
}

impl Quotas {
    /// The least that is to move until levels differ by `tolerance` at most, in hundredths of a percent: of a branch, or by free
    /// bytes of the mean size.
    pub fn new(loads: &[Load], by: By, tolerance: u32) -> Self {
        let mean = loads.iter().map(|load| load.total as f64).sum::<f64>() / loads.len().max(1) as f64;
        let apart = f64::from(tolerance) / WHOLE * if by == By::Free { mean } else { 1.0 };
        let above = |load: &Load, level: f64| match load.level(by) {
            (own, unit) if load.gives => ((own - level) * unit).max(0.0),
            _ => 0.0,
        };
        let below = |load: &Load, level: f64| match load.level(by) {
            (own, unit) if load.takes => {
                ((level - apart - own) * unit).clamp(0.0, load.available.saturating_sub(load.floor) as f64)
            }
            _ => 0.0,
        };
        let levels = || loads.iter().map(|load| load.level(by).0);
        let mut low = levels().fold(f64::INFINITY, f64::min);
        let mut high = levels().fold(f64::NEG_INFINITY, f64::max) + apart;
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            let gives: f64 = loads.iter().map(|load| above(load, middle)).sum();
            let takes: f64 = loads.iter().map(|load| below(load, middle)).sum();
            if gives > takes { low = middle } else { high = middle }
        }
        let quotas = |bytes: &dyn Fn(&Load) -> f64| {
            let quota = |load: &Load| Quota { branch: load.branch, bytes: whole(bytes(load)) };
            loads.iter().map(quota).filter(|quota| quota.bytes > 0).collect()
        };
        Self { gives: quotas(&|load| above(load, high)), takes: quotas(&|load| below(load, high)) }
    }

    /// Bytes that leave branches.
    pub fn total(&self) -> u64 {
        self.gives.iter().map(|quota| quota.bytes).sum()
    }

    /// Branches that give, with the bytes that are still to leave them.
    pub fn givers(&self) -> &[Quota] {
        &self.gives
    }

    /// The branch among `among` that takes `bytes` that leave `from` together: the one that still lacks most. None: they are more
    /// than `from` is to give, or than any of them lacks.
    pub fn choose(&mut self, from: BranchIx, bytes: u64, among: BranchSet) -> Option<BranchIx> {
        let gives = self.gives.iter_mut().find(|quota| quota.branch == from)?;
        let takes = self.takes.iter_mut().filter(|quota| among.contains(quota.branch));
        let takes = takes.max_by_key(|quota| quota.bytes)?;
        if gives.bytes < bytes || takes.bytes < bytes {
            return None;
        }
        gives.bytes -= bytes;
        takes.bytes -= bytes;
        Some(takes.branch)
    }
}

/// Whole bytes, rounded down.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of bytes, not negative")]
fn whole(bytes: f64) -> u64 {
    bytes.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn load(branch: u16, total: u64, available: u64) -> Load {
        Load { branch: BranchIx(branch), total, available, floor: 0, gives: true, takes: true }
    }

    /// Difference between the fullest and the emptiest branch.
    fn apart(loads: &[Load], by: By) -> f64 {
        let levels: Vec<f64> = loads.iter().map(|load| load.level(by).0).collect();
        levels.iter().fold(f64::MIN, |a, b| a.max(*b)) - levels.iter().fold(f64::MAX, |a, b| a.min(*b))
    }

    fn moved(loads: &[Load], quotas: &Quotas) -> Vec<Load> {
        let of = |quotas: &[Quota], load: &Load| {
            quotas.iter().find(|quota| quota.branch == load.branch).map_or(0, |quota| quota.bytes)
        };
        let after = |load: &Load| Load {
            available: load.available + of(&quotas.gives, load) - of(&quotas.takes, load),
            ..*load
        };
        loads.iter().map(after).collect()
    }

    #[test]
    fn a_new_branch_takes_its_share() {
        let loads = [load(0, 1000, 100), load(1, 1000, 300), load(2, 1000, 1000)];
        let quotas = Quotas::new(&loads, By::Percent, 0);
        assert!((531..=533).contains(&quotas.total()), "rounded down for each branch: {}", quotas.total());
        let after: Vec<u64> = moved(&loads, &quotas).iter().map(|load| load.available).collect();
        assert!(after.iter().all(|available| available.abs_diff(467) <= 2), "{after:?}");
        // Two percent apart is near enough.
        assert!(Quotas::new(&loads, By::Percent, 200).total() < 531);
    }

    #[test]
    fn a_floor_is_kept_and_a_branch_that_takes_nothing_gets_nothing() {
        let mut loads = [load(0, 1000, 0), load(1, 1000, 500), load(2, 1000, 900)];
        loads[1].takes = false;
        loads[2].floor = 800;
        let quotas = Quotas::new(&loads, By::Free, 0);
        assert_eq!(
            quotas.takes.iter().map(|quota| (quota.branch.0, quota.bytes)).collect::<Vec<_>>(),
            [(2, 100)]
        );
        assert!(quotas.total() <= 100);
    }

    fn loads() -> impl Strategy<Value = Vec<Load>> {
        let one = (1_u64..1 << 40, 0_u64..=100, 0_u64..20, any::<bool>(), any::<bool>());
        prop::collection::vec(one, 1..8).prop_map(|rows| {
            let row = |(at, (total, free, floor, gives, takes))| Load {
                branch: BranchIx(u16::try_from(at).unwrap()),
                total,
                available: total / 100 * free,
                floor: total / 100 * floor,
                gives,
                takes,
            };
            rows.into_iter().enumerate().map(row).collect()
        })
    }

    proptest! {
        #[test]
        fn as_much_leaves_as_comes_and_no_floor_is_passed(
            loads in loads(), tolerance in 0_u32..2000, free in any::<bool>(),
        ) {
            let by = if free { By::Free } else { By::Percent };
            let quotas = Quotas::new(&loads, by, tolerance);
            let takes: u64 = quotas.takes.iter().map(|quota| quota.bytes).sum();
            // A double has 53 bits, and each branch is rounded.
            prop_assert!(quotas.total() <= takes + takes / (1 << 30) + 64, "{} {takes}", quotas.total());
            for (load, after) in loads.iter().zip(moved(&loads, &quotas)) {
                prop_assert!(after.available >= load.floor.min(load.available));
                prop_assert!(load.gives || after.available <= load.available);
                prop_assert!(load.takes || after.available >= load.available);
            }
            prop_assert!(!quotas.gives.iter().any(|gives| quotas.takes.iter().any(|takes| takes.branch == gives.branch)));
        }

        #[test]
        fn levels_are_within_the_tolerance_afterwards_and_then_nothing_is_to_move(
            shares in prop::collection::vec((1_u64 << 30..1 << 40, 0_u64..=100), 1..8), tolerance in 0_u32..2000,
        ) {
            let row = |(at, (total, free)): (usize, &(u64, u64))| {
                load(u16::try_from(at).unwrap(), *total, total / 100 * free)
            };
            let loads: Vec<Load> = shares.iter().enumerate().map(row).collect();
            let after = moved(&loads, &Quotas::new(&loads, By::Percent, tolerance));
            let wanted = f64::from(tolerance) / WHOLE;
            prop_assert!(apart(&after, By::Percent) <= wanted + 1e-6, "{}", apart(&after, By::Percent));
            let again = Quotas::new(&after, By::Percent, tolerance + 1);
            prop_assert_eq!(again.total(), 0);
            // Nothing moves that need not.
            if apart(&loads, By::Percent) <= wanted {
                prop_assert!(Quotas::new(&loads, By::Percent, tolerance).total() <= 64);
            }
        }

        #[test]
        fn files_never_exceed_the_quotas(
            loads in loads(), files in prop::collection::vec((0_u16..8, 1_u64..1 << 38), 0..200),
        ) {
            let mut quotas = Quotas::new(&loads, By::Percent, 0);
            let (least, takes) = (quotas.total(), quotas.takes.clone());
            let mut placed = 0;
            for (from, bytes) in files {
                if let Some(to) = quotas.choose(BranchIx(from), bytes, BranchSet::ALL) {
                    prop_assert!(to.0 != from);
                    placed += bytes;
                }
            }
            prop_assert!(placed <= least);
            prop_assert!(quotas.takes.iter().zip(takes).all(|(left, had)| left.bytes <= had.bytes));
        }
    }
}
