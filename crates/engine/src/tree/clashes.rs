//! Conflicts between branches, such as a name that is a file here and a directory there: each is logged once.

use std::collections::HashSet;

use fsstack_sync::Mutex;

/// Maximum that is logged; more is no accident, and would fill log and memory.
const MOST: usize = 1024;

/// Logged conflicts, as hashes.
#[derive(Debug, Default)]
pub(crate) struct Clashes(Mutex<HashSet<u64>>);

/// Log entry for a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClashReport {
    /// It is new.
    Now,
    /// New, and the last that is logged.
    Last,
    /// None: it was logged, or too many were.
    Before,
}

impl Clashes {
    /// Number of conflicts, and the most that there may be.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.0.lock().len(), MOST)
    }

    /// Whether [`Self::tell`] would answer [`ClashReport::Before`].
    pub(crate) fn knows(&self, hash: u64) -> bool {
        let reported = self.0.lock();
        reported.len() >= MOST || reported.contains(&hash)
    }

    /// Remembers the clash `hash`.
    pub(crate) fn tell(&self, hash: u64) -> ClashReport {
        let mut reported = self.0.lock();
        if reported.len() >= MOST || !reported.insert(hash) {
            return ClashReport::Before;
        }
        if reported.len() == MOST { ClashReport::Last } else { ClashReport::Now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_reported_once_and_not_without_end() {
        let clashes = Clashes::default();
        assert_eq!(
            [clashes.tell(7), clashes.tell(7), clashes.tell(8)],
            [ClashReport::Now, ClashReport::Before, ClashReport::Now]
        );
        assert!(clashes.knows(7) && !clashes.knows(9));
        let reported: Vec<_> = (100..).take(2 * MOST).map(|hash| clashes.tell(hash)).collect();
        assert_eq!(reported.iter().filter(|reported| **reported == ClashReport::Now).count(), MOST - 3);
        assert_eq!(reported.iter().filter(|reported| **reported == ClashReport::Last).count(), 1);
    }
}
