//! Numbers of objects that the index has forgotten, which is not on disk yet: after a kill it would know them again.
//!
//! This table is not locked while the disk is written to. The database is, for those who change it.

use std::collections::HashSet;

use fsstack_pool::Ino;
use fsstack_sync::Mutex;
use fsstack_sync::atomic::Ordering::Relaxed;

use super::Index;
use crate::number::Identity;

impl Index {
    /// Removes the entry of the object `id`; with `natural`, that place only. On disk within a second.
    pub fn forget(&self, id: Identity, natural: Option<Ino>) {
        self.forget_each(&[(id, natural)]);
    }

    /// Like [`Self::forget`], of several objects at once.
    pub fn forget_each(&self, objects: &[(Identity, Option<Ino>)]) {
        let known: Vec<_> =
            objects.iter().filter(|(id, _)| !self.knows_nothing_of(id.ino)).copied().collect();
        if !known.is_empty() {
            let numbers = known.iter().map(|(id, _)| id.ino);
            self.shared.forgotten.forget(numbers, || _ = self.shared.with(|store| store.forget(&known)));
            self.shared.dirty.store(true, Relaxed);
        }
    }

    /// No file that the index has is at these places any more, each given by the number that a file would have there and its birth
    /// time. On disk when this returns.
    pub fn forget_places(&self, places: &[(Ino, u32)]) {
        let known = places.iter().filter(|(natural, _)| !self.knows_nothing_of(*natural));
        let known =
            known.filter_map(|(natural, birth)| Some((self.known(*natural, *birth)?, Some(*natural))));
        let known: Vec<(Identity, Option<Ino>)> = known.collect();
        self.forget_each(&known);
        if known.iter().any(|(id, _)| self.shared.forgotten.is_due(id.ino)) {
            self.shared.flush();
        }
    }

    /// Another object is about to be known by the number `ino`: that former ones were forgotten is on disk when this returns.
    pub fn settle_forgotten(&self, ino: Ino) {
        if self.shared.forgotten.is_due(ino) {
            self.shared.flush();
        }
    }
}

/// Numbers of forgotten objects.
#[derive(Debug, Default)]
pub(super) struct Forgotten(Mutex<ForgottenNumbers>);

#[derive(Debug, Default)]
struct ForgottenNumbers {
    /// Numbers of objects that are being forgotten: a write that ends meanwhile may lack that.
    under_way: Vec<Ino>,
    /// Numbers of those that were since the last write began.
    since: HashSet<Ino>,
    being_written: HashSet<Ino>,
    writers: usize,
}

impl Forgotten {
    /// Runs `forget`, which removes the objects with these numbers from the database.
    pub(super) fn forget(&self, numbers: impl Iterator<Item = Ino> + Clone, forget: impl FnOnce()) {
        self.0.lock().under_way.extend(numbers.clone());
        forget();
        let mut all = self.0.lock();
        for number in numbers {
            if let Some(at) = all.under_way.iter().position(|ino| *ino == number) {
                all.under_way.swap_remove(at);
            }
            all.since.insert(number);
        }
    }

    /// Whether it is not on disk that an object with this number was forgotten.
    pub(super) fn is_due(&self, ino: Ino) -> bool {
        let numbers = self.0.lock();
        let kept = [&numbers.since, &numbers.being_written];
        numbers.under_way.contains(&ino) || kept.iter().any(|numbers| numbers.contains(&ino))
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
        let one = |n| [Ino(n)].into_iter();
        forgotten.forget(one(7), || forgotten.settle(|| ()));
        assert!(forgotten.is_due(Ino(7)), "what was written meanwhile may lack it");
        assert!(!forgotten.is_due(Ino(8)));
        forgotten.settle(|| {
            assert!(forgotten.is_due(Ino(7)), "it is being written");
            forgotten.forget(one(8), || assert!(forgotten.is_due(Ino(8))));
            forgotten.settle(|| ());
            assert!(forgotten.is_due(Ino(7)), "the other write may have begun before");
        });
        assert!(!forgotten.is_due(Ino(7)) && !forgotten.is_due(Ino(8)));
    }
}
