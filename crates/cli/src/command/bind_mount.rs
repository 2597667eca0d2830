//! Pools by their bind mounts (`mount --bind`), from the mount table.

use super::pool::Pool;
use fsstack_sys::mounts::{self, MountInfo};
use std::path::{Path, PathBuf};

/// Finds the pool of which a directory is mounted at `full` or above it, and the path from the pool's root. `full` has no symbolic
/// links.
pub(crate) fn holding(full: &Path, live: &[Pool]) -> Option<(Pool, PathBuf)> {
    pool_of(&mounts::list().ok()?, full, live)
}

/// Finds the pool of which a directory is mounted at `place` itself.
pub(crate) fn at(place: &Path, live: &[Pool]) -> Option<Pool> {
    let table = mounts::list().ok()?;
    table.iter().find(|mount| mount.mount_point == place)?;
    pool_of(&table, place, live).map(|(pool, _)| pool)
}

fn pool_of(table: &[MountInfo], full: &Path, live: &[Pool]) -> Option<(Pool, PathBuf)> {
    // Of several mounts on one directory programs see the last.
    let above = table.iter().filter(|mount| full.starts_with(&mount.mount_point));
    let mount = above.max_by_key(|mount| mount.mount_point.as_os_str().len())?;
    if !mount.is_fuse() {
        return None;
    }
    let is_it = |other: &MountInfo| other.dev == mount.dev && other.root == Path::new("/");
    let whole: Vec<&MountInfo> = table.iter().filter(|other| is_it(other)).collect();
    let is_mounted = |pool: &&Pool| whole.iter().any(|other| other.mount_point == pool.entry.mount_point());
    let pool = live.iter().rfind(is_mounted)?;
    let inside = mount.root.strip_prefix("/").ok()?.join(full.strip_prefix(&mount.mount_point).ok()?);
    Some((pool.clone(), inside))
}
