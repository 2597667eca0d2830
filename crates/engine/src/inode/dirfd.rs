//! File descriptors of directories: opened when first needed, bounded in number, least recently used closed.
//!
//! An operation holds an `Arc` of the descriptor it works on, so that closing the least recently used ones
//! never takes it away: what is closed is the inode's own reference.

use std::collections::VecDeque;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use fsstack_pool::BranchIx;
use parking_lot::Mutex;

use super::Inode;
use crate::mounted_fd::MountedFd;

/// An open directory of a branch, or a file there that was removed (`O_PATH`).
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
            open.fetch_sub(1, Relaxed);
        }
    }
}

/// How many directories may be open, and which are.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    open: Arc<AtomicUsize>,
    /// In order of opening; an entry used since it was last looked at goes to the back once more.
    /// Order: taken with no inode locked; locks inodes.
    queue: Mutex<VecDeque<(Weak<Inode>, BranchIx)>>,
}

impl Budget {
    /// At most `limit` directories open at once, but for those in use.
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(16), open: Arc::default(), queue: Mutex::default() }
    }

    /// Directories open now.
    pub fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Whether one more may be open.
    pub fn has_room(&self) -> bool {
        self.open() < self.limit
    }

    /// Counts `fd`.
    pub fn count(&self, fd: MountedFd) -> DirFd {
        self.open.fetch_add(1, Relaxed);
        DirFd { fd, counted: Some(self.open.clone()) }
    }

    /// `inode` has a descriptor on `branch` from now on: others are closed if they are too many.
    /// Must be called with no inode locked.
    pub fn opened(&self, inode: &Arc<Inode>, branch: BranchIx) {
        let mut queue = self.queue.lock();
        queue.push_back((Arc::downgrade(inode), branch));
        let mut looks = queue.len().min(self.limit * 2);
        // The queue also holds inodes that are gone: they are dropped as they come by.
        while looks > 0 && (self.open.load(Relaxed) > self.limit || queue.len() > self.limit * 2) {
            looks -= 1;
            let Some((weak, at)) = queue.pop_front() else { return };
            let Some(inode) = weak.upgrade() else { continue };
            if inode.retire_dirfd(at) {
                queue.push_back((weak, at));
            }
        }
    }
}
