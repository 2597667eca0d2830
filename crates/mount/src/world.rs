//! What a mount's options are held against: who mounts, what is mounted, which pools live.

use crate::ledger::{self, LEDGER};
use crate::settings::Privilege;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use std::path::{Path, PathBuf};

/// The world as the helper finds it; a test makes its own.
#[derive(Clone, Debug)]
pub struct World {
    /// Who makes the mount.
    pub privilege: Privilege,
    /// Where live pools are listed.
    pub ledger: PathBuf,
}

impl World {
    /// The world of this process.
    pub fn here() -> Self {
        let privilege = if rustix::process::geteuid().is_root() { Privilege::Root } else { Privilege::User };
        Self { privilege, ledger: PathBuf::from(LEDGER) }
    }

    pub(crate) fn live_pools(&self) -> Vec<ledger::LedgerEntry> {
        ledger::read(&self.ledger)
    }

    /// Whether the root of a mount is at this path; looked up anew, as it may be waited for.
    pub(crate) fn is_mount_point(&self, path: &Path) -> bool {
        let status = statx(CWD, path, AtFlags::NO_AUTOMOUNT, StatxFlags::empty());
        status.is_ok_and(|status| status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }
}
