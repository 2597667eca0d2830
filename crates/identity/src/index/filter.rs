//! Bloom filter over the numbers in the index: spares a query for a number that is surely not there (Bloom, "Space/time
//! trade-offs in hash coding with allowable errors", 1970). It has a fixed size and never forgets. "Maybe" can be
//! wrong, "no" cannot.

use std::sync::OnceLock;

use fsstack_pool::Ino;
use fsstack_sync::unmodelled::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::number::mix;
use crate::zeros::zeros;

/// 2 MiB: with two million numbers in it, one absent number in twenty is a "maybe".
const WORDS: usize = 1 << 18;

/// The filter.
#[derive(Debug, Default)]
pub(super) struct Filter {
    /// Made when the first number is put in.
    bits: OnceLock<Box<[AtomicU64]>>,
    /// Not filled yet: every number is a "maybe".
    open: AtomicBool,
}

impl Filter {
    /// Makes every number a "maybe" until [`Self::close`].
    pub(super) fn open(&self) {
        self.open.store(true, Relaxed);
    }

    /// Records that the filter is filled.
    pub(super) fn close(&self) {
        self.open.store(false, Relaxed);
    }

    /// Puts a number in.
    pub(super) fn put(&self, ino: Ino) {
        let bits = self.bits.get_or_init(|| zeros(WORDS));
        for (word, bit) in places(ino) {
            bits[word].fetch_or(bit, Relaxed);
        }
    }

    /// False if the number was surely never put in.
    pub(super) fn may_have(&self, ino: Ino) -> bool {
        if self.open.load(Relaxed) {
            return true;
        }
        let Some(bits) = self.bits.get() else { return false };
        places(ino).into_iter().all(|(word, bit)| bits[word].load(Relaxed) & bit != 0)
    }
}

fn places(ino: Ino) -> [(usize, u64); 2] {
    let hash = mix(ino.0 ^ 0x51ed_270b_9f3a_7c15);
    [hash, hash >> 32].map(|half| {
        let half = half & 0xffff_ffff;
        (usize::try_from(half >> 6).unwrap_or(0) % WORDS, 1 << (half & 63))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_keys_are_found_and_few_others() {
        let filter = Filter::default();
        assert!(!filter.may_have(Ino(7)));
        for n in 0..100_000 {
            filter.put(Ino(n));
        }
        assert!((0..100_000).all(|n| filter.may_have(Ino(n))));
        let wrong = (100_000..200_000).filter(|n| filter.may_have(Ino(*n))).count();
        assert!(wrong < 1000, "{wrong} of 100000");
        filter.open();
        assert!(filter.may_have(Ino(1 << 60)));
    }
}
