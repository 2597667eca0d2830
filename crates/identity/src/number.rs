//! The numbers by which the kernel and NFS clients know an object.
//!
//! A number is made from what is durable: the id stored on the branch and the branch's own inode number.
//! So it is the same after a remount, whatever the order of the branches, and needs no table; given a
//! number of the compact form, branch and inode number can be read back from it. The generation comes
//! from the birth time, which no program can set: a number used again means another generation.

use std::hash::{BuildHasherDefault, Hasher};

use dashmap::DashMap;
use fsstack_branch::branch::Branch;
pub use fsstack_pool::mix;
use fsstack_pool::{BranchId, Ino};
use fsstack_sys::Stat;

/// Bits of the compact form that hold the branch's inode number.
const INO_BITS: u32 = 47;
/// Bits of the compact form below the branch's id.
const LOW_BITS: u32 = INO_BITS + 1;
/// Marks a number that is a hash: the branch's inode number (GlusterFS, btrfs subvolumes) did not fit.
const HASHED: u64 = 1 << 63;
/// Marks a further number of an inode ([`further`]), and without a branch's id an object that is known from the catalogue only.
const FURTHER: u64 = 1 << INO_BITS;
/// Bits of a further number that hold the branch's inode number: enough for XFS of 128 TiB. The bits above tell such numbers of one
/// inode apart.
const FURTHER_INO_BITS: u32 = 38;
/// Further numbers that an object may get.
const FURTHER_NUMBERS: u32 = 3;

/// The number of `name` in the directory `parent`, an object that is known from the catalogue only.
pub fn offline_number(parent: Ino, name: &[u8]) -> Ino {
    Ino(FURTHER | hash_name(parent, name) & (FURTHER - 1))
}

/// Whether `ino` was made by [`offline_number`].
pub fn is_offline(ino: Ino) -> bool {
    ino.0 >> INO_BITS == 1
}

/// Number and generation together name one object, now and after a remount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// nodeid and `st_ino`.
    pub ino: Ino,
    /// Generation; 0 where the branch has no birth times.
    pub generation: u32,
}

/// The identity of what `stat` describes on `branch`.
pub fn identity(branch: &Branch, stat: &Stat) -> Identity {
    Identity { ino: number(branch, stat.dev, stat.ino), generation: generation(stat) }
}

/// The pool's number for inode `ino` of `branch`.
pub fn number(branch: &Branch, dev: u64, ino: u64) -> Ino {
    if dev == branch.dev() {
        return number_on_root(branch.id, ino);
    }
    hashed(branch.id, dev, ino)
}

/// Like [`number`], of the file system of the branch's root.
pub fn number_on_root(branch: BranchId, ino: u64) -> Ino {
    if ino >> INO_BITS == 0 {
        return Ino(u64::from(branch.get()) << LOW_BITS | ino);
    }
    // A device number means nothing after a reboot, so it counts only where it tells two inodes apart.
    hashed(branch, 0, ino)
}

fn hashed(branch: BranchId, dev: u64, ino: u64) -> Ino {
    Ino(HASHED | mix(mix(mix(u64::from(branch.get())) ^ dev) ^ ino))
}

/// Another identity for an object whose own number is in use by one that was moved away.
pub fn another(natural: Identity) -> Identity {
    let ino = Ino(HASHED | mix(natural.ino.0 ^ mix(u64::from(natural.generation))));
    Identity { ino, ..natural }
}

/// Like [`another`], numbers that name the same inode of the same branch: where the branch opens by inode number each leads to the
/// object without an entry of the index. They follow from the generation, so objects that had the inode number one after the other
/// hardly ever have one in common. None: the inode number is too large, or the branch has no birth times, which tell the object from
/// the next one with that inode number.
pub fn further(natural: Identity) -> impl Iterator<Item = Identity> {
    let inode = natural.ino.0 & (FURTHER - 1);
    let leads = branch_of(natural.ino).is_some()
        && natural.ino.0 & FURTHER == 0
        && inode >> FURTHER_INO_BITS == 0
        && natural.generation != 0;
    let choices = INO_BITS - FURTHER_INO_BITS;
    let hash = mix(u64::from(natural.generation));
    let numbers = (0..FURTHER_NUMBERS).filter(move |_| leads).map(move |n| {
        let choice = hash >> (n * choices) & ((1 << choices) - 1);
        Ino(natural.ino.0 | FURTHER | choice << FURTHER_INO_BITS)
    });
    numbers.map(move |ino| Identity { ino, ..natural })
}

/// Whether `id` is the object with the number `natural` by a [`further`] number. Version 0.1 gave all the same one.
pub fn is_further(natural: Identity, id: Identity) -> bool {
    let mut numbers = further(natural).peekable();
    let first = numbers.peek().is_some().then_some(Ino(natural.ino.0 | FURTHER));
    id.generation == natural.generation && (first == Some(id.ino) || numbers.any(|number| number == id))
}

/// The branch that a number of the compact form was made from.
pub fn branch_of(ino: Ino) -> Option<BranchId> {
    let high = u16::try_from(ino.0 >> LOW_BITS).ok()?;
    (ino.0 & HASHED == 0).then(|| BranchId::new(high)).flatten()
}

/// The branch's inode number that a number of the compact form was made from: its own, or a [`further`] one.
pub fn inode_of(ino: Ino) -> Option<u64> {
    let bits = if ino.0 & FURTHER == 0 { INO_BITS } else { FURTHER_INO_BITS };
    branch_of(ino).map(|_| ino.0 & ((1 << bits) - 1))
}

/// The number that branch and inode number make, of an object whose number `ino` is a [`further`] one; `ino` itself of others.
pub fn natural_of(ino: Ino) -> Ino {
    match branch_of(ino).zip(inode_of(ino)) {
        Some((branch, inode)) => number_on_root(branch, inode),
        None => ino,
    }
}

/// Generation of the object with the attributes `stat`: from its birth time; 0 where the branch tells none.
pub fn generation(stat: &Stat) -> u32 {
    let born = match (stat.btime, stat.version) {
        (None, None) => return 0,
        (born, _) => born.unwrap_or_default(),
    };
    // The clock that births are read from may stand still for milliseconds; the branch's own generation, where it
    // was asked for, tells apart what was born within one of its ticks.
    let version = stat.version.map_or(0, |version| mix(u64::from(version) | 1 << 32));
    let mixed = mix(born.sec.cast_unsigned() ^ u64::from(born.nsec) << 34 ^ version);
    // Never 0: that is the root's, and the sign of a branch without birth times.
    u32::try_from(mixed >> 32).unwrap_or(0).max(1)
}

/// A map keyed by numbers that callers cannot choose freely: handles, and inode numbers made by [`number`].
pub type NumberMap<T> = DashMap<u64, T, BuildHasherDefault<NumberHasher>>;

/// Hashes one number.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
}

/// A 64-bit hash of a name below a directory: for caches that verify what they answer.
pub fn hash_name(dir: Ino, name: &[u8]) -> u64 {
    let mut hash = mix(dir.0 ^ 0x9e37_79b9_7f4a_7c15);
    for chunk in name.chunks(8) {
        let mut word = [0_u8; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = mix(hash ^ u64::from_le_bytes(word)).wrapping_add(hash.rotate_left(17));
    }
    mix(hash ^ name.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_numbers_lead_where_the_first_does_and_are_no_other_objects() {
        let branch = BranchId::new(7).unwrap();
        let natural = |inode, generation| Identity { ino: number_on_root(branch, inode), generation };
        for inode in [1, 128, (1 << FURTHER_INO_BITS) - 1] {
            let own = natural(inode, 9);
            let numbers: Vec<_> = further(own).collect();
            assert_eq!((numbers.len(), inode_of(own.ino)), (3, Some(inode)));
            for other in numbers {
                assert_eq!((branch_of(other.ino), inode_of(other.ino)), (Some(branch), Some(inode)));
                assert_eq!(natural_of(other.ino), own.ino);
                assert!(is_further(own, other) && !is_further(natural(inode, 8), other));
                assert!(other.ino != own.ino && !is_offline(other.ino) && !is_offline(own.ino));
                assert_eq!(further(other).count(), 0);
            }
        }
        // Objects that have an inode number in turn hardly ever get the same one.
        let numbers: std::collections::HashSet<_> = (1..200)
            .flat_map(|generation| further(natural(128, generation)).next())
            .map(|id| id.ino.0)
            .collect();
        assert!(numbers.len() > 140, "{}", numbers.len());
        // A larger inode number has none.
        let large = [natural(1 << FURTHER_INO_BITS, 9), natural(FURTHER, 9)];
        assert!(large.iter().all(|own| further(*own).count() == 0) && branch_of(large[1].ino).is_none());
        assert_eq!(further(natural(1, 0)).count(), 0, "without birth times");
        assert!(is_offline(offline_number(Ino::ROOT, b"a")));
    }
}
