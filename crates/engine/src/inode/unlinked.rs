//! Objects of removed names, which stay until the kernel forgets their inodes.

use std::sync::Arc;

use fsstack_branch::dir_fd::DirFd;

use super::Inode;

impl Inode {
    /// Keeps `fd`, the object itself, until the kernel forgets the inode. As long as the kernel may ask for it, the
    /// branch must not use its number for another object: a caller that is just opening the old one by its
    /// number would get the new one, or an error that no local disk gives.
    pub(crate) fn keep_unlinked(&self, fd: Arc<DirFd>) {
        self.state.lock().unlinked_fd = Some(fd);
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
