//! Descriptors that carry the mount of their branch.
//!
//! A branch may be mounted again at any moment, with a new mount generation. A slow call returns a descriptor on the old
//! mount. So the generation is never asked for after a call: it is that of the descriptor that was opened by.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor on a branch, and the mount of the branch that it was opened on.
#[derive(Debug)]
pub struct MountedFd {
    fd: OwnedFd,
    /// Mount of the branch that it was opened on: 0, and one more for each mount that replaced it.
    pub mount_generation: u32,
}

impl MountedFd {
    /// The root of a branch, at its mount `mount_generation`.
    pub fn root(fd: OwnedFd, mount_generation: u32) -> Self {
        Self { fd, mount_generation }
    }

    /// `fd`, which was opened by this one: the same object, or one below it.
    pub fn opened(&self, fd: OwnedFd) -> Self {
        Self { fd, mount_generation: self.mount_generation }
    }
}

impl AsFd for MountedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
