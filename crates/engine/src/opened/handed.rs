//! Handles and listings as rows of the state that one program hands to the next (`handover`).

use std::sync::Arc;

use fsstack_pool::Handle;
use fsstack_sync::atomic::Ordering::Relaxed;
use fsstack_sync::ranked::Ranked;
use serde::{Deserialize, Serialize};

use super::followed::Followed;
use super::listing::Listing;
use super::listing_memory::ListingMemory;
use super::{DirHandle, FileHandle};
use crate::files::handed::{NameRow, Unusable};
use crate::files::route::{Route, Writer};
use crate::files::write_back_errors::ReportTo;
use crate::files::{OpenFile, Sync};
use crate::inode::Inode;

/// A handle on an open file; both are places in the lists of all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileHandleRow {
    pub(crate) handle: u64,
    pub(crate) inode: usize,
    pub(crate) file: usize,
    route: Route,
    writer: Option<Writer>,
    sync: Option<Sync>,
    since: u64,
    mappable: bool,
    noatime: bool,
    appends: bool,
}

/// A handle on a directory. Its listing goes on where the next request says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DirHandleRow {
    pub(crate) handle: u64,
    pub(crate) inode: usize,
    losses: u32,
    listing: ListingRow,
    followed: FollowedRow,
}

/// State of a listing that its cookies do not say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ListingRow {
    pub(super) noatime: bool,
    pub(super) short: bool,
    pub(super) own: Vec<u64>,
}

/// Names that moved while they were listed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct FollowedRow {
    pub(super) at: u64,
    pub(super) lost: bool,
    /// In the order in which they are shown at the end, each with the branch that it was shown on.
    pub(super) names: Vec<(NameRow, Option<u16>)>,
}

impl FileHandle {
    /// Its row; inode and open file have these places in the lists of all.
    pub(crate) fn row(&self, handle: u64, inode: usize, file: usize) -> FileHandleRow {
        FileHandleRow {
            handle,
            inode,
            file,
            route: self.route,
            writer: self.writer,
            sync: self.sync,
            since: self.write_back_errors.since,
            mappable: self.mappable,
            noatime: self.noatime,
            appends: self.appends,
        }
    }

    /// The handle that `row` describes, on `file` of `inode`.
    pub(crate) fn of_row(row: &FileHandleRow, inode: Arc<Inode>, file: Arc<OpenFile>) -> Self {
        Self {
            inode,
            file,
            route: row.route,
            writer: row.writer,
            sync: row.sync,
            write_back_errors: ReportTo { handle: Handle(row.handle), since: row.since },
            mappable: row.mappable,
            noatime: row.noatime,
            appends: row.appends,
            row: None,
        }
    }
}

impl DirHandle {
    /// Its row; None while a thread lists by it.
    pub(crate) fn row(&self, handle: u64, inode: usize) -> Option<DirHandleRow> {
        Some(DirHandleRow {
            handle,
            inode,
            losses: self.losses.load(Relaxed),
            listing: self.listing.try_lock()?.row(),
            followed: self.followed.row(),
        })
    }

    /// The handle that `row` describes, on `inode`.
    ///
    /// # Errors
    /// The row is none.
    pub(crate) fn of_row(
        row: &DirHandleRow,
        inode: Arc<Inode>,
        memory: &Arc<ListingMemory>,
    ) -> Result<Self, Unusable> {
        let followed = Followed::of_row(&row.followed, memory)
            .ok_or_else(|| format!("directory handle {}: its row is damaged", row.handle))?;
        let listing = Ranked::new(Listing::of_row(&row.listing, memory));
        Ok(Self { inode, listing, followed, losses: row.losses.into(), is_kept: false.into(), row: None })
    }
}

impl Listing {
    /// Its row, for another program.
    fn row(&self) -> ListingRow {
        ListingRow { noatime: self.noatime, short: self.short, own: self.own.clone() }
    }

    /// A listing of which nothing is known, and which goes on wherever it is asked to.
    pub(crate) fn going_on(noatime: bool, memory: &Arc<ListingMemory>) -> Self {
        Self::of_row(&ListingRow { noatime, ..ListingRow::default() }, memory)
    }

    /// The listing that `row` describes, which goes on wherever it is asked to.
    fn of_row(row: &ListingRow, memory: &Arc<ListingMemory>) -> Self {
        let mut listing = Self::new(row.noatime, memory);
        // No position: whatever is asked for next is looked for.
        listing.position = u64::MAX;
        (listing.short, listing.own) = (row.short, row.own.clone());
        let _granted = listing.memory.covers(row.own.len());
        listing
    }
}
