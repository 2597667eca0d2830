//! The kernel forgets inodes.

use fsstack_identity::number::is_offline;
use fsstack_pool::Ino;

use crate::union::Union;

impl Union {
    /// The kernel has forgotten `count` lookups of `ino`. Memory goes; the number keeps its meaning.
    pub fn forget(&self, ino: Ino, count: u64) {
        if is_offline(ino) {
            return self.forget_offline(ino, count);
        }
        self.tree.forget(ino, count);
    }
}
