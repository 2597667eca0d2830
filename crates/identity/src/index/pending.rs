//! Entries of files that wait to be put into the database together: a transaction for each would take longer than the lookup that
//! learns of it. They count from the moment they are added. A kill loses them, as it loses changes that are not on disk.
//!
//! An entry leaves this table once the database has it, so a thread that asks here first and there afterwards misses none. The table
//! is not locked while the database is written to. Before any other change of the database these entries are written, by one thread
//! at a time: an entry that was forgotten is not written again.

use fsstack_pool::Ino;
use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicUsize, Ordering};

use super::Places;
use super::store::{DbResult, IndexEntry};
use crate::number::Identity;

/// So many are written at once.
const MANY: usize = 128;

/// File, number that it would have where it is, birth time.
type PendingFile = (Identity, Ino, u32);

/// Entries that are not in the database.
#[derive(Debug, Default)]
pub(super) struct PendingFiles {
    files: Mutex<Vec<PendingFile>>,
    /// Number of entries: without any the table is not locked.
    count: AtomicUsize,
    /// Held while they are written. Order: before `files`.
    turn: Mutex<()>,
}

impl PendingFiles {
    /// Adds an entry. True: there are many.
    pub(super) fn add(&self, file: PendingFile) -> bool {
        let mut files = self.files.lock();
        files.push(file);
        self.count.store(files.len(), Ordering::SeqCst);
        files.len() >= MANY
    }

    /// Number of entries.
    pub(super) fn len(&self) -> u64 {
        self.count.load(Ordering::SeqCst) as u64
    }

    /// The identity of the file born at `birth` with the number `natural`; `stored` says what the database has.
    pub(super) fn known(
        &self,
        natural: Ino,
        birth: u32,
        stored: impl FnOnce() -> Option<Identity>,
    ) -> Option<Identity> {
        if self.count.load(Ordering::SeqCst) > 0 {
            let files = self.files.lock();
            if let Some((id, _, born)) = files.iter().rev().find(|(_, at, _)| *at == natural) {
                return (*born == birth).then_some(*id);
            }
        }
        stored()
    }

    /// The entries of the number `ino`; `stored` gives those in the database.
    pub(super) fn places(&self, ino: Ino, stored: impl FnOnce() -> Places) -> Places {
        let mut pending: Vec<(Identity, Ino)> = Vec::new();
        if self.count.load(Ordering::SeqCst) > 0 {
            let files = self.files.lock();
            pending.extend(files.iter().filter(|(id, ..)| id.ino == ino).map(|(id, at, _)| (*id, *at)));
        }
        let mut places = stored();
        for (id, natural) in pending {
            match places.iter_mut().find(|entry| entry.id == id) {
                Some(entry) if entry.naturals.contains(&natural) => {}
                Some(entry) => entry.naturals.push(natural),
                None => places.push(IndexEntry::of_file(id, natural)),
            }
        }
        places
    }

    /// Has `write` put all entries into the database; they stay if that fails.
    pub(super) fn write(&self, write: impl FnOnce(&[PendingFile]) -> DbResult<()>) -> DbResult<()> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let _turn = self.turn.lock();
        let taken = self.files.lock().clone();
        if taken.is_empty() {
            return Ok(());
        }
        write(&taken)?;
        let mut files = self.files.lock();
        files.drain(..taken.len());
        self.count.store(files.len(), Ordering::SeqCst);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> Identity {
        Identity { ino: Ino(n), generation: 7 }
    }

    fn naturals(places: &Places) -> Vec<(Identity, Vec<Ino>)> {
        places.iter().map(|entry| (entry.id, entry.naturals.to_vec())).collect()
    }

    #[test]
    fn an_entry_counts_before_and_while_it_is_written_and_not_here_afterwards() {
        let pending = PendingFiles::default();
        let known = |natural, birth| pending.known(Ino(natural), birth, || None);
        let place = || naturals(&pending.places(Ino(5), Places::new));
        assert!(!pending.add((id(5), Ino(1005), 3)));
        for _ in 0..2 {
            assert_eq!((known(1005, 3), known(1005, 4), known(5, 3)), (Some(id(5)), None, None));
            assert_eq!(place(), [(id(5), vec![Ino(1005)])]);
            // The database has failed, and another one is made.
            let failed = pending.write(|_| Err(redb::Error::PreviousIo.into()));
            assert!(failed.is_err());
        }
        let stored = || {
            naturals(
                &pending.places(Ino(5), || [IndexEntry::of_file(id(5), Ino(2005))].into_iter().collect()),
            )
        };
        assert_eq!(stored(), [(id(5), vec![Ino(2005), Ino(1005)])]);
        pending
            .write(|files| {
                assert_eq!((files.len(), known(1005, 3), place().len()), (1, Some(id(5)), 1));
                pending.add((id(6), Ino(1006), 3));
                Ok(())
            })
            .unwrap();
        assert_eq!((known(1005, 3), known(1006, 3), place()), (None, Some(id(6)), vec![]));
        assert!((0..MANY as u64).any(|n| pending.add((id(n), Ino(n), 1))), "many are written");
    }
}
