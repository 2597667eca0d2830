//! The listing of a directory that the kernel keeps, and whether it saves anything to use it.
//!
//! A listing that is read from the daemon comes with attributes, one that is kept without. So for a program that asks for the
//! attributes of all names, as `ls -l` does, the kept one costs a request a name as soon as earlier answers have expired.
//!
//! A file that moves to another branch keeps its name, and a listing shows it once, by what that handle has shown
//! (`opened/followed.rs`). A handle that is served by the kernel must not go on where another one has read, nor where the
//! kept listing was dropped: the kernel adds what any handle that may fill it reads where the kept part ends, and a name that moved
//! from behind that place to before it would be left out. So one handle at a time fills a listing, and others use it when it
//! is whole. Once a file has moved, handles that may use one keep it, and others neither use it nor fill one.

use fsstack_pool::BranchIx;
use fsstack_sync::time::{Duration, Instant};

use super::Inode;

/// Openings for which a listing is read anew once the attributes of its names were asked for one by one.
const WITH_ATTRIBUTES: u8 = 8;

/// Time after a move for which no listing is kept anew, once no handle uses the one from before.
const BESIDE_MOVES: Duration = Duration::from_secs(10);

/// Permission for the kernel to keep a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptListing {
    /// Drop the one that it has, and keep none.
    None,
    /// Leave the one that it has to those who read it, and keep none.
    Beside,
    /// Keep the listing that it reads now.
    Fill,
    /// Use the kept listing.
    Valid,
}

/// The listing that the kernel keeps, and its use.
#[derive(Debug, Default)]
pub(super) struct KernelListing {
    /// Stamp of the state of all copies when the kernel began to keep it.
    stamp: Option<u64>,
    /// When a file in the directory moved last; None also after [`BESIDE_MOVES`] without users.
    moved: Option<Instant>,
    /// A handle fills it, and has not come to the end.
    is_filled: bool,
    /// Open handles that may use it or fill it.
    users: u32,
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

    /// The directory is opened.
    fn open(&mut self, stamp: Option<u64>, fresh: Duration) -> KeptListing {
        if self.users == 0 {
            self.moved = self.moved.filter(|moved| moved.elapsed() < BESIDE_MOVES);
        }
        match (self.moved, self.users) {
            (Some(_), 0) => return KeptListing::None,
            (Some(_), _) => return KeptListing::Beside,
            (None, _) if self.is_filled => return KeptListing::Beside,
            (None, _) => {}
        }
        let Some(stamp) = stamp else { return KeptListing::None };
        let looked_up = std::mem::take(&mut self.looked_up);
        if 0 < self.names && self.names / 2 < looked_up {
            self.with_attributes = WITH_ATTRIBUTES;
        }
        let mut is_used = self.stamp.replace(stamp) == Some(stamp);
        if is_used && 0 < self.with_attributes && self.read.is_none_or(|read| fresh <= read.elapsed()) {
            self.with_attributes -= 1;
            is_used = false;
        }
        self.users += 1;
        if is_used {
            return KeptListing::Valid;
        }
        self.read = Some(Instant::now());
        self.is_filled = true;
        KeptListing::Fill
    }

    /// A handle was closed, one that did not come to the end of the listing that it filled if `is_partial`.
    fn close(&mut self, is_partial: bool) {
        self.users = self.users.saturating_sub(1);
        if is_partial {
            (self.is_filled, self.stamp) = (false, None);
        }
    }
}

impl Inode {
    /// The directory is opened for listing in the state of `stamp` (None: it cannot be distinguished from later ones); its
    /// names' attributes are good for `fresh`. If the kernel may keep a listing or use one, [`Self::kept_listing_closed`] must be
    /// called in the end.
    pub(crate) fn keeps_listing(&self, stamp: Option<u64>, fresh: Duration) -> KeptListing {
        self.with_dir(|dir| dir.kept.open(stamp, fresh)).unwrap_or(KeptListing::None)
    }

    /// The handle that fills the kept listing has come to its end.
    pub(crate) fn kept_listing_filled(&self) {
        self.with_dir(|dir| dir.kept.is_filled = false);
    }

    /// A handle that may use the kept listing was closed; `is_partial` if it filled one, and did not come to the end.
    pub(crate) fn kept_listing_closed(&self, is_partial: bool) {
        self.with_dir(|dir| dir.kept.close(is_partial));
    }

    /// A file in the directory is about to move, or has moved: the listing that the kernel keeps is left to those who may use it, and
    /// no other is kept for a while.
    pub(crate) fn file_moves(&self) {
        self.with_dir(|dir| {
            dir.kept.forget();
            dir.kept.moved = Some(Instant::now());
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Duration = Duration::from_secs(1);

    #[test]
    fn a_listing_is_left_to_its_users_once_files_moved() {
        let mut kept = KernelListing::default();
        assert_eq!(kept.open(None, FRESH), KeptListing::None);
        assert_eq!(kept.open(Some(1), FRESH), KeptListing::Fill);
        kept.is_filled = false;
        assert_eq!(kept.open(Some(1), FRESH), KeptListing::Valid);
        assert_eq!(kept.open(Some(2), FRESH), KeptListing::Fill, "no file moves");
        kept.is_filled = false;
        kept.moved = Some(Instant::now());
        assert_eq!([kept.open(Some(3), FRESH), kept.open(None, FRESH)], [KeptListing::Beside; 2]);
        kept.moved = Instant::now().checked_sub(BESIDE_MOVES);
        assert_eq!(kept.open(Some(3), FRESH), KeptListing::Beside, "a slow reader goes on in it");
        kept.users = 0;
        kept.moved = Some(Instant::now());
        assert_eq!(kept.open(Some(3), FRESH), KeptListing::None, "files move");
        kept.moved = Instant::now().checked_sub(BESIDE_MOVES);
        assert_eq!(kept.open(Some(3), FRESH), KeptListing::Fill);
    }

    #[test]
    fn one_handle_fills_a_listing() {
        let mut kept = KernelListing::default();
        assert_eq!(kept.open(Some(1), FRESH), KeptListing::Fill);
        assert_eq!([kept.open(Some(1), FRESH), kept.open(Some(2), FRESH)], [KeptListing::Beside; 2]);
        kept.close(true);
        assert_eq!(kept.open(Some(1), FRESH), KeptListing::Fill, "the rest of it was not read");
        kept.is_filled = false;
        kept.close(false);
        assert_eq!(kept.open(Some(1), FRESH), KeptListing::Valid);
    }
}
