//! Environment of a mount: the user, the mount table, the live pools.

use crate::settings::Privilege;
use fsstack_control::registry::{self, REGISTRY, RegistryEntry};
use fsstack_sys::mounts::MountInfo;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a daemon may take to end after its pool was unmounted, on a busy machine.
const LEAVING_TIMEOUT: Duration = Duration::from_secs(10);

/// The world as the helper finds it; a test makes its own.
#[derive(Clone, Debug)]
pub struct World {
    /// Privilege of the mounting user.
    pub privilege: Privilege,
    /// Where root's live pools are listed.
    pub registry: PathBuf,
    /// Where a pool of this user is listed; None: it is not.
    pub own: Option<PathBuf>,
    /// How long a daemon whose pool was unmounted a moment ago is waited for.
    pub leaving: Duration,
}

impl World {
    /// The world of this process.
    pub fn here() -> Self {
        let privilege = if rustix::process::geteuid().is_root() { Privilege::Root } else { Privilege::User };
        Self { privilege, registry: PathBuf::from(REGISTRY), own: registry::own(), leaving: LEAVING_TIMEOUT }
    }

    /// Where pools are listed that this user may be concerned with.
    pub fn registries(&self) -> impl Iterator<Item = &Path> {
        let own = self.own.as_deref().filter(|own| *own != self.registry);
        std::iter::once(self.registry.as_path()).chain(own)
    }

    /// Pools whose daemons run, mounted or not.
    pub(crate) fn running_pools(&self) -> Vec<RegistryEntry> {
        self.registries().flat_map(registry::read).collect()
    }

    /// Pools that live. The daemon of one that `concerns` us and was unmounted a moment ago is waited for: it is
    /// about to give its branches back.
    pub(crate) fn live_pools(&self, concerns: impl Fn(&RegistryEntry) -> bool) -> Vec<RegistryEntry> {
        let began = Instant::now();
        loop {
            let live = self.running_pools();
            let ending = live.iter().any(|pool| concerns(pool) && !Self::may_be_pool(&pool.mount_point()));
            if !ending || self.leaving < began.elapsed() {
                return live;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether what is mounted at this path, on top, may be a pool: by the mount table, which tells of places too that
    /// the caller may not look at. Whose it is the registry tells: a pool is called as its `subtype=` says.
    pub(crate) fn may_be_pool(path: &Path) -> bool {
        let table = fsstack_sys::mounts::list().unwrap_or_default();
        table.iter().rev().find(|mount| mount.mount_point == path).is_some_and(MountInfo::is_fuse)
    }

    /// Whether the root of a mount is at this path; looked up anew, as it may be waited for. A mount that hangs
    /// is not asked.
    pub(crate) fn is_mount_point(&self, path: &Path) -> bool {
        self.mount_point(path).unwrap_or(false)
    }

    /// Like [`Self::is_mount_point`].
    ///
    /// # Errors
    /// That cannot be known.
    pub(crate) fn mount_point(&self, path: &Path) -> std::io::Result<bool> {
        let status = statx(CWD, path, AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?;
        Ok(status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }
}
