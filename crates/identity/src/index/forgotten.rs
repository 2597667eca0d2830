//! Numbers of objects that the index has forgotten, which is not on disk yet: after a kill it would know them again.
//!
//! This table is not locked while the disk is written to. The database is, for those who change it.

use std::collections::HashSet;

use fsstack_pool::Ino;
use fsstack_sync::Mutex;

/// Numbers of forgotten objects.
#[derive(Debug, Default)]
pub(super) struct Forgotten(Mutex<ForgottenNumbers>);

#[derive(Debug, Default)]
struct ForgottenNumbers {
    /// Since the last write began.
    since: HashSet<Ino>,
    being_written: HashSet<Ino>,
    writers: usize,
}

impl Forgotten {
    /// Objects with these numbers are about to be forgotten, or were just: what was written meanwhile may lack it.
    pub(super) fn note(&self, numbers: impl Iterator<Item = Ino>) {
        self.0.lock().since.extend(numbers);
    }

    /// Whether it is not on disk that an object with this number was forgotten.
    pub(super) fn is_due(&self, ino: Ino) -> bool {
        let numbers = self.0.lock();
        numbers.since.contains(&ino) || numbers.being_written.contains(&ino)
    }

    /// Runs `write`, which brings everything to disk that was forgotten so far.
    pub(super) fn settle(&self, write: impl FnOnce()) {
        {
            let mut numbers = self.0.lock();
            let since = std::mem::take(&mut numbers.since);
            numbers.being_written.extend(since);
            numbers.writers += 1;
        }
        write();
        let mut numbers = self.0.lock();
        numbers.writers -= 1;
        if numbers.writers == 0 {
            numbers.being_written.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_is_due_until_it_was_written() {
        let forgotten = Forgotten::default();
        forgotten.note([Ino(7)].into_iter());
        assert!(forgotten.is_due(Ino(7)) && !forgotten.is_due(Ino(8)));
        forgotten.settle(|| {
            assert!(forgotten.is_due(Ino(7)), "it is being written");
            forgotten.note([Ino(8)].into_iter());
        });
        assert!(!forgotten.is_due(Ino(7)) && forgotten.is_due(Ino(8)));
    }
}
