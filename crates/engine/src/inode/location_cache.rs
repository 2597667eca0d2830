//! Location cache: the last known meaning of names, of fixed size, verified at each use.
//!
//! A direct-mapped table of pairs of words, the number and the number XOR the name's hash: a reader whose hash does not come
//! out sees another name's entry, or half of two, and has a miss. (The trick is that of lockless hash tables in chess
//! programs: Hyatt and Mann, "A lock-less transposition table", 2002.) A stale entry (a file moved out of band) costs one
//! call that answers "not here", and then all branches are asked.

use fsstack_pool::Ino;
use fsstack_sync::unmodelled::atomic::{AtomicU64, Ordering::Relaxed};

use fsstack_identity::number::hash_name;
use fsstack_identity::zeros::zeros;

const SLOTS: usize = 1 << 17;

/// The table: 2 MiB for 131 072 names.
#[derive(Debug)]
pub struct LocationCache {
    slots: Box<[[AtomicU64; 2]]>,
}

impl Default for LocationCache {
    fn default() -> Self {
        Self { slots: zeros(SLOTS) }
    }
}

impl LocationCache {
    /// Last known number of `name` in `dir`.
    pub fn get(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        let hash = hash_name(dir, name);
        let [check, number] = self.slot(hash);
        let number = number.load(Relaxed);
        (number != 0 && check.load(Relaxed) ^ number == hash).then_some(Ino(number))
    }

    /// `name` in `dir` means `ino`.
    pub fn set(&self, dir: Ino, name: &[u8], ino: Ino) {
        let hash = hash_name(dir, name);
        let [check, number] = self.slot(hash);
        if number.load(Relaxed) != ino.0 || check.load(Relaxed) != hash ^ ino.0 {
            number.store(ino.0, Relaxed);
            check.store(hash ^ ino.0, Relaxed);
        }
    }

    /// Drops the entry of `name` in `dir`.
    pub fn forget(&self, dir: Ino, name: &[u8]) {
        if self.get(dir, name).is_some() {
            let [check, number] = self.slot(hash_name(dir, name));
            number.store(0, Relaxed);
            check.store(0, Relaxed);
        }
    }

    /// Nothing is known any more.
    pub fn clear(&self) {
        for [check, number] in &self.slots {
            number.store(0, Relaxed);
            check.store(0, Relaxed);
        }
    }

    fn slot(&self, hash: u64) -> &[AtomicU64; 2] {
        let index = usize::try_from(hash % SLOTS as u64).unwrap_or(0);
        &self.slots[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_what_a_name_meant_last() {
        let seen = LocationCache::default();
        assert_eq!(seen.get(Ino(7), b"film"), None);
        seen.set(Ino(7), b"film", Ino(100));
        seen.set(Ino(7), b"film", Ino(101));
        assert_eq!(seen.get(Ino(7), b"film"), Some(Ino(101)));
        assert_eq!(seen.get(Ino(8), b"film"), None);
    }
}
