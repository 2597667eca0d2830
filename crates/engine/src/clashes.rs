//! Names that are a file on one branch and a directory on another: the log is told of each once.

use std::collections::HashSet;

use parking_lot::Mutex;

/// So many are told of; what goes beyond is no accident, and would fill log and memory.
const MOST: usize = 1024;

/// Those that the log was told of, as hashes.
#[derive(Debug, Default)]
pub(crate) struct Clashes(Mutex<HashSet<u64>>);

/// What the log is to say of a clash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It is new.
    Now,
    /// It is new, and the last that is told.
    Last,
    /// Nothing: it was told, or too many were.
    Before,
}

impl Clashes {
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
        let told: Vec<_> = (100..).take(2 * MOST).map(|hash| clashes.tell(hash)).collect();
        assert_eq!(told.iter().filter(|told| **told == Told::Now).count(), MOST - 3);
        assert_eq!(told.iter().filter(|told| **told == Told::Last).count(), 1);
    }
}
