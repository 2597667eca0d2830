//! Names that are coming to be: each made by one thread at a time.
//!
//! A thread that makes a name asks all branches for it first, and then makes it on one of them. The kernel lets no other
//! make a name in the directory meanwhile, but a bulk copy's commit does not come by the kernel (`reserve.rs`): the two
//! would both find the name missing, and make it on a branch each. The second one waits here, and then finds the object of
//! the first.

use std::ffi::CStr;
use std::sync::Arc;

use fsstack_branch::health::holder::ThreadInCalls;
use fsstack_identity::number::hash_name;
use fsstack_sync::ranked::{HeldRank, NAME};

use super::Inode;
use super::copies::DirCopies;

/// No other thread makes this name in this directory until this is dropped.
///
/// Order: before an open file's place and the tree lock; the holder makes calls on branches.
#[must_use = "others may make the name when this drops"]
#[derive(Debug)]
pub(crate) struct CreateGuard {
    dir: Arc<Inode>,
    name: u64,
    _rank: HeldRank<NAME>,
}

impl Drop for CreateGuard {
    fn drop(&mut self) {
        self.dir.with_dir(|dir| {
            if let Some(at) = dir.creating.iter().position(|(name, _)| *name == self.name) {
                dir.creating.swap_remove(at);
            }
        });
    }
}

impl CreateGuard {
    /// True if this guard already covers `name` in `dir`, by the same name or the same hash; taking a second one would
    /// deadlock.
    pub(crate) fn keeps(&self, dir: &Arc<Inode>, name: &CStr) -> bool {
        Arc::ptr_eq(&self.dir, dir) && self.name == hash_name(dir.id.ino, name.to_bytes())
    }
}

impl Inode {
    /// Guard for making `name` in this directory. None while another thread has it.
    pub(crate) fn make(self: &Arc<Self>, name: &CStr) -> Option<CreateGuard> {
        // Two names of one hash only wait for each other.
        let name = hash_name(self.id.ino, name.to_bytes());
        // An exchange holds two.
        let rank = HeldRank::one_more();
        let alone = self.with_dir(|dir| {
            let alone = dir.creating.iter().all(|(other, _)| *other != name);
            if alone {
                dir.creating.push((name, ThreadInCalls::here()));
            }
            alone
        });
        // A directory that was removed meanwhile gets no names.
        alone.unwrap_or(true).then(|| CreateGuard { dir: self.clone(), name, _rank: rank })
    }

    /// Whether a thread is making a name in this directory.
    pub(crate) fn is_being_filled(&self) -> bool {
        self.with_dir(|dir| !dir.creating.is_empty()).unwrap_or(false)
    }

    /// Whether `name` is being made by a thread that may never come back.
    pub(crate) fn is_made_by_stuck(&self, name: &CStr) -> bool {
        let name = hash_name(self.id.ino, name.to_bytes());
        let made = |dir: &mut DirCopies| dir.creating.iter().any(|(made, by)| *made == name && by.is_stuck());
        self.with_dir(made).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use fsstack_pool::{BranchIx, Ino};

    use super::*;
    use crate::inode::Copies;
    use fsstack_identity::number::Identity;

    /// Inverse of [`mix`](fsstack_identity::number::mix).
    fn unmix(x: u64) -> u64 {
        let x = (x ^ x >> 31 ^ x >> 62).wrapping_mul(0x3196_42b2_d24d_8ec3);
        let x = (x ^ x >> 27 ^ x >> 54).wrapping_mul(0x96de_1b17_3f11_9089);
        x ^ x >> 30 ^ x >> 60
    }

    /// A name that begins otherwise than the 16 bytes of `name` and has the same hash in `dir`.
    fn of_the_same_hash(dir: Ino, name: [u8; 16]) -> CString {
        use fsstack_identity::number::mix;
        let seed = mix(dir.0 ^ 0x9e37_79b9_7f4a_7c15);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let after = |hash: u64, word: u64| mix(hash ^ word).wrapping_add(hash.rotate_left(17));
        let hash = after(after(seed, word(&name[..8])), word(&name[8..]));
        let fit = |n: u64| {
            let begin = format!("{n:08}");
            let half = after(seed, word(begin.as_bytes()));
            let end = unmix(hash.wrapping_sub(half.rotate_left(17))) ^ half;
            CString::new([begin.as_bytes(), &end.to_le_bytes()].concat()).ok()
        };
        (0..).find_map(fit).unwrap()
    }

    #[test]
    fn a_guard_does_not_wait_for_its_own_name_of_the_same_hash() {
        let id = Identity { ino: Ino(7), generation: 0 };
        let dir = || Arc::new(Inode::dir(id, &Copies::known([(BranchIx(0), 10)])));
        let (dir, elsewhere) = (dir(), dir());
        let twin = of_the_same_hash(id.ino, *b"a film of 1920 .");
        assert_ne!(twin.to_bytes(), b"a film of 1920 .");
        let creating = dir.make(c"a film of 1920 .").unwrap();
        assert!(dir.make(&twin).is_none());
        assert!(creating.keeps(&dir, &twin) && creating.keeps(&dir, c"a film of 1920 ."));
        assert!(!creating.keeps(&dir, c"another") && !creating.keeps(&elsewhere, &twin));
    }

    #[test]
    fn a_name_is_made_by_one_at_a_time() {
        let id = Identity { ino: Ino(7), generation: 0 };
        let dir = Arc::new(Inode::dir(id, &Copies::known([(BranchIx(0), 10)])));
        let first = dir.make(c"film").expect("nobody makes it");
        assert!(dir.make(c"film").is_none());
        let other = dir.make(c"other").expect("another name");
        drop(first);
        let again = dir.make(c"film").expect("the first is done");
        drop((again, other));
        assert_eq!(dir.with_dir(|dir| dir.creating.len()), Some(0));
    }
}
