//! Watch for changes of the branches out of band, and the receiver of what is to be asked for again (`admin/watch.rs`).

use std::ffi::CStr;
use std::fmt::Debug;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicBool, Ordering::Relaxed};
use fsstack_sys::fanotify::Group;
use fsstack_sys::{self as sys, OFlags, SysError};

/// Receiver of invalidations: the kernel, which caches answers.
pub trait Invalidator: Send + Sync + Debug {
    /// Makes the kernel ask for `name` in `parent` again at its next use.
    fn name(&self, parent: Ino, name: &CStr);
    /// Makes it ask again for every name, missing ones too. False: it has no such notification, or something is mounted on a name.
    fn all_names(&self) -> bool;
    /// Makes it ask again for the attributes of `ino`.
    fn attributes(&self, ino: Ino);
    /// Makes it ask again for the attributes of `ino`, and drop its cached data.
    fn data(&self, ino: Ino);
}

/// fanotify watch over the pool's branches.
#[derive(Debug)]
pub struct BranchWatch {
    pub(crate) group: Group,
    pub(crate) invalidator: Arc<dyn Invalidator>,
    /// Never held while the kernel is notified: that may wait for a request that needs this lock.
    pub(crate) roots: Mutex<Vec<Arc<WatchedRoot>>>,
    /// Every branch is watched.
    pub(crate) complete: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(crate) struct WatchedRoot {
    pub(crate) at: BranchIx,
    pub(crate) fsid: u64,
    /// Open for reading: open_by_handle_at(2) takes no O_PATH descriptor.
    pub(crate) fd: OwnedFd,
}

impl BranchWatch {
    /// A watch of no branch yet; `complete` says whether all are watched.
    pub(crate) fn new(group: Group, invalidator: Arc<dyn Invalidator>, complete: Arc<AtomicBool>) -> Self {
        Self { group, invalidator, roots: Mutex::default(), complete }
    }

    /// Watches `branch` too. False: it cannot be watched, which is logged, and the watch is not complete any more.
    pub(crate) fn add(&self, branch: &Branch) -> bool {
        let path = branch.path.display();
        if !branch.kind.is_local() {
            tracing::info!(branch = %path, "out-of-band=watch: a remote branch sends no notices; its changes are seen after the timeouts only");
            self.complete.store(false, Relaxed);
            return false;
        }
        let added = self.try_add(branch);
        if let Err(error) = &added {
            tracing::info!(branch = %path, %error, "out-of-band=watch: no notices from this branch; its changes are seen after the timeouts only");
            self.complete.store(false, Relaxed);
        }
        added.is_ok()
    }

    fn try_add(&self, branch: &Branch) -> Result<(), SysError> {
        let fd = sys::at::reopen(branch.root().as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        let fsid = sys::file::statfs(fd.as_fd())?.fsid;
        self.group.watch(fd.as_fd())?;
        let mut roots = self.roots.lock();
        roots.retain(|root| root.at != branch.ix);
        roots.push(Arc::new(WatchedRoot { at: branch.ix, fsid, fd }));
        Ok(())
    }

    /// Records that events are no longer read, and invalidates all names.
    pub fn give_up(&self) {
        self.complete.store(false, Relaxed);
        self.invalidator.all_names();
    }

    pub(crate) fn leave(&self, at: BranchIx) {
        self.roots.lock().retain(|root| root.at != at);
    }

    /// Watches a branch that was mounted again. Its changes meanwhile are unknown, so all names are invalidated.
    pub(crate) fn returned(&self, branch: &Branch) {
        self.add(branch);
        self.invalidator.all_names();
    }
}
