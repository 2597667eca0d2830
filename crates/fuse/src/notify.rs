//! Notices to the kernel that cached names, attributes or data are out of date.

use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use fsstack_engine::admin::watch::Invalidator;
use fsstack_pool::Ino;
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

/// Has the kernel look all names up again, where it can (Linux 6.16): before a request is served that may have changed them unseen.
///
/// # Errors
/// EINVAL: the kernel is older. The mount is gone.
pub fn expire_names(device: BorrowedFd<'_>) -> io::Result<()> {
    rustix::io::write(device, Notice::all_names().as_bytes())?;
    Ok(())
}

/// The kernel's side of a connection, with its caches.
#[derive(Debug)]
pub struct Kernel(OwnedFd);

impl Kernel {
    /// Makes a notifier for the connection of `device`.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn behind(device: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self(device.try_clone_to_owned()?))
    }

    fn tell(&self, notice: &Notice) -> bool {
        match rustix::io::write(&self.0, notice.as_bytes()) {
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

impl Invalidator for Kernel {
    fn name(&self, parent: Ino, name: &CStr) {
        self.tell(&Notice::name(parent.0, name));
    }

    fn all_names(&self) -> bool {
        self.tell(&Notice::all_names())
    }

    fn attributes(&self, ino: Ino) {
        self.tell(&Notice::attributes(ino.0));
    }

    fn data(&self, ino: Ino) {
        self.tell(&Notice::data(ino.0));
    }
}
