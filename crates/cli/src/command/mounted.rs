//! Whether a pool is mounted where a command is about to change it past its mount, and may be written there.

use std::path::Path;

use fsstack_pool::Printable;
use fsstack_sys::mounts::{self, MountInfo};

use super::Failed;

/// Checks that the directory `shown`, which was opened on the mount `id`, is in a pool that may be written.
///
/// # Errors
/// The pool was unmounted, or is not mounted in this mount namespace; it is mounted read-only.
pub(crate) fn check_opened(shown: &Path, id: u64) -> Result<(), Failed> {
    check(shown, |mount| mount.id == id)
}

/// Checks that the pool with that mount point is mounted there, and may be written.
///
/// # Errors
/// As those of [`check_opened`].
pub(crate) fn check_mount_point(mount_point: &Path) -> Result<(), Failed> {
    check(mount_point, |mount| mount.mount_point == mount_point)
}

fn is_read_only(mount: &MountInfo) -> bool {
    mount.options.split(',').chain(mount.super_options.split(',')).any(|option| option == "ro")
}

fn check(shown: &Path, is_it: impl Fn(&MountInfo) -> bool) -> Result<(), Failed> {
    let table = mounts::list().map_err(|error| Failed::system("the mount table", &error))?;
    let shown = Printable::path(shown);
    match table.iter().rfind(|mount| is_it(mount)).filter(|mount| mount.is_fuse()) {
        None => Err(Failed::Dead(format!(
            "{shown}: the pool is not mounted here, though its daemon runs: nothing was changed; mount it again"
        ))),
        Some(mount) if is_read_only(mount) => Err(Failed::Refused(format!(
            "{shown}: mounted read-only: mount -o remount,rw, if it may be changed"
        ))),
        Some(_) => Ok(()),
    }
}
