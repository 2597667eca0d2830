//! Numbers whose changes are not on disk yet. Of an object that the index has forgotten: after a kill it would know it again. Of one
//! whose number another file would have: after a kill that file would get it once the object is gone.
//!
//! This table is not locked while the disk is written to. The database is, for those who change it.

use std::collections::HashSet;

use fsstack_pool::Ino;
use fsstack_sync::Mutex;
use fsstack_sync::atomic::Ordering::Relaxed;

use super::Index;
use crate::marked_branch::MarkedBranch;
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
            self.shared.unwritten.change(numbers, || _ = self.shared.with(|store| store.forget(&known)));
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
        if known.iter().any(|(id, _)| self.shared.unwritten.is_due(id.ino)) {
            self.shared.flush();
        }
    }

    /// The object with the number `ino` is about to be gone, or another one to be known by it: what was learned and forgotten of the
    /// number is on disk when this returns.
    pub fn settle(&self, ino: Ino) {
        if self.shared.unwritten.is_due(ino) {
            self.shared.flush();
        }
    }
}

/// The file on `branch` that would have the number `natural` has `further`, which leads to it, as another object has that one. On disk
/// within a second, and before the other object is gone ([`Index::settle`]).
pub fn learn_further(index: &Index, branch: &MarkedBranch, further: Identity, natural: Ino, birth: u32) {
    index.shared.cover(branch);
    index.shared.unwritten.change([natural].into_iter(), || index.learn_file(further, natural, birth));
}

/// Numbers whose changes are not on disk.
#[derive(Debug, Default)]
pub(super) struct Unwritten(Mutex<UnwrittenNumbers>);

#[derive(Debug, Default)]
struct UnwrittenNumbers {
    /// Those that are being changed: a write that ends meanwhile may lack that.
    under_way: Vec<Ino>,
    /// Those that were changed since the last write began.
    since: HashSet<Ino>,
    being_written: HashSet<Ino>,
    writers: usize,
}

impl Unwritten {
    /// Runs `change`, which changes what the database has about these numbers.
    pub(super) fn change(&self, numbers: impl Iterator<Item = Ino> + Clone, change: impl FnOnce()) {
        self.0.lock().under_way.extend(numbers.clone());
        change();
        let mut all = self.0.lock();
        for number in numbers {
            if let Some(at) = all.under_way.iter().position(|ino| *ino == number) {
                all.under_way.swap_remove(at);
            }
            all.since.insert(number);
        }
    }

    /// Whether a change of this number is not on disk.
    pub(super) fn is_due(&self, ino: Ino) -> bool {
        let numbers = self.0.lock();
        let kept = [&numbers.since, &numbers.being_written];
        numbers.under_way.contains(&ino) || kept.iter().any(|numbers| numbers.contains(&ino))
    }

    /// Runs `write`, which brings everything to disk that was changed so far.
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
    fn what_was_changed_is_due_until_it_was_written() {
        let unwritten = Unwritten::default();
        let one = |n| [Ino(n)].into_iter();
        unwritten.change(one(7), || unwritten.settle(|| ()));
        assert!(unwritten.is_due(Ino(7)), "what was written meanwhile may lack it");
        assert!(!unwritten.is_due(Ino(8)));
        unwritten.settle(|| {
            assert!(unwritten.is_due(Ino(7)), "it is being written");
            unwritten.change(one(8), || assert!(unwritten.is_due(Ino(8))));
            unwritten.settle(|| ());
            assert!(unwritten.is_due(Ino(7)), "the other write may have begun before");
        });
        assert!(!unwritten.is_due(Ino(7)) && !unwritten.is_due(Ino(8)));
    }
}
