//! The way from an inode to a directory descriptor on a branch, and what a name there is.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::error::{OpError, Result};
use fsstack_identity::number::is_offline;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::at::Mounts;
use fsstack_sys::{self as sys, Errno, Stat, SysError};

use super::Tree;
use super::recheck::recheck;
use super::resolve::Found;
use super::tree_lock::TreeLock;
use crate::files::check_not_given_up;
use crate::inode::{Inode, InodeName};
use crate::pool::Pool;

impl Tree {
    /// The inode `ino`, which the kernel has sent a request for.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        match self.inodes.requested(ino) {
            Some(inode) => Ok(inode),
            // While its branch is away there is nothing to be done with it; afterwards it has its own number.
            None if is_offline(ino) => {
                let is_away = self.pool.load().branches.iter().any(|branch| !branch.is_open());
                Err(if is_away { OpError::UNSURE } else { OpError::STALE })
            }
            None => self.found_again(ino),
        }
    }

    /// The inode `ino`, which must be a directory: names in it are about to be used.
    pub(crate) fn dir(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.inode(ino)?;
        if !inode.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        recheck(self, &inode);
        Ok(inode)
    }

    /// The live inode that `name` in `parent` was last known to mean.
    pub(crate) fn known(&self, parent: &Inode, name: &CStr) -> Option<Arc<Inode>> {
        let ino = self.seen.get(parent.id.ino, name.to_bytes())?;
        self.inodes.get(ino).filter(|inode| inode.has_name(parent, name))
    }

    /// Like [`Self::known`] of a file; asks the branches where the cache entry was evicted.
    pub(crate) fn known_or_found(&self, pool: &Pool, parent: &Arc<Inode>, name: &CStr) -> Option<Arc<Inode>> {
        self.known(parent, name).or_else(|| {
            let Found::File(at, stat) = self.find(pool, parent, name).ok()? else { return None };
            let id = self.identity(pool, pool.branch(at), &stat);
            self.inodes.get(id.ino).filter(|inode| inode.id == id)
        })
    }

    /// The descriptor of `dir`'s copy on `branch`.
    ///
    /// # Errors
    /// ENOENT if there is no copy there, or not any more; what the branch answered.
    pub(crate) fn dirfd(&self, pool: &Pool, dir: &Arc<Inode>, branch: BranchIx) -> Result<Arc<DirFd>> {
        let on = pool.branch(branch);
        let mount_generation = on.mount_generation();
        // A descriptor from before the branch was mounted again leads to the mount that is gone.
        let known =
            |dir: &Inode| dir.cached_dirfd(branch).filter(|fd| fd.mount_generation == mount_generation);
        if let Some(fd) = known(dir) {
            return Ok(fd);
        }
        let walked = match self.walk(pool, dir, branch, &known) {
            // Not there, or a directory above was just renamed: that is known while all names stay.
            Err(error) if is_astray(error) && !TreeLock::is_held_here() => {
                let _tree_lock = self.tree_lock.read(pool)?;
                self.walk(pool, dir, branch, &known)
            }
            walked => walked,
        };
        match walked {
            // Renamed out of band.
            Err(error) if is_astray(error) && pool.settings.nfs_export => {
                self.reconnected(pool, dir).map_or(Err(error), |()| self.walk(pool, dir, branch, &known))
            }
            walked => walked,
        }
    }

    fn walk(
        &self,
        pool: &Pool,
        dir: &Arc<Inode>,
        branch: BranchIx,
        known: &dyn Fn(&Inode) -> Option<Arc<DirFd>>,
    ) -> Result<Arc<DirFd>> {
        // Up to the first directory that is open, then down again: as deep as the tree may be, without
        // recursion, and each step one name below one descriptor.
        let mut below: Vec<(Arc<Inode>, InodeName)> = Vec::new();
        let mut at = dir.clone();
        let mut fd = loop {
            if at.is_root() {
                break pool.branch(branch).root();
            }
            if let Some(fd) = known(&at) {
                break fd;
            }
            let name = at.name().ok_or(OpError::MISSING)?;
            let parent = name.parent.clone();
            below.push((at, name));
            at = parent;
        };
        while let Some((inode, name)) = below.pop() {
            fd = self.open_copy(pool.branch(branch), &fd, &inode, &name)?;
        }
        Ok(fd)
    }

    fn open_copy(
        &self,
        branch: &Branch,
        parent: &DirFd,
        dir: &Arc<Inode>,
        name: &InodeName,
    ) -> Result<Arc<DirFd>> {
        // Another thread may be giving the branch a copy: that one stays.
        let was = dir.copy_on(branch.ix);
        let is_gone = || {
            if let Some(was) = was.filter(|_| TreeLock::is_held_here()) {
                dir.drop_copy(branch.ix, was);
            }
        };
        let opened = branch.ask(|| sys::at::open_dir(parent.as_fd(), &name.name, branch.mounts));
        let opened = opened.inspect_err(|error| {
            if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) {
                is_gone();
            }
        })?;
        let stat = branch.ask(|| sys::at::stat_fd(opened.as_fd()))?;
        if dir.copy_ino(branch.ix) != Some(stat.ino) {
            // Replaced out of band: another directory has this name now.
            is_gone();
            return Err(OpError::MISSING);
        }
        let fd = Arc::new(self.budget.count(parent.opened(opened)));
        // With the copy as it was before the call: the branch may have used the number of a removed one again.
        if was.is_some_and(|was| dir.keep_dirfd(branch, was, &fd)) {
            self.budget.opened(&self.inodes, dir, branch.ix);
        }
        Ok(fd)
    }

    /// Asks `branch` for `name` in `dir`.
    pub(crate) fn stat_in(
        &self,
        pool: &Pool,
        dir: &Arc<Inode>,
        branch: BranchIx,
        name: &CStr,
    ) -> Result<Stat> {
        let at = branch;
        let branch = pool.branch(at);
        let stat = by_descriptor(self, pool, (dir, at), |fd| branch.ask(|| branch.stat(fd.as_fd(), name)))?;
        self.check_mount(branch, &stat)?;
        Ok(stat)
    }

    /// A mount inside a branch is not entered unless the branch asks for it.
    pub(crate) fn check_mount(&self, branch: &Branch, stat: &Stat) -> Result<()> {
        if branch.mounts == Mounts::Stay && stat.mnt_id != branch.mnt_id() {
            tracing::info!(branch = %branch.path.display(), "mount inside the branch not entered");
            return Err(branch.said(SysError { call: sys::Call::Stat, errno: Errno::ACCESS }));
        }
        Ok(())
    }
}

/// Asks about the copy of `dir` on the branch `at` by its descriptor. One that leads to an object which is gone, while another may have
/// its name (a server may even use its number again), is opened anew by name. So is one on a mount that was replaced during
/// the call: the new mount may give its numbers to other objects.
pub(crate) fn by_descriptor<T>(
    tree: &Tree,
    pool: &Pool,
    (dir, at): (&Arc<Inode>, BranchIx),
    ask: impl Fn(&DirFd) -> Result<T>,
) -> Result<T> {
    let fd = tree.dirfd(pool, dir, at)?;
    let asked = ask(&fd);
    let is_gone = matches!(&asked, Err(OpError::Branch { sys, .. }) if sys.errno == Errno::STALE);
    if is_gone && !dir.is_root() {
        dir.drop_dirfd(at, &fd); // unless another thread has
    } else if fd.is_of_present_mount(pool.branch(at)) {
        return asked;
    }
    check_not_given_up()?;
    let fd = tree.dirfd(pool, dir, at)?;
    let asked = ask(&fd);
    if fd.is_of_present_mount(pool.branch(at)) { asked } else { Err(OpError::UNSURE) }
}

/// A name on the way to a directory led nowhere, or elsewhere.
pub(crate) fn is_astray(error: OpError) -> bool {
    matches!(error.errno(), Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE)
}
