//! Descriptors with the mount generation of their branch.
//!
//! A branch may be mounted again at any moment, with a new mount generation, while a slow call returns a descriptor on
//! the old mount. So the generation is never read after a call: it is taken from the descriptor through which the new
//! one was opened.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::branch::Branch;

/// A descriptor on a branch, with the mount generation in which it was opened.
#[derive(Debug)]
pub struct MountedFd {
    fd: OwnedFd,
    /// Mount generation: 0, plus one for each mount that replaced another.
    pub mount_generation: u32,
}

impl MountedFd {
    /// Root of a branch in its mount generation `mount_generation`.
    pub fn root(fd: OwnedFd, mount_generation: u32) -> Self {
        Self { fd, mount_generation }
    }

    /// True if no other mount of its branch `on` has replaced this one: what it has answered is about the branch as it is.
    pub fn is_of_present_mount(&self, on: &Branch) -> bool {
        self.mount_generation == on.mount_generation()
    }

    /// Wraps `fd`, which was opened through this one: the same object, or one below it.
    pub fn opened(&self, fd: OwnedFd) -> Self {
        Self { fd, mount_generation: self.mount_generation }
    }
}

impl AsFd for MountedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
