//! Descriptors that carry the mount of their branch.
//!
//! A branch may be mounted again at any moment, and its epoch with it. A call that was slow returns a descriptor on the old
//! mount, so the epoch is never asked for when a call has returned: it is that of the descriptor that was opened by.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor on a branch, and the mount of the branch that it was opened on.
#[derive(Debug)]
pub struct MountedFd {
    fd: OwnedFd,
    pub(crate) mount_generation: u32,
}

impl MountedFd {
    /// The root of a branch, at its mount `mount_generation`.
    pub(crate) fn root(fd: OwnedFd, mount_generation: u32) -> Self {
        Self { fd, mount_generation }
    }

    /// `fd`, which was opened by this one: the same object, or one below it.
    pub(crate) fn opened(&self, fd: OwnedFd) -> Self {
        Self { fd, mount_generation: self.mount_generation }
    }
}

impl AsFd for MountedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
