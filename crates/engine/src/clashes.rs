//! Conflicts between branches, such as a name that is a file here and a directory there: each is logged once.

use std::collections::HashSet;

use parking_lot::Mutex;

/// Maximum that is logged; more is no accident, and would fill log and memory.
const MOST: usize = 1024;

/// Logged conflicts, as hashes.
#[derive(Debug, Default)]
pub(crate) struct Clashes(Mutex<HashSet<u64>>);

/// Log entry for a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It is new.
    Now,
    /// New, and the last that is logged.
    Last,
    /// None: it was logged, or too many were.
    Before,
}

impl Clashes {
    /// Whether [`Self::tell`] would answer [`Told::Before`].
    pub(crate) fn knows(&self, hash: u64) -> bool {
        let told = self.0.lock();
        told.len() >= MOST || told.contains(&hash)
    }

    /// Remembers the clash `hash`.
    pub(crate) fn tell(&self, hash: u64) -> Told {
        let mut told = self.0.lock();
        if told.len() >= MOST || !told.insert(hash) {
            return Told::Before;
        }
        if told.len() == MOST { Told::Last } else { Told::Now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_and_not_without_end() {
        let clashes = Clashes::default();
        assert_eq!([clashes.tell(7), clashes.tell(7), clashes.tell(8)], [Told::Now, Told::Before, Told::Now]);
        assert!(clashes.knows(7) && !clashes.knows(9));
        let told: Vec<_> = (100..).take(2 * MOST).map(|hash| clashes.tell(hash)).collect();
        assert_eq!(told.iter().filter(|told| **told == Told::Now).count(), MOST - 3);
        assert_eq!(told.iter().filter(|told| **told == Told::Last).count(), 1);
    }
}
