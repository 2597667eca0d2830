//! Objects of removed names, which stay until the kernel forgets their inodes.

use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_branch::dir_fd::DirFd;

use super::{Inode, Location};

impl Inode {
    /// Keeps `fd`, the object itself on the branch `on`, until the kernel forgets the inode; not if the file has moved away, or
    /// the branch was mounted again. A directory is reached by it, since no name leads there. As long as the kernel may ask for it, the
    /// branch must not use its number for another object: a caller that is just opening the old one by its
    /// number would get the new one, or an error that no local disk gives.
    pub(crate) fn keep_unlinked(&self, on: &Branch, fd: Arc<DirFd>) {
        let mut state = self.state.lock();
        // With the inode locked: a move, or another mount, gives up what is kept by then.
        if !fd.is_of_present_mount(on) {
            return;
        }
        match &mut state.location {
            Location::File(file) if file.branch == on.ix => {}
            Location::File(_) | Location::Nowhere => return,
            Location::Dir(dir) => {
                let copy = dir.copies.iter_mut().find(|copy| copy.branch == on.ix);
                copy.into_iter().for_each(|copy| copy.fd = Some(fd.clone()));
            }
        }
        state.unlinked_fd = Some(fd);
    }

    /// Gives the object up, whose space is wanted.
    pub(crate) fn drop_unlinked(&self) {
        self.state.lock().unlinked_fd = None;
    }

    /// The object itself, if a name of it was removed.
    pub(crate) fn unlinked_fd(&self) -> Option<Arc<DirFd>> {
        self.state.lock().unlinked_fd.clone()
    }
}

#[cfg(test)]
mod tests {
    use fsstack_branch::branch::BranchOptions;
    use fsstack_branch::mounted_fd::MountedFd;
    use fsstack_identity::number::Identity;
    use fsstack_pool::{BranchId, BranchIx, BranchSpec, Ino};
    use fsstack_sync::time::Duration;
    use fsstack_sys::{self as sys, Kind};

    use super::*;

    #[test]
    fn a_file_that_has_moved_away_keeps_nothing_of_its_old_branch() {
        let home = tempfile::tempdir().unwrap();
        let root = || sys::at::open_root(home.path()).unwrap();
        let options = BranchOptions {
            timeout: Duration::ZERO,
            inflight: 24,
            privileged: false,
            exact_generations: false,
        };
        let spec = BranchSpec::new(home.path().to_owned());
        let on = Branch::open(BranchIx(0), BranchId::MAX, &spec, root(), None, options).unwrap();
        let held = |generation| Arc::new(DirFd::pinned(MountedFd::root(root(), generation)));
        let file = Inode::file(Identity { ino: Ino(7), generation: 0 }, Kind::File, BranchIx(0));
        file.keep_unlinked(&on, held(1));
        assert!(file.unlinked_fd().is_none(), "it is of another mount");
        file.keep_unlinked(&on, held(0));
        assert!(file.unlinked_fd().is_some());
        file.moved_to(BranchIx(1));
        file.keep_unlinked(&on, held(0));
        assert!(file.unlinked_fd().is_none(), "it is of another branch");
    }
}
