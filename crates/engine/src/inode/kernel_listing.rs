//! The listing of a directory that the kernel keeps, and whether it saves anything to use it.
//!
//! A listing that is read from the daemon comes with attributes, one that is kept without. So for a program that asks for the
//! attributes of all names, as `ls -l` does, the kept one costs a request a name as soon as earlier answers have expired.
//!
//! A file that moves to another branch keeps its name, and a listing shows it once, by what that handle has shown
//! (`opened/followed.rs`). A handle that is served by the kernel should not go on where another one has read, nor where the
//! kept listing was dropped. So while files move, handles that may use one keep it, and others neither use it nor fill one.

use fsstack_pool::BranchIx;
use fsstack_sync::time::{Duration, Instant};

use super::Inode;

/// Openings for which a listing is read anew once the attributes of its names were asked for one by one.
const WITH_ATTRIBUTES: u8 = 8;

/// Time after a move for which no listing is kept anew.
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
    /// When a file in the directory moved last.
    moved: Option<Instant>,
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
        if self.moved.is_some_and(|moved| moved.elapsed() < BESIDE_MOVES) {
            return if self.users == 0 { KeptListing::None } else { KeptListing::Beside };
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
        KeptListing::Fill
    }
}

impl Inode {
    /// The directory is opened for listing in the state of `stamp` (None: it cannot be distinguished from later ones); its
    /// names' attributes are good for `fresh`. If the kernel may keep a listing or use one, [`Self::kept_listing_closed`] must be
    /// called in the end.
    pub(crate) fn keeps_listing(&self, stamp: Option<u64>, fresh: Duration) -> KeptListing {
        self.with_dir(|dir| dir.kept.open(stamp, fresh)).unwrap_or(KeptListing::None)
    }

    /// A handle that may use the kept listing was closed.
    pub(crate) fn kept_listing_closed(&self) {
        self.with_dir(|dir| dir.kept.users = dir.kept.users.saturating_sub(1));
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
    fn a_listing_is_left_to_its_users_while_files_move() {
        let mut kept = KernelListing::default();
        assert_eq!(kept.open(None, FRESH), KeptListing::None);
        assert_eq!(
            [kept.open(Some(1), FRESH), kept.open(Some(1), FRESH)],
            [KeptListing::Fill, KeptListing::Valid]
        );
        assert_eq!(kept.open(Some(2), FRESH), KeptListing::Fill, "no file moves");
        kept.moved = Some(Instant::now());
        assert_eq!([kept.open(Some(3), FRESH), kept.open(None, FRESH)], [KeptListing::Beside; 2]);
        kept.users = 0;
        assert_eq!(kept.open(Some(3), FRESH), KeptListing::None, "files move");
    }

    #[test]
    fn a_listing_is_not_left_alone_for_ever() {
        let mut kept = KernelListing::default();
        assert_eq!(kept.open(Some(1), FRESH), KeptListing::Fill);
        kept.moved = Instant::now().checked_sub(BESIDE_MOVES);
        assert_eq!(kept.open(Some(2), FRESH), KeptListing::Fill, "an idle handle may be open for days");
    }
}
