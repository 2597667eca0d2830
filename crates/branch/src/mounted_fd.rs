//! Descriptors with the mount generation of their branch.
//!
//! A branch may be mounted again at any moment, with a new mount generation, while a slow call returns a descriptor on
//! the old mount. So the generation is never read after a call: it is taken from the descriptor through which the new
//! one was opened.
//!
//! To close a file of a remote branch is a request to its server. A thread that serves requests makes it under a permit
//! ([`Branch::dispose`]). A descriptor that is dropped elsewhere, as after an error, is closed by the branch's own threads, and
//! the thread that drops it waits for no server.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{OnceLock, Weak};

use fsstack_sys as sys;

use crate::branch::Branch;
use crate::health::closers::closes_here;

/// Mount generation of a descriptor whose mount is gone: no mount of a branch has it.
pub const GONE_MOUNT: u32 = u32::MAX;

/// A descriptor on a branch, with the mount generation in which it was opened.
#[derive(Debug)]
pub struct MountedFd {
    /// None only while this drops.
    fd: Option<OwnedFd>,
    /// Mount generation: 0, plus one for each mount that replaced another.
    pub mount_generation: u32,
    /// The branch, if it is remote.
    remote: OnceLock<Weak<Branch>>,
}

impl MountedFd {
    /// Root of a branch in its mount generation `mount_generation`.
    pub fn root(fd: OwnedFd, mount_generation: u32) -> Self {
        Self { fd: Some(fd), mount_generation, remote: OnceLock::new() }
    }

    /// A descriptor on the branch `on` that another program has handed over.
    pub fn handed_over(fd: OwnedFd, mount_generation: u32, on: &Branch) -> Self {
        let handed = Self::root(fd, mount_generation);
        if on.is_remote() {
            handed.is_root_of(&on.me);
        }
        handed
    }

    /// Notes the remote branch that this is the root of.
    pub(crate) fn is_root_of(&self, remote: &Weak<Branch>) {
        self.remote.get_or_init(|| remote.clone());
    }

    /// True if no other mount of its branch `on` has replaced this one: what it has answered is about the branch as it is.
    pub fn is_of_present_mount(&self, on: &Branch) -> bool {
        self.mount_generation == on.mount_generation()
    }

    /// One more descriptor of the same object, without a call into its file system.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn one_more(&self) -> Result<Self, sys::SysError> {
        let more = self.as_fd().try_clone_to_owned().map_err(|error| {
            let errno = error.raw_os_error().map_or(sys::Errno::IO, sys::Errno::from_raw_os_error);
            sys::SysError::new(sys::Call::Open, errno)
        })?;
        Ok(self.opened(more))
    }

    /// Wraps `fd`, which was opened through this one: the same object, or one below it.
    pub fn opened(&self, fd: OwnedFd) -> Self {
        Self { fd: Some(fd), mount_generation: self.mount_generation, remote: self.remote.clone() }
    }
}

impl AsFd for MountedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().map_or(sys::CWD, AsFd::as_fd)
    }
}

impl Drop for MountedFd {
    fn drop(&mut self) {
        let Some(remote) = self.remote.get().filter(|_| !closes_here()) else { return };
        if let Some(branch) = remote.upgrade()
            && let Some(fd) = self.fd.take_if(|fd| sys::file::asks_at_close(fd.as_fd()))
        {
            branch.queue(self.mount_generation, fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use fsstack_pool::{BranchId, BranchIx, BranchSpec};
    use fsstack_sync::mpsc::channel;
    use fsstack_sync::time::Duration;

    use super::*;
    use crate::branch::BranchOptions;

    fn remote(path: &std::path::Path) -> Arc<Branch> {
        let root = sys::at::open_root(path).unwrap();
        let mut space = sys::file::statfs(root.as_fd()).unwrap();
        space.f_type = 0;
        let timeout = Duration::from_secs(3600);
        let options = BranchOptions { timeout, inflight: 24, privileged: false, exact_generations: false };
        let spec = BranchSpec::new(path.to_owned());
        Branch::with_space((BranchIx(0), BranchId::MAX), &spec, (root, space), None, options).unwrap()
    }

    /// All threads that close files of the branch are in a close that hangs.
    #[test]
    fn a_dropped_descriptor_is_closed_by_a_thread_of_its_branch() {
        let home = tempfile::tempdir().unwrap();
        let branch = remote(home.path());
        let hung: Vec<_> = (0..2)
            .map(|_| {
                let (end, hangs) = channel::<()>();
                branch.have_closed(0, move || _ = hangs.recv());
                end
            })
            .collect();
        let (file, mut other_end) = UnixStream::pair().unwrap();
        drop(branch.root().opened(file.into()));
        other_end.set_nonblocking(true).unwrap();
        let open = other_end.read(&mut [0]).unwrap_err();
        assert_eq!(open.kind(), ErrorKind::WouldBlock, "it was closed here");
        let (disposed, mut at_once) = UnixStream::pair().unwrap();
        branch.dispose_now(0, branch.root().opened(disposed.into()));
        assert_eq!(at_once.read(&mut [0]).unwrap(), 0, "closed with a permit");
        drop(hung);
        other_end.set_nonblocking(false).unwrap();
        assert_eq!(other_end.read(&mut [0]).unwrap(), 0, "closed by a thread of the branch");
        let (name, mut closed) = UnixStream::pair().unwrap();
        drop(MountedFd::root(name.into(), 0));
        assert_eq!(closed.read(&mut [0]).unwrap(), 0, "no remote branch is asked");
    }
}
