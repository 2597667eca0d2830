//! Memory that open listings keep, bounded over all handles of the pool.
//!
//! A listing of a directory on several branches keeps a hash for each name that an earlier copy has, so that a name is
//! listed once; on branches with wide offsets it keeps the offset behind each cookie. Both only save calls: without them the
//! earlier copies are asked for each name, and a cookie is found by reading. So a user with a thousand handles of a large
//! directory loses time, and the daemon no memory.

use std::sync::Arc;

use fsstack_sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Entries are granted in pieces of this many, so that the shared count is seldom touched.
const PIECE: usize = 256;

/// Entries that all listings of a pool keep together.
#[derive(Debug)]
pub(crate) struct ListingMemory {
    granted: AtomicUsize,
    most: usize,
}

impl ListingMemory {
    /// A bound of `most` entries: some 13 bytes each.
    pub(crate) fn new(most: usize) -> Self {
        Self { granted: AtomicUsize::new(0), most }
    }

    /// Entries that are granted now.
    pub(crate) fn granted(&self) -> usize {
        self.granted.load(Relaxed)
    }
}

/// The part of one listing; given back when it drops.
#[derive(Debug)]
pub(crate) struct Allowance {
    memory: Arc<ListingMemory>,
    granted: usize,
}

impl Allowance {
    pub(crate) fn of(memory: Arc<ListingMemory>) -> Self {
        Self { memory, granted: 0 }
    }

    /// Whether the listing may keep `entries` in all.
    pub(crate) fn covers(&mut self, entries: usize) -> bool {
        while self.granted < entries {
            let before = self.memory.granted.fetch_add(PIECE, Relaxed);
            if before + PIECE > self.memory.most {
                self.memory.granted.fetch_sub(PIECE, Relaxed);
                return false;
            }
            self.granted += PIECE;
        }
        true
    }

    /// The listing keeps `entries` now, and no more: gives the rest back.
    pub(crate) fn shrink(&mut self, entries: usize) {
        let keeps = entries.next_multiple_of(PIECE).min(self.granted);
        let before = self.memory.granted.fetch_sub(self.granted - keeps, Relaxed);
        debug_assert!(before >= self.granted, "more was given back than was granted");
        self.granted = keeps;
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_over_all_listings_and_what_one_gives_back_another_gets() {
        let memory = Arc::new(ListingMemory::new(3 * PIECE));
        let (mut one, mut two) = (Allowance::of(memory.clone()), Allowance::of(memory.clone()));
        assert!(one.covers(2 * PIECE) && two.covers(1) && two.covers(PIECE));
        assert!(!two.covers(PIECE + 1) && !one.covers(2 * PIECE + 1));
        assert_eq!(memory.granted(), 3 * PIECE);
        one.shrink(PIECE + 1);
        assert!(!two.covers(PIECE + 1), "a piece that is used in part is not given back");
        one.shrink(1);
        assert!(two.covers(PIECE + 1));
        drop((one, two));
        assert_eq!(memory.granted(), 0);
    }
}
