//! The tree: objects by number, what a name means, where something new is put.

pub(crate) mod beside_moves;
pub(crate) mod catalogued;
pub(crate) mod changing_names;
pub(crate) mod clashes;
pub(crate) mod inode_flags;
pub(crate) mod lookup;
pub(crate) mod parallel_lookup;
pub(crate) mod pin;
pub(crate) mod place;
pub(crate) mod placement;
pub(crate) mod quiet_dirs;
pub(crate) mod recheck;
mod refused_creates;
pub(crate) mod resolve;
pub(crate) mod rights;
pub(crate) mod skeleton;
pub(crate) mod tree_lock;
pub(crate) mod unsynced_dirs;
pub(crate) mod walk;

use std::sync::Arc;

use arc_swap::ArcSwap;
use fsstack_branch::metrics::PoolMetrics;
use fsstack_identity::index::Index;
use fsstack_sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use changing_names::ChangingNames;
use clashes::Clashes;
use parallel_lookup::ParallelLookup;
use quiet_dirs::QuietDirs;
use refused_creates::RefusedCreates;
use tree_lock::TreeLock;

use crate::inode::Inode;
use crate::inode::dirfd::Budget;
use crate::inode::location_cache::LocationCache;
use crate::inode::table::Table;
use crate::pool::Pool;

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
    pub(crate) changing_names: ChangingNames,
    pub(crate) quiet_dirs: QuietDirs,
    pub(crate) clashes: Clashes,
    /// Directories whose copies have not the same rights.
    pub(crate) unlike: Clashes,
    /// Directories and branches that cannot be given them.
    pub(crate) unfit: Clashes,
    refused_creates: RefusedCreates,
    pub(crate) parallel_lookup: ParallelLookup,
    /// Numbers of objects that are not where their number says.
    pub(crate) index: Index,
    /// Files that were relocated: a lookup that asks one branch after the other may have missed one.
    pub(crate) relocations: AtomicU64,
    /// Objects that came to lie against the placement rules, as far as is known.
    pub(crate) misplaced: AtomicU64,
    pub(crate) metrics: PoolMetrics,
    /// Every change on every branch is noticed at once.
    pub(crate) is_watched: Arc<AtomicBool>,
    /// The pool as it is now.
    pub(crate) pool: ArcSwap<Pool>,
}

impl Tree {
    /// The tree below `root` over the branches of `pool`.
    pub(crate) fn new(root: Inode, pool: Pool, index: Index) -> Self {
        let dir_fds = pool.settings.dir_fds;
        Self {
            inodes: Arc::new(Table::new(root)),
            seen: LocationCache::default(),
            budget: Budget::new(dir_fds),
            unlinked_inodes: Budget::new(UNLINKED_INODES),
            tree_lock: TreeLock::default(),
            changing_names: ChangingNames::default(),
            quiet_dirs: QuietDirs::default(),
            clashes: Clashes::default(),
            unlike: Clashes::default(),
            unfit: Clashes::default(),
            refused_creates: RefusedCreates::default(),
            parallel_lookup: ParallelLookup::default(),
            index,
            relocations: AtomicU64::new(0),
            misplaced: AtomicU64::new(0),
            metrics: PoolMetrics::default(),
            is_watched: Arc::default(),
            pool: ArcSwap::from_pointee(pool),
        }
    }

    /// Whether every change on every branch is noticed at once, so that the kernel may cache answers for long.
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Relaxed)
    }
}
