//! Mounts of fsstack whose daemons are gone, from the mount table and the registry's notes.
//!
//! The registry forgets a dead daemon as soon as a command sees it; its mount stays until it is unmounted.

use super::pool::Pool;
use super::time_limit::{HUNG_AFTER, unless_it_hangs};
use fsstack_control::{dead_mounts, registry};
use fsstack_pool::Printable;
use fsstack_sys::mounts::{self, MountInfo};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// fsstack's types in the mount table; the second with `nfs-identity`.
const OURS: [&str; 2] = ["fuse.fsstack", "fuseblk.fsstack"];

/// A mount that no daemon serves.
#[derive(Clone, Debug)]
pub(crate) struct DeadMount {
    /// The mount point.
    pub(crate) at: PathBuf,
    /// False if it does not answer at all: its daemon is stopped.
    pub(crate) has_ended: bool,
}

impl DeadMount {
    /// Its mount point in printable form.
    pub(crate) fn shown(&self) -> String {
        Printable::path(&self.at).to_string()
    }

    /// The name of its pool.
    pub(crate) fn id(&self) -> String {
        registry::pool_id(&self.at)
    }

    /// The state and the remedy.
    pub(crate) fn reason(&self) -> String {
        if self.has_ended {
            format!("its daemon is dead; umount {}, then mount it again", self.shown())
        } else {
            "it does not answer: its daemon is stopped".to_owned()
        }
    }
}

/// Finds fsstack mounts without a daemon, of the mount points that `concerns` accepts. Mounts of `live` pools are skipped: they are
/// checked through their sockets, because a request to a mount whose daemon is stopped may block unkillably.
pub(crate) fn mounts(live: &[Pool], concerns: impl Fn(&Path) -> bool) -> Vec<DeadMount> {
    let table = mounts::list().unwrap_or_default();
    let served: Vec<_> = live.iter().map(|pool| pool.entry.mount_point()).collect();
    let registries = std::iter::once(PathBuf::from(registry::REGISTRY)).chain(registry::own());
    let noted: BTreeSet<_> = registries.flat_map(|registry| dead_mounts::mount_points(&registry)).collect();
    let is_ours = |mount: &MountInfo| {
        OURS.iter().any(|ours| mount.fs_type == *ours)
            || mount.is_fuse() && noted.contains(&mount.mount_point)
    };
    let ours = table.iter().filter(|mount| is_ours(mount));
    let unserved: BTreeSet<_> =
        ours.map(|mount| &mount.mount_point).filter(|at| !served.contains(at) && concerns(at)).collect();
    unserved.into_iter().filter_map(|at| look(at)).collect()
}

/// Tells whether the mount at `at` is dead. Attributes could come from the kernel's cache, so statfs is used.
fn look(at: &Path) -> Option<DeadMount> {
    let mount_point = at.to_owned();
    let has_ended = match unless_it_hangs(HUNG_AFTER, move || rustix::fs::statfs(mount_point)) {
        Some(Err(Errno::NOTCONN | Errno::CONNABORTED)) => true,
        Some(_) => return None,
        None => false,
    };
    Some(DeadMount { at: at.to_owned(), has_ended })
}
