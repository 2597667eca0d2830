//! Changing the pool's settings while it is mounted: all that is asked for in one step, or nothing.
//!
//! Requests that have begun go on with the settings that they began with. A write path holds for files that are
//! opened from then on; those that are open keep theirs until their last close.

use crate::settings::{PageCache, Settings};
use crate::union::Union;

/// Why the settings stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSettings {
    /// It is settled when the pool is mounted.
    #[error("{0} cannot change while the pool is mounted: unmount it, and mount it with the other value")]
    Fixed(&'static str),
    /// A promise of passthrough that cannot be kept.
    #[error(
        "write-path=passthrough: the kernel refuses passthrough on branch {path} ({why}): use write-path=auto"
    )]
    NoPassthrough {
        /// The branch.
        path: String,
        /// Error of the kernel.
        why: String,
    },
}

impl Union {
    /// Changes the settings as `edit` does, for all requests that begin from now on.
    ///
    /// # Errors
    /// Something was changed that cannot change: nothing is changed then.
    pub fn change(&self, edit: impl FnOnce(&mut Settings)) -> Result<(), BadSettings> {
        let mut changes = self.changes.lock();
        let pool = self.tree.pool.load();
        let mut settings = pool.settings.clone();
        edit(&mut settings);
        check_fixed(&pool.settings, &settings)?;
        for branch in &pool.branches {
            branch.limit_calls(settings.branch_timeout, settings.branch_inflight);
        }
        self.changes.publish(&mut changes, pool.with_settings(settings));
        Ok(())
    }

    /// Whether a promise of passthrough can be kept: to be asked before it is made by [`Self::change`], which asks no
    /// branch, since one may hang.
    ///
    /// # Errors
    /// The kernel refuses passthrough on a branch, or the branch does not answer.
    pub fn try_passthrough(&self) -> Result<(), BadSettings> {
        // Without the pool's snapshot: a change of the pool waits for its holders.
        let branches = self.pool().branches.clone();
        for branch in &branches {
            branch.try_passthrough(&*self.files.backings).map_err(|why| BadSettings::NoPassthrough {
                path: branch.path.display().to_string(),
                why: why.to_string(),
            })?;
        }
        Ok(())
    }
}

fn check_fixed(old: &Settings, new: &Settings) -> Result<(), BadSettings> {
    // The kernel gets it when the pool is mounted, and has no passthrough beside it.
    let kept_back = |settings: &Settings| settings.page_cache == PageCache::WriteBack;
    let fixed = [
        ("page-cache=writeback", kept_back(old) == kept_back(new)),
        ("locks", old.locks == new.locks),
        ("nfs-export", old.nfs_export == new.nfs_export),
        ("the daemon's privilege", old.privileged == new.privileged),
        ("the number of open directories", old.dir_fds == new.dir_fds),
        ("the memory of open listings", old.listing_entries == new.listing_entries),
        ("the memory of hard links that jobs meet", old.linked_names == new.linked_names),
    ];
    match fixed.into_iter().find(|(_, same)| !same) {
        Some((key, _)) => Err(BadSettings::Fixed(key)),
        None => Ok(()),
    }
}
