//! A shared descriptor of a directory on a branch.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

use fsstack_sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::mounted_fd::MountedFd;

/// An open directory of a branch, or a removed file there (`O_PATH`).
#[derive(Debug)]
pub struct DirFd {
    fd: MountedFd,
    counted: Option<Arc<AtomicUsize>>,
    /// Counts it instead, since it is kept for another reason.
    recounted: OnceLock<Arc<AtomicUsize>>,
}

impl DirFd {
    /// A descriptor that stays open for the life of the pool: a branch's root.
    pub fn pinned(fd: MountedFd) -> Self {
        Self { fd, counted: None, recounted: OnceLock::new() }
    }

    /// A descriptor that is counted in `open` until it is closed.
    pub fn counted(fd: MountedFd, open: Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Relaxed);
        Self { fd, counted: Some(open), recounted: OnceLock::new() }
    }

    /// It is counted in `open` from now on, until it is closed. Once only.
    pub fn recount(&self, open: &Arc<AtomicUsize>) {
        if let Some(before) = &self.counted
            && self.recounted.set(open.clone()).is_ok()
        {
            open.fetch_add(1, Relaxed);
            before.fetch_sub(1, Relaxed);
        }
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
        if let Some(open) = self.recounted.get().or(self.counted.as_ref()) {
            let before = open.fetch_sub(1, Relaxed);
            debug_assert!(before > 0, "a directory descriptor was closed that was not counted");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fsstack_sys as sys;

    use super::*;

    #[test]
    fn a_descriptor_is_counted_in_one_place_until_it_is_closed() {
        let (first, second): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
        let open = || [first.load(Relaxed), second.load(Relaxed)];
        let root = sys::at::open_root(Path::new("/")).unwrap();
        let fd = DirFd::counted(MountedFd::root(root, 0), first.clone());
        assert_eq!(open(), [1, 0]);
        fd.recount(&second);
        fd.recount(&second);
        assert_eq!(open(), [0, 1]);
        drop(fd);
        assert_eq!(open(), [0, 0]);
    }
}
