//! The tree: objects by number, what a name means, where something new is put.

pub(crate) mod clashes;
pub(crate) mod entries;
pub mod inode;
pub(crate) mod inode_flags;
pub(crate) mod parallel_lookup;
pub(crate) mod place;
pub(crate) mod resolve;
pub(crate) mod rights;
pub(crate) mod skeleton;
pub(crate) mod tree_lock;
pub(crate) mod unsynced_dirs;

use std::sync::Arc;

use clashes::Clashes;
use inode::Inode;
use inode::dirfd::Budget;
use inode::location_cache::LocationCache;
use inode::table::Table;
use parallel_lookup::ParallelLookup;
use tree_lock::TreeLock;

/// Removed objects held at most. The kernel forgets them within milliseconds, unless they have other names.
const UNLINKED_INODES: usize = 1024;

/// The tree's own state: which objects there are, where names were seen, and what is known of directories.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) inodes: Arc<Table>,
    pub(crate) seen: LocationCache,
    pub(crate) budget: Budget,
    /// Removed objects that the kernel has not forgotten yet.
    pub(crate) unlinked_inodes: Budget,
    pub(crate) tree_lock: TreeLock,
    pub(crate) clashes: Clashes,
    /// Directories whose copies have not the same rights.
    pub(crate) unlike: Clashes,
    /// Directories and branches that cannot be given them.
    pub(crate) unfit: Clashes,
    pub(crate) parallel_lookup: ParallelLookup,
}

impl Tree {
    /// The tree below `root`, of which at most `dir_fds` directories are kept open.
    pub(crate) fn new(root: Inode, dir_fds: usize) -> Self {
        Self {
            inodes: Arc::new(Table::new(root)),
            seen: LocationCache::default(),
            budget: Budget::new(dir_fds),
            unlinked_inodes: Budget::new(UNLINKED_INODES),
            tree_lock: TreeLock::default(),
            clashes: Clashes::default(),
            unlike: Clashes::default(),
            unfit: Clashes::default(),
            parallel_lookup: ParallelLookup::default(),
        }
    }
}
