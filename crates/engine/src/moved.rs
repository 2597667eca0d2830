//! Numbers of files that were moved to another branch while the pool was mounted.
//!
//! A number is made from the branch and its inode number, so a moved file would get another one. The kernel, and
//! whoever holds the file, know it by the old one: that stays. And the old branch may use the inode number
//! again: the new file there must not get a number that is still in use.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use dashmap::DashMap;
use fsstack_pool::Ino;

use crate::inode::number::{Identity, hashed};

/// Identities that are not what they would be made from.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    count: AtomicUsize,
    /// From the identity that branch and inode number make to the one that is in force.
    known_as: DashMap<(u64, u32), Identity>,
    /// Numbers in use by files that are not where the number says, with their generation.
    kept: DashMap<u64, u32>,
}

impl Moved {
    /// The identity in force for what would be `natural`.
    pub(crate) fn identity(&self, natural: Identity) -> Identity {
        // The ordinary case: nothing was ever moved.
        if self.count.load(Relaxed) == 0 {
            return natural;
        }
        let key = (natural.ino.0, natural.generation);
        if let Some(known) = self.known_as.get(&key) {
            return *known;
        }
        let taken = self.kept.get(&natural.ino.0).is_some_and(|kept| *kept != natural.generation);
        if !taken {
            return natural;
        }
        let other = Identity { ino: hashed(natural), generation: natural.generation };
        self.known_as.insert(key, other);
        other
    }

    /// The file `id` is now what would be `natural`.
    pub(crate) fn note(&self, id: Identity, natural: Identity) {
        self.known_as.insert((natural.ino.0, natural.generation), id);
        self.kept.insert(id.ino.0, id.generation);
        self.count.fetch_add(1, Relaxed);
    }

    /// The move did not happen after all.
    pub(crate) fn take_back(&self, natural: Identity) {
        self.known_as.remove(&(natural.ino.0, natural.generation));
    }

    /// `d_ino` of what would be `natural`, whose generation a listing does not tell. None: it depends on that.
    pub(crate) fn listed(&self, natural: Ino) -> Option<Ino> {
        if self.count.load(Relaxed) == 0 {
            return Some(natural);
        }
        let moved = self.kept.contains_key(&natural.0)
            || self.known_as.iter().any(|entry| entry.key().0 == natural.0);
        (!moved).then_some(natural)
    }
}
