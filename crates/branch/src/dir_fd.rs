//! A shared descriptor of a directory on a branch.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::mounted_fd::MountedFd;

/// An open directory of a branch, or a removed file there (`O_PATH`).
#[derive(Debug)]
pub struct DirFd {
    fd: MountedFd,
    counted: Option<Arc<AtomicUsize>>,
}

impl DirFd {
    /// A descriptor that stays open for the life of the pool: a branch's root.
    pub fn pinned(fd: MountedFd) -> Self {
        Self { fd, counted: None }
    }

    /// A descriptor that is counted in `open` until it is closed.
    pub fn counted(fd: MountedFd, open: Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Relaxed);
        Self { fd, counted: Some(open) }
    }
}

impl Deref for DirFd {
    type Target = MountedFd;

    fn deref(&self) -> &MountedFd {
        &self.fd
    }
}

impl AsFd for DirFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for DirFd {
    fn drop(&mut self) {
        if let Some(open) = &self.counted {
            let before = open.fetch_sub(1, Relaxed);
            debug_assert!(before > 0, "a directory descriptor was closed that was not counted");
        }
    }
}
