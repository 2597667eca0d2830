//! The inodes that the kernel knows, each with the number of lookups that it has not forgotten.
//!
//! A lookup that finds an inode and a FORGET that takes its last count may meet: both change the count
//! under the lock of the table's shard, so that the inode is either still there for the lookup or made anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use dashmap::mapref::entry::Entry;
use fsstack_pool::Ino;
use fsstack_sys::Kind;

use super::Inode;
use super::number::{Identity, NumberMap};

/// Inodes that go between two looks at the table's size.
const THOUGHT: usize = 2048;

/// The table.
#[derive(Debug)]
pub struct Table {
    root: Arc<Inode>,
    slots: NumberMap<Slot>,
    removed: AtomicUsize,
}

#[derive(Debug)]
struct Slot {
    inode: Arc<Inode>,
    lookups: u64,
}

impl Table {
    /// A table with the root, which is never forgotten.
    pub fn new(root: Inode) -> Self {
        Self { root: Arc::new(root), slots: NumberMap::default(), removed: AtomicUsize::new(0) }
    }

    /// The root.
    pub fn root(&self) -> &Arc<Inode> {
        &self.root
    }

    /// The inode that the kernel calls `ino`.
    pub fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        if ino == Ino::ROOT {
            return Some(self.root.clone());
        }
        self.slots.get(&ino.0).map(|slot| slot.inode.clone())
    }

    /// The kernel looks `id` up once more: its inode, made by `make` if it is not known.
    ///
    /// A known number with another generation or kind is a new object: the branch used the inode number again
    /// before the kernel forgot the old one. The kernel's counts of both run on together.
    pub fn looked_up(&self, id: Identity, kind: Kind, make: impl FnOnce() -> Inode) -> Arc<Inode> {
        if id.ino == Ino::ROOT {
            return self.root.clone();
        }
        match self.slots.entry(id.ino.0) {
            Entry::Occupied(mut known) => {
                let slot = known.get_mut();
                slot.lookups += 1;
                if slot.inode.id != id || slot.inode.kind != kind {
                    slot.inode = Arc::new(make());
                }
                slot.inode.clone()
            }
            Entry::Vacant(free) => {
                let inode = Arc::new(make());
                free.insert(Slot { inode: inode.clone(), lookups: 1 });
                inode
            }
        }
    }

    /// The kernel has forgotten `count` lookups of `ino`. True every now and then, when so many inodes have
    /// gone that giving memory back is worth a thought.
    pub fn forget(&self, ino: Ino, count: u64) -> bool {
        let Entry::Occupied(mut known) = self.slots.entry(ino.0) else { return false };
        let slot = known.get_mut();
        slot.lookups = slot.lookups.saturating_sub(count);
        if slot.lookups > 0 {
            return false;
        }
        let gone = known.remove();
        // Dropping an inode drops its parent's reference, and so on up: not under the shard's lock.
        drop(gone);
        self.removed.fetch_add(1, Relaxed) % THOUGHT == THOUGHT - 1
    }

    /// Inodes known, without the root.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the kernel knows nothing but the root.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The mount is gone, and with it all that the kernel knew.
    pub fn clear(&self) {
        self.slots.clear();
        self.slots.shrink_to_fit();
    }

    /// Gives up room that many forgotten inodes have left; whether there was any.
    pub fn shrink(&self) -> bool {
        // Not for the few that come and go all the time.
        let roomy = self.slots.capacity() > 4 * (self.slots.len() + THOUGHT);
        if roomy {
            self.slots.shrink_to_fit();
        }
        roomy
    }
}
