//! Moves that a branch refused, and when another try is worth it.
//!
//! A quota or an attribute that the branch cannot hold shows only when the file is copied. A program that retries its write
//! would have the file copied again each time. So a refusal is remembered for a multiple of the time that the try took:
//! failing copies are a small part of the daemon's work, however large the file. It is forgotten early when the settings or
//! the branches change, and when the branch has so much more room that the file fits into the difference.

use std::collections::HashMap;

use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::Mutex;
use fsstack_sync::time::{Duration, Instant};

/// A refusal is remembered for this many times the duration of the try.
const SHARE: u32 = 20;
/// The least time that the refusal of a move is remembered.
const SHORTEST_REFUSAL: Duration = Duration::from_secs(2);
/// Refusals remembered at most; beyond that all are forgotten.
const MOST: usize = 4096;

/// A file and the branch that refused it.
type Key = (Ino, BranchIx);

/// The refusals of a pool.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashMap<Key, Refusal>>);

#[derive(Clone, Copy, Debug)]
struct Refusal {
    why: &'static str,
    until: Instant,
    /// Bytes that were available on the branch.
    room: u64,
}

impl Refusals {
    /// Returns why the file is not tried on the branch now, which has `room`; it needs `need`.
    pub(crate) fn of(&self, key: Key, room: u64, need: u64) -> Option<&'static str> {
        self.of_at(Instant::now(), key, room, need)
    }

    fn of_at(&self, now: Instant, key: Key, room: u64, need: u64) -> Option<&'static str> {
        let known = self.0.lock();
        let refusal = known.get(&key)?;
        let holds = now < refusal.until && room < refusal.room.saturating_add(need);
        holds.then_some(refusal.why)
    }

    /// Remembers that the branch, which had `room`, refused the file in a try that `began` then.
    pub(crate) fn add(&self, key: Key, room: u64, began: Instant, why: &'static str) {
        self.add_at(Instant::now(), key, room, began, why);
    }

    fn add_at(&self, now: Instant, key: Key, room: u64, began: Instant, why: &'static str) {
        let until = now + (now.saturating_duration_since(began) * SHARE).max(SHORTEST_REFUSAL);
        let mut known = self.0.lock();
        if known.len() >= MOST {
            known.retain(|_, refusal| now < refusal.until);
        }
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(key, Refusal { why, until, room });
    }

    /// Number of refusals, and the most that there may be.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.0.lock().len(), MOST)
    }

    /// Forgets all refusals.
    pub(crate) fn forget_all(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = (Ino(7), BranchIx(1));
    const NEED: u64 = 100;

    #[test]
    fn a_refusal_holds_for_a_multiple_of_what_the_try_took() {
        let (refusals, began) = (Refusals::default(), Instant::now());
        let ended = began + Duration::from_secs(10);
        refusals.add_at(ended, KEY, 500, began, "why");
        let later = |seconds| ended + Duration::from_secs(seconds);
        assert_eq!(refusals.of_at(later(199), KEY, 500, NEED), Some("why"));
        assert_eq!(refusals.of_at(later(200), KEY, 500, NEED), None);
        let other = (Ino(8), KEY.1);
        assert_eq!(refusals.of_at(ended, other, 500, NEED), None);
    }

    #[test]
    fn a_refusal_ends_when_the_branch_has_room_for_the_file_more_or_the_pool_changes() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        refusals.add_at(now, KEY, 500, now, "why");
        assert_eq!(refusals.of_at(now, KEY, 599, NEED), Some("why"));
        assert_eq!(refusals.of_at(now, KEY, 600, NEED), None);
        refusals.forget_all();
        assert_eq!(refusals.of_at(now, KEY, 500, NEED), None);
    }

    #[test]
    fn no_more_refusals_are_remembered_than_there_may_be() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        for number in 0..3 * MOST as u64 {
            refusals.add_at(now, (Ino(number), KEY.1), 0, now, "why");
        }
        assert!(refusals.0.lock().len() <= MOST);
    }
}
