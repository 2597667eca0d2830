//! A name becomes an entry (`tree/lookup.rs`).

use fsstack_branch::error::Result;
use fsstack_pool::{EntryName, Ino};

use crate::answer::Entry;
use crate::union::Union;

impl Union {
    /// `name` in the directory `parent`. The kernel holds one more lookup of what is answered.
    ///
    /// # Errors
    /// ENOENT if no branch has the name; EIO if one that might have it cannot be asked.
    pub fn lookup(&self, parent: Ino, name: EntryName<'_>) -> Result<Entry> {
        self.tree.lookup(parent, name)
    }
}
