//! Tables of open files and directories, by handle.

use std::sync::Arc;

use fsstack_identity::number::NumberMap;
use fsstack_pool::Handle;
use fsstack_sync::atomic::{AtomicU64, Ordering::Relaxed};
use fsstack_sync::ranked::{MOVING, Ranked};

use super::listing_memory::ListingMemory;
use super::making_way::MakingWay;
use super::{DirHandle, FileHandle};
use crate::files::route::Backings;
use crate::inode::InodeName;

/// Part of the listings' entries that places have besides.
const PARTS_OF_PLACES: usize = 4;

/// State of what is open: handles, and what they share.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) handles: NumberMap<FileHandle>,
    pub(crate) dirs: NumberMap<Arc<DirHandle>>,
    pub(crate) listing_memory: Arc<ListingMemory>,
    /// Memory of where names are in copies, apart: no listing ends short for it.
    pub(crate) places_memory: Arc<ListingMemory>,
    pub(crate) backings: Arc<dyn Backings>,
    pub(crate) next_handle: AtomicU64,
    /// Files that just leave their branch for another.
    pub(crate) moving: Ranked<Vec<InodeName>, MOVING>,
    /// Files that jobs wait for.
    pub(crate) making_way: MakingWay,
}

impl Files {
    /// Empty tables. Listings may keep `listing_entries` entries altogether; `backings` registers files with the kernel.
    pub(crate) fn new(listing_entries: usize, backings: Arc<dyn Backings>) -> Self {
        Self {
            handles: NumberMap::default(),
            dirs: NumberMap::default(),
            listing_memory: Arc::new(ListingMemory::new(listing_entries)),
            places_memory: Arc::new(ListingMemory::new(listing_entries / PARTS_OF_PLACES)),
            backings,
            next_handle: AtomicU64::new(1),
            moving: Ranked::default(),
            making_way: MakingWay::default(),
        }
    }

    pub(crate) fn new_handle(&self) -> Handle {
        Handle(self.next_handle.fetch_add(1, Relaxed))
    }
}
