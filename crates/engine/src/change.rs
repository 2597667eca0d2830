//! Changing the pool's settings while it is mounted: all that is asked for in one step, or nothing.
//!
//! Requests that have begun go on with the settings that they began with. A write path holds for files that are
//! opened from then on; those that are open keep theirs until their last close.

use std::fmt::Display;

use fsstack_pool::Size;

use crate::settings::{Degraded, Locks, PageCache, Settings, StatfsMode, Verify};
use crate::union::Union;

/// A setting that is not what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name, as that of the mount option.
    pub key: &'static str,
    /// Former value.
    pub from: String,
    /// New value.
    pub to: String,
}

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
    /// Changes the settings as `edit` does, for all requests that begin from now on: what is different then.
    ///
    /// # Errors
    /// Something was changed that cannot change, or cannot be so: nothing is changed then.
    pub fn change(&self, edit: impl FnOnce(&mut Settings)) -> Result<Vec<Difference>, BadSettings> {
        let mut changes = self.changes.lock();
        let pool = self.pool.load();
        let mut settings = pool.settings.clone();
        edit(&mut settings);
        let differences = self.check(&settings)?;
        for branch in &pool.branches {
            branch.limit_calls(settings.branch_timeout, settings.branch_inflight);
        }
        self.publish(&mut changes, pool.with_settings(settings));
        for Difference { key, from, to } in &differences {
            tracing::info!(key, from, to, "setting changed");
        }
        Ok(differences)
    }

    /// Result that [`Self::change`] would have; nothing is changed.
    ///
    /// # Errors
    /// As those of [`Self::change`].
    pub fn would_change(&self, edit: impl FnOnce(&mut Settings)) -> Result<Vec<Difference>, BadSettings> {
        let mut settings = self.pool.load().settings.clone();
        edit(&mut settings);
        self.check(&settings)
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
            branch.try_passthrough(&*self.backings).map_err(|why| BadSettings::NoPassthrough {
                path: branch.path.display().to_string(),
                why: why.to_string(),
            })?;
        }
        Ok(())
    }

    fn check(&self, new: &Settings) -> Result<Vec<Difference>, BadSettings> {
        let pool = self.pool.load();
        check_fixed(&pool.settings, new)?;
        Ok(differences(&pool.settings, new))
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
    ];
    match fixed.into_iter().find(|(_, same)| !same) {
        Some((key, _)) => Err(BadSettings::Fixed(key)),
        None => Ok(()),
    }
}

fn differences(old: &Settings, new: &Settings) -> Vec<Difference> {
    let rows = |of: &Settings| -> Vec<(&'static str, String)> {
        vec![
            ("create", of.create.to_string()),
            ("minfreespace", of.floor.to_string()),
            ("min-inodes", of.min_inodes.to_string()),
            ("write-path", of.write_path.to_string()),
            ("write-rules", of.rules.to_string()),
            ("page-cache", of.page_cache.to_string()),
            ("passthrough-headroom", Size(of.passthrough_headroom).to_string()),
            ("relocate", switch(of.relocate)),
            ("relocate-policy", of.relocation.policy.to_string()),
            ("relocate-verify", of.relocation.verify.to_string()),
            (
                "relocate-speed",
                of.relocation.speed.map_or_else(String::new, |speed| Size(speed.get()).to_string()),
            ),
            ("statfs", of.statfs.to_string()),
            ("recheck", seconds(of.recheck)),
            ("branch-timeout", seconds(of.branch_timeout)),
            ("branch-inflight", of.branch_inflight.to_string()),
            ("degraded", of.degraded.to_string()),
        ]
    };
    let pairs = rows(old).into_iter().zip(rows(new));
    pairs
        .filter(|((_, from), (_, to))| from != to)
        .map(|((key, from), (_, to))| Difference { key, from, to })
        .collect()
}

fn switch(on: bool) -> String {
    (if on { "on" } else { "off" }).to_owned()
}

fn seconds(time: std::time::Duration) -> String {
    let shown: &dyn Display = &time.as_secs_f64();
    shown.to_string()
}

impl Display for PageCache {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Off => "off",
            Self::On => "on",
            Self::WriteBack => "writeback",
        })
    }
}

impl Display for Degraded {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Strict => "strict",
            Self::Read => "read",
        })
    }
}

impl Display for StatfsMode {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::All => "all",
            Self::AsPlaced => "as-placed",
        })
    }
}

impl Display for Verify {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Size => "size",
            Self::Content => "checksum",
        })
    }
}

impl Display for Locks {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Local => "local",
            Self::Branch => "branch",
        })
    }
}
