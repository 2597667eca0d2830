//! A name becomes an entry (`tree/lookup.rs`).

use fsstack_branch::error::Result;
use fsstack_identity::number::is_offline;
use fsstack_pool::{EntryName, Ino};

use crate::answer::Entry;
use crate::settings::Degraded;
use crate::union::Union;

impl Union {
    /// `name` in the directory `parent`. The kernel holds one more lookup of what is answered.
    ///
    /// # Errors
    /// ENOENT if no branch has the name; EIO if one that might have it cannot be asked.
    pub fn lookup(&self, parent: Ino, name: EntryName<'_>) -> Result<Entry> {
        if is_offline(parent) {
            return self.lookup_in_offline(&self.tree.pool.load(), parent, name.as_cstr());
        }
        match self.tree.lookup(parent, name) {
            Err(error) if error.is_fault() => {
                let pool = self.tree.pool.load();
                if pool.settings.degraded != Degraded::Catalogue {
                    return Err(error);
                }
                self.lookup_offline(&pool, &self.tree.dir(parent)?, name.as_cstr(), error)
            }
            found => found,
        }
    }
}
