//! Refused creates in the log. A program that tries again and again would fill it, so equal refusals are one line a minute.

use fsstack_branch::error::OpError;
use fsstack_pool::{BranchIx, Rejection};
use fsstack_sync::Mutex;
use fsstack_sync::time::Instant;

use crate::line_a_minute::LineAMinute;
use crate::pool::Pool;

/// Sets of reasons that are remembered; the one whose line is the oldest gives way, and is logged if it has happened since.
const SETS: usize = 16;

/// The reason of each branch.
type Reasons = [(BranchIx, Rejection)];

/// Refusals of late, by their reasons.
#[derive(Debug, Default)]
pub(crate) struct RefusedCreates(Mutex<Vec<RefusedAlike>>);

#[derive(Debug)]
struct RefusedAlike {
    reasons: Vec<(BranchIx, Rejection)>,
    line: LineAMinute,
}

/// Lines that a refusal gives.
#[derive(Debug, Default, PartialEq)]
struct DueLines {
    /// Its own, with the number of equal refusals since the last line, which have none.
    own: Option<u64>,
    /// For the reasons that were forgotten for its own: one refusal of theirs that has no line, with the number of further ones.
    last: Option<(Vec<(BranchIx, Rejection)>, u64)>,
}

impl RefusedCreates {
    /// The most telling reason, which the program gets. The log has each branch's own.
    pub(super) fn log(&self, pool: &Pool, refused: &Reasons) -> OpError {
        let line = |refused: &Reasons, unlogged: u64| {
            let reason =
                |(at, why): &(BranchIx, Rejection)| format!("{}: {why}", pool.branch(*at).path.display());
            let reasons = refused.iter().map(reason).collect::<Vec<_>>().join("; ");
            let unlogged = (unlogged > 0).then_some(unlogged);
            tracing::warn!(%reasons, unlogged, "create refused: no branch can take a new file");
        };
        let DueLines { own, last } = self.count(refused, Instant::now());
        last.into_iter().for_each(|(reasons, unlogged)| line(&reasons, unlogged));
        own.into_iter().for_each(|unlogged| line(refused, unlogged));
        OpError::NoBranch(fsstack_pool::verdict(refused))
    }

    /// Counts a refusal.
    fn count(&self, refused: &Reasons, now: Instant) -> DueLines {
        // They are in the order in which the branches were tried, which may be another at each create.
        let mut reasons = refused.to_vec();
        reasons.sort_unstable();
        let mut all = self.0.lock();
        if let Some(known) = all.iter_mut().find(|known| known.reasons == reasons) {
            return DueLines { own: known.line.count(now), last: None };
        }
        let is_full = all.len() >= SETS;
        let oldest = all.iter().enumerate().min_by_key(|(_, known)| known.line.logged()).map(|(at, _)| at);
        let gone = oldest.filter(|_| is_full).map(|oldest| all.swap_remove(oldest));
        let last = gone.and_then(|gone| Some((gone.reasons, gone.line.since().checked_sub(1)?)));
        let mut line = LineAMinute::new();
        let own = line.count(now);
        all.push(RefusedAlike { reasons, line });
        DueLines { own, last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fsstack_sync::time::Duration;

    const BETWEEN_LINES: Duration = Duration::from_secs(60);

    fn own(refusals: &RefusedCreates, refused: &Reasons, now: Instant) -> Option<u64> {
        refusals.count(refused, now).own
    }

    #[test]
    fn equal_refusals_are_one_line_a_minute_with_their_count() {
        let refusals = RefusedCreates::default();
        let began = Instant::now();
        let full = [(BranchIx(0), Rejection::TooFull), (BranchIx(1), Rejection::TooFull)];
        let other = [(BranchIx(0), Rejection::TooFull), (BranchIx(1), Rejection::ReadOnly)];
        assert_eq!(own(&refusals, &full, began), Some(0));
        assert_eq!(own(&refusals, &full, began), None);
        assert_eq!(own(&refusals, &other, began), Some(0), "other reasons have a line of their own");
        assert_eq!(own(&refusals, &full, began + BETWEEN_LINES / 2), None);
        assert_eq!(own(&refusals, &full, began + BETWEEN_LINES), Some(2));
        assert_eq!(own(&refusals, &full, began + BETWEEN_LINES), None);
    }

    #[test]
    fn branches_in_another_order_are_the_same_refusal() {
        let refusals = RefusedCreates::default();
        let began = Instant::now();
        let mut refused: Vec<_> = (0..20).map(|at| (BranchIx(at), Rejection::TooFull)).collect();
        assert_eq!(own(&refusals, &refused, began), Some(0));
        for _ in 1..refused.len() {
            refused.rotate_left(1);
            assert_eq!(own(&refusals, &refused, began), None);
        }
    }

    #[test]
    fn few_sets_are_remembered() {
        let refusals = RefusedCreates::default();
        let began = Instant::now();
        let set = |n: u64| [(BranchIx(u16::try_from(n).unwrap()), Rejection::TooFull)];
        for n in 0..=SETS as u64 {
            assert_eq!(own(&refusals, &set(n), began + Duration::from_millis(n)), Some(0));
        }
        assert_eq!(refusals.0.lock().len(), SETS);
        let later = began + Duration::from_secs(1);
        assert_eq!(own(&refusals, &set(0), later), Some(0), "the oldest gave way");
        assert_eq!([(); 2].map(|()| own(&refusals, &set(2), later)), [None; 2]);
        let gone = refusals.count(&set(1), later);
        assert_eq!(
            gone,
            DueLines { own: Some(0), last: Some((set(2).to_vec(), 1)) },
            "it was refused twice since"
        );
    }
}
