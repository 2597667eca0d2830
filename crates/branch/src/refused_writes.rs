//! File systems that refuse every change though statfs(2) calls them writable: ext4 with `errors=remount-ro` after an error, since
//! Linux 6.15. Only the mount table shows it. It is read with the next space query after a refused change, so at most once a second.
//! The state lasts until the file system is unmounted: ext4 refuses a remount.

use fsstack_pool::BranchMode;
use fsstack_sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use fsstack_sys::mounts;

use crate::branch::Branch;

/// Option in the mount table by which ext4 shows that state.
const REFUSES: &str = "emergency_ro";

/// Changes that a branch has refused.
#[derive(Debug, Default)]
pub(crate) struct RefusedWrites {
    /// A call was EROFS since the mount table was read.
    noted: AtomicBool,
    /// One more than the mount generation in which it refuses all changes; 0: none.
    generation: AtomicU64,
}

impl Branch {
    /// Notes that a change was EROFS. If the branch is not known to be read-only, the mount table is read with the next space query.
    pub(crate) fn note_refused_write(&self) {
        if self.mode() != BranchMode::ReadOnly && !self.is_known_read_only() {
            self.refused_writes.noted.store(true, Relaxed);
        }
    }

    /// Whether the file system of `mount_generation` refuses every change. False if none was tried.
    pub(crate) fn refuses_writes(&self, mount_generation: u32) -> bool {
        let RefusedWrites { noted, generation } = &self.refused_writes;
        let this = u64::from(mount_generation) + 1;
        if generation.load(Relaxed) == this {
            return true;
        }
        // If the table cannot be read, it is read again after the next refused change.
        let refuses = noted.swap(false, Relaxed)
            && mounts::list().is_ok_and(|mounts| {
                let mut here = mounts.iter().filter(|mount| mount.device() == self.dev());
                here.any(|mount| mount.super_options.split(',').any(|option| option == REFUSES))
            });
        if refuses && generation.swap(this, Relaxed) != this {
            tracing::warn!(branch = %self.path.display(), "branch refuses all changes: its file system has found an error and keeps itself read-only; unmount it, check it with e2fsck and mount it again");
        }
        refuses
    }
}
