//! The listing of a directory that the kernel keeps, and whether it saves anything to use it.
//!
//! A listing that is read from the daemon comes with attributes, one that is kept without. So for a program that asks for the
//! attributes of all names, as `ls -l` does, the kept one costs a request a name as soon as earlier answers have expired.

use fsstack_pool::BranchIx;
use fsstack_sync::time::{Duration, Instant};

use super::Inode;

/// Openings for which a listing is read anew once the attributes of its names were asked for one by one.
const WITH_ATTRIBUTES: u8 = 8;

/// The listing that the kernel keeps, and its use.
#[derive(Debug, Default)]
pub(super) struct KernelListing {
    /// Stamp of the state of all copies when the kernel began to keep it.
    stamp: Option<u64>,
    /// When it was last read from the daemon.
    read: Option<Instant>,
    /// Number of names in the last listing that was read as a whole.
    names: u32,
    /// Number of files in it that were looked up since the last opening.
    looked_up: u32,
    /// Openings left for which it is read for the attributes.
    with_attributes: u8,
}

impl KernelListing {
    pub(super) fn forget(&mut self) {
        self.stamp = None;
    }

    /// The directory is opened. True if the kernel is to use what it keeps.
    fn open(&mut self, stamp: Option<u64>, fresh: Duration) -> bool {
        let Some(stamp) = stamp else { return false };
        let looked_up = std::mem::take(&mut self.looked_up);
        if 0 < self.names && self.names / 2 < looked_up {
            self.with_attributes = WITH_ATTRIBUTES;
        }
        let mut is_used = self.stamp.replace(stamp) == Some(stamp);
        if is_used && 0 < self.with_attributes && self.read.is_none_or(|read| fresh <= read.elapsed()) {
            self.with_attributes -= 1;
            is_used = false;
        }
        if !is_used {
            self.read = Some(Instant::now());
        }
        is_used
    }
}

impl Inode {
    /// The directory is opened for listing in the state of `stamp` (None: it cannot be distinguished from later ones); its
    /// names' attributes are good for `fresh`. Returns whether the kernel is to use the listing that it keeps.
    pub(crate) fn keeps_listing(&self, stamp: Option<u64>, fresh: Duration) -> bool {
        self.with_dir(|dir| dir.kept.open(stamp, fresh)).unwrap_or(false)
    }

    /// The listing that the kernel keeps is not used again.
    pub(crate) fn forget_listing(&self) {
        self.with_dir(|dir| dir.kept.forget());
    }

    /// A whole listing had that many names.
    pub(crate) fn had_names(&self, names: u32) {
        self.with_dir(|dir| dir.kept.names = names);
    }

    /// Like [`Self::is_on`], for the lookup of a file.
    pub(crate) fn is_looked_up_on(&self, branch: BranchIx) -> bool {
        let looked_up = self.with_dir(|dir| {
            dir.kept.looked_up = dir.kept.looked_up.saturating_add(1);
            dir.copies.iter().any(|copy| copy.branch == branch)
        });
        looked_up.unwrap_or(false)
    }
}
