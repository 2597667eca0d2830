//! Handles: what has a file or a directory open, listings, and the choice of the write path.

pub(crate) mod behind;
pub(crate) mod choose;
pub(crate) mod cookie;
mod copy_places;
mod first_open;
pub(crate) mod followed;
pub(crate) mod handed;
mod last_answer;
pub mod listing;
pub(crate) mod listing_memory;
pub(crate) mod making_way;
pub(crate) mod tables;

use std::sync::Arc;

use fsstack_sync::atomic::{AtomicBool, AtomicU32};
use fsstack_sync::ranked::{LISTING, Ranked};

use crate::files::route::{Route, Writer};
use crate::files::write_back_errors::ReportTo;
use crate::files::{OpenFile, Sync};
use crate::inode::Inode;
use followed::Followed;
use listing::Listing;

/// One handle on an open file.
#[derive(Clone, Debug)]
pub struct FileHandle {
    /// The inode.
    pub inode: Arc<Inode>,
    /// Its open file.
    pub file: Arc<OpenFile>,
    /// Route of this handle's reads and writes.
    pub route: Route,
    /// Whether it may write, and its user.
    pub writer: Option<Writer>,
    /// `O_SYNC` or `O_DSYNC`.
    pub sync: Option<Sync>,
    /// Its share of write-back errors.
    pub(crate) write_back_errors: ReportTo,
    /// By passthrough for reading and writing: the file can be mapped by it and stored into, unseen.
    pub(crate) mappable: bool,
    /// Its reads leave the access time alone.
    pub(crate) noatime: bool,
    /// It was opened while the file was append-only.
    pub(crate) appends: bool,
    /// Its row in what outlives the daemon.
    pub(crate) row: Option<RowNumber>,
}

impl FileHandle {
    /// It was opened on a file that could only be added to, and that is so still.
    pub(crate) fn must_append(&self) -> bool {
        self.appends && self.file.is_append_only()
    }
}

/// One handle on a directory.
#[derive(Debug)]
pub struct DirHandle {
    /// The directory.
    pub inode: Arc<Inode>,
    /// Its listing, as far as it has come.
    pub(crate) listing: Ranked<Listing, LISTING>,
    /// Names in it that move to another branch.
    pub(crate) followed: Followed,
    /// Losses of the directory that this handle has reported, or that are older than it.
    pub(crate) losses: AtomicU32,
    /// It uses the listing that the kernel keeps, or fills that.
    pub(crate) is_kept: AtomicBool,
    /// Its row in what outlives the daemon.
    pub(crate) row: Option<Box<dyn DirRow>>,
}

impl Drop for DirHandle {
    fn drop(&mut self) {
        if *self.is_kept.get_mut() {
            self.inode.kept_listing_closed();
        }
    }
}

/// The row of a handle on a directory in what outlives the daemon (`kept`).
pub(crate) trait DirRow: std::fmt::Debug + Send + std::marker::Sync {
    /// A name in the directory is about to move to another branch.
    fn note_move(&self);
    /// The handle is closed.
    fn free(&self);
}

/// The row of a handle in what outlives the daemon (`kept`); it goes with the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowNumber(pub(crate) u32);
