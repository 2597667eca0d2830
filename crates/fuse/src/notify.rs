//! Notices to the kernel that cached names, attributes or data are out of date.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use fsstack_engine::admin::watch::Invalidator;
use fsstack_pool::Ino;
use fsstack_sys::mounts;
use fsstack_wire::Notice;
use rustix::io::Errno;

/// Has the kernel send all requests of the connection of `device` again that were read and not answered.
///
/// # Errors
/// EINVAL: the kernel is older than Linux 6.9. The mount is gone.
pub fn send_again(device: BorrowedFd<'_>) -> io::Result<()> {
    rustix::io::write(device, Notice::resend().as_bytes())?;
    Ok(())
}

/// The kernel's side of a connection, with its caches.
#[derive(Debug)]
pub struct Kernel {
    device: OwnedFd,
    /// Number of the pool's device, if it is known.
    dev: Option<u64>,
}

impl Kernel {
    /// Makes a notifier for the connection of `device`, whose pool has the number `dev` for programs.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn behind(device: BorrowedFd<'_>, dev: Option<u64>) -> io::Result<Self> {
        Ok(Self { device: device.try_clone_to_owned()?, dev })
    }

    fn tell(&self, notice: &Notice) -> bool {
        match rustix::io::write(&self.device, notice.as_bytes()) {
            Ok(_) => true,
            // The kernel has nothing cached, or the mount is gone.
            Err(Errno::NOENT | Errno::NODEV | Errno::NOTDIR) => true,
            Err(Errno::INVAL | Errno::NOSYS) => false,
            Err(error) => {
                tracing::warn!(%error, "notifying the kernel of a change failed; it may show old attributes until they time out");
                false
            }
        }
    }
}

/// Whether something is mounted on a name of the file system `dev`, in this mount namespace; true if that is not known.
fn may_have_mounts_inside(dev: u64) -> bool {
    let Ok(mounts) = mounts::list() else { return true };
    let of_pool: HashSet<u64> =
        mounts.iter().filter(|mount| mount.device() == dev).map(|mount| mount.id).collect();
    mounts.iter().any(|mount| of_pool.contains(&mount.parent))
}

impl Invalidator for Kernel {
    fn name(&self, parent: Ino, name: &CStr) {
        self.tell(&Notice::name(parent.0, name));
    }

    fn all_names(&self) -> bool {
        // The kernel drops the names, and unmounts what is mounted on one.
        !self.dev.is_none_or(may_have_mounts_inside) && self.tell(&Notice::all_names())
    }

    fn attributes(&self, ino: Ino) {
        self.tell(&Notice::attributes(ino.0));
    }

    fn data(&self, ino: Ino) {
        self.tell(&Notice::data(ino.0));
    }
}
