//! The kernel forgets inodes.

use fsstack_pool::Ino;

use crate::union::Union;

impl Union {
    /// The kernel has forgotten `count` lookups of `ino`. Memory goes; the number keeps its meaning.
    pub fn forget(&self, ino: Ino, count: u64) {
        if self.tree.inodes.forget(ino, count) && self.tree.inodes.shrink() {
            // Freed piece by piece, it would stay with the process.
            fsstack_sys::process::give_memory_back();
        }
    }
}
