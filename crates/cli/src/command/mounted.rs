//! Whether a pool is mounted where a command is about to change its branches directly, and may be written there.

use std::path::Path;

use fsstack_pool::Printable;
use fsstack_sys::mounts::{self, MountInfo};

use super::Failed;

/// Checks that the pool with that mount point is mounted there, and may be written. Where something in it was opened on the mount
/// `opened`, that mount counts, which may be a bind mount; 0: it is not known.
///
/// # Errors
/// The pool was unmounted, or is not mounted in this mount namespace; it is mounted read-only.
pub(crate) fn check_writable(mount_point: &Path, opened: u64) -> Result<(), Failed> {
    let table = mounts::list().map_err(|error| Failed::system("the mount table", &error))?;
    let is_it = |mount: &&MountInfo| match opened {
        0 => mount.mount_point == mount_point,
        id => mount.id == id,
    };
    let shown = Printable::path(mount_point);
    match table.iter().rfind(is_it).filter(|mount| mount.is_fuse()) {
        None => Err(Failed::Dead(format!(
            "{shown}: the pool is not mounted here, though its daemon runs: nothing was changed; mount it again"
        ))),
        Some(mount) if is_read_only(mount) => Err(Failed::Refused(format!(
            "{shown}: mounted read-only: mount -o remount,rw, if it may be changed"
        ))),
        Some(_) => Ok(()),
    }
}

fn is_read_only(mount: &MountInfo) -> bool {
    mount.options.split(',').chain(mount.super_options.split(',')).any(|option| option == "ro")
}
