//! Changes that were not synced: of an inode's attributes, and of the names in the copies of a directory.

use std::num::NonZeroU32;

use fsstack_pool::BranchIx;
use fsstack_sync::atomic::Ordering::Relaxed;

use super::Inode;
use super::copies::Copy;

impl Inode {
    /// Its attributes were changed: its handles get an error if that is lost.
    pub(crate) fn note_changed(&self) {
        if let Some(file) = self.open_file() {
            file.note_changed();
        }
    }

    /// A name in the copy on `branch`, in the mount `mount_generation` of it, was changed.
    pub(crate) fn note_change(&self, branch: BranchIx, mount_generation: u32) {
        let mount_generation = NonZeroU32::MIN.saturating_add(mount_generation);
        self.with_copy(branch, |copy| _ = copy.changed.get_or_insert(mount_generation));
    }

    /// Whether a name in the copy on `branch` was changed since it was synced.
    pub(crate) fn has_change(&self, branch: BranchIx) -> bool {
        self.with_copy(branch, |copy| copy.changed.is_some()).unwrap_or(false)
    }

    /// The copy on `branch` is about to be synced: in which mount of the branch a name in it was changed before.
    pub(crate) fn take_change(&self, branch: BranchIx) -> Option<u32> {
        self.with_copy(branch, |copy| copy.changed.take())?.map(|mount_generation| mount_generation.get() - 1)
    }

    /// Changes of names in it may be gone with a mount of a branch.
    pub(crate) fn lose_changes(&self) {
        self.losses.fetch_add(1, Relaxed);
    }

    /// How often [`Self::lose_changes`] was.
    pub(crate) fn losses(&self) -> u32 {
        self.losses.load(Relaxed)
    }

    fn with_copy<T>(&self, branch: BranchIx, f: impl FnOnce(&mut Copy) -> T) -> Option<T> {
        self.with_dir(|dir| dir.copies.iter_mut().find(|copy| copy.branch == branch).map(f))?
    }
}
