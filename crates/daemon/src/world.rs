//! Environment of a mount: the user, the mount table, the live pools.

use fsstack_sync::time::{Duration, Instant};

use crate::settings::Privilege;
use fsstack_control::registry::{self, REGISTRY, RegistryEntry};
use fsstack_sys::mounts::MountInfo;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use std::path::{Path, PathBuf};

/// Longest wait for a daemon to end after its pool was unmounted.
const LEAVING_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two looks whether that daemon has ended.
const LEAVING_LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Environment of the helper; tests make their own.
#[derive(Clone, Debug)]
pub struct World {
    /// Privilege of the mounting user.
    pub privilege: Privilege,
    /// Registry of root's pools.
    pub registry: PathBuf,
    /// Registry of this user's pools; `None` if there is none.
    pub own: Option<PathBuf>,
    /// Version of the kernel: major and minor.
    pub kernel: (u32, u32),
    /// How long to wait for a daemon whose pool was just unmounted.
    pub leaving: Duration,
}

impl World {
    /// The environment of this process.
    pub fn here() -> Self {
        let privilege = if rustix::process::geteuid().is_root() { Privilege::Root } else { Privilege::User };
        Self {
            privilege,
            registry: PathBuf::from(REGISTRY),
            own: registry::own(),
            kernel: kernel(),
            leaving: LEAVING_TIMEOUT,
        }
    }

    /// Registries that are relevant to this user.
    pub fn registries(&self) -> impl Iterator<Item = &Path> {
        let own = self.own.as_deref().filter(|own| *own != self.registry);
        std::iter::once(self.registry.as_path()).chain(own)
    }

    /// Pools whose daemons run, mounted or not.
    pub(crate) fn running_pools(&self) -> Vec<RegistryEntry> {
        self.registries().flat_map(registry::read).collect()
    }

    /// Live pools. Waits for a `concerns`-matching daemon whose pool was just unmounted, because it is about to release
    /// its branches.
    pub(crate) fn live_pools(&self, concerns: impl Fn(&RegistryEntry) -> bool) -> Vec<RegistryEntry> {
        let began = Instant::now();
        loop {
            let live = self.running_pools();
            let ending = live.iter().any(|pool| concerns(pool) && !Self::may_be_pool(&pool.mount_point()));
            if !ending || self.leaving < began.elapsed() {
                return live;
            }
            fsstack_sync::thread::sleep(LEAVING_LOOK_PAUSE);
        }
    }

    /// True if the top mount at this path may be a pool, by the mount table, which also lists paths that the caller
    /// cannot access. The registry decides whose it is, because `subtype=` sets the type's name.
    pub(crate) fn may_be_pool(path: &Path) -> bool {
        let table = fsstack_sys::mounts::list().unwrap_or_default();
        table.iter().rev().find(|mount| mount.mount_point == path).is_some_and(MountInfo::is_fuse)
    }

    /// True if this path is the root of a mount. Reads the mount table each time, as callers wait for a mount, and
    /// makes no request to a mount that hangs.
    pub(crate) fn is_mount_point(&self, path: &Path) -> bool {
        self.mount_point(path).unwrap_or(false)
    }

    /// Like [`Self::is_mount_point`].
    ///
    /// # Errors
    ///
    /// The mount table cannot be read.
    pub(crate) fn mount_point(&self, path: &Path) -> std::io::Result<bool> {
        let status = statx(CWD, path, AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?;
        Ok(status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }
}

/// The kernel's major and minor version; zeros if its release does not begin with numbers.
fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
