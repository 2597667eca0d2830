//! File descriptors of directories: opened when first needed, bounded in number, least recently used closed.
//!
//! An operation holds an `Arc` of the descriptor it works on, so that closing the least recently used ones
//! never takes it away: what is closed is the inode's own reference.

use std::collections::VecDeque;
use std::sync::Arc;

use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::atomic::{AtomicUsize, Ordering::Relaxed};
use fsstack_sync::ranked::{BUDGET, Ranked};

use super::Inode;
use super::table::Table;

/// How many directories may be open, and which are.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    open: Arc<AtomicUsize>,
    /// In order of opening; an entry used since it was last looked at goes to the back once more.
    /// By number, for the memory of a directory that was forgotten is not kept until its turn comes.
    /// Order: taken with no inode locked; takes shards of the inode table, and locks inodes.
    queue: Ranked<VecDeque<(Ino, BranchIx)>, BUDGET>,
}

impl Budget {
    /// At most `limit` directories open at once, but for those in use.
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(16), open: Arc::default(), queue: Ranked::default() }
    }

    /// Directories open now.
    pub fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Most that may be open.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Whether one more may be open.
    pub fn has_room(&self) -> bool {
        self.open() < self.limit
    }

    /// Whether less than half of the budget is used.
    pub fn is_half_free(&self) -> bool {
        2 * self.open() < self.limit
    }

    /// Counts `fd`.
    pub fn count(&self, fd: MountedFd) -> DirFd {
        DirFd::counted(fd, self.open.clone())
    }

    /// Counts `fd`, which another budget counts, instead of that one.
    pub fn take_over(&self, fd: &DirFd) {
        fd.recount(&self.open);
    }

    /// `dir`, one of `inodes`, has a descriptor on `branch` from now on: others are closed if they are too many.
    /// Must be called with no inode locked.
    pub fn opened(&self, inodes: &Table, dir: &Inode, branch: BranchIx) {
        let mut queue = self.queue.lock();
        queue.push_back((dir.id.ino, branch));
        let mut looks = queue.len().min(self.limit * 2);
        // The queue also has directories that are gone: they are dropped as they come by.
        while looks > 0 && (self.open.load(Relaxed) > self.limit || queue.len() > self.limit * 2) {
            looks -= 1;
            let Some((ino, at)) = queue.pop_front() else { return };
            if inodes.any_dir(ino).is_some_and(|dir| dir.retire_dirfd(at)) {
                queue.push_back((ino, at));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;

    use fsstack_sys::{self as sys, Kind};

    use super::*;
    use crate::inode::Copies;
    use fsstack_identity::number::Identity;

    #[test]
    fn a_directory_that_was_forgotten_takes_no_memory() {
        let inodes = Table::new(Inode::root(std::iter::empty()));
        let dir = Arc::new(Inode::dir(Identity { ino: Ino(7), generation: 0 }, &Copies::known([])));
        let budget = Budget::new(16);
        budget.opened(&inodes, &dir, BranchIx(0));
        assert_eq!(Arc::weak_count(&dir), 0, "the queue has a number, not the directory");
    }
    #[test]
    fn directories_that_were_not_used_since_are_closed() {
        const MOST: usize = 16;
        let (inodes, budget) = (Table::new(Inode::root(std::iter::empty())), Budget::new(MOST));
        let root = MountedFd::root(sys::at::open_root(Path::new("/")).unwrap(), 0);
        let id = |number| Identity { ino: Ino(number), generation: 0 };
        let copies = |number| Copies::known([(BranchIx(0), number)]);
        let dirs: Vec<_> = (2..100)
            .map(|number| {
                let make = || Inode::dir(id(number), &copies(number));
                // Some are known to the kernel, others are only on the way to something.
                let dir = match number % 2 {
                    0 => inodes.looked_up(id(number), Kind::Dir, make),
                    _ => inodes.passed_by(id(number), make),
                };
                let fd = root.opened(root.as_fd().try_clone_to_owned().unwrap());
                dir.add_copy(BranchIx(0), number, Some(Arc::new(budget.count(fd))), |_| 0);
                budget.opened(&inodes, &dir, BranchIx(0));
                dir
            })
            .collect();
        assert_eq!(dirs.len(), 98);
        assert!(budget.open() <= MOST, "{} are open", budget.open());
    }
}
