//! Making sure that what was written is kept.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use fsstack_branch::error::{OpError, Result};
use fsstack_pool::{BranchIx, Handle, Ino};
use fsstack_sync::atomic::Ordering::Relaxed;
use fsstack_sync::mpsc::{RecvTimeoutError, channel};
use fsstack_sys::{self as sys, Errno, OFlags};

use crate::files::Sync;
use crate::inode::Inode;
use crate::member::Member;
use crate::opened::FileHandle;
use crate::pool::Pool;
use crate::settings::Synced;
use crate::tree::Tree;
use crate::tree::unsynced_dirs::{lost, sync_all};
use crate::union::Union;

impl Union {
    /// The file's data, and unless `data_only` its metadata, are on the branch's disk.
    ///
    /// # Errors
    /// The branch's error, of this handle or of another one while this was open: each is reported once.
    pub fn fsync(&self, handle: Handle, data_only: bool) -> Result<()> {
        let open = self.file(handle)?;
        let own = open.inode.branch();
        self.tree.sync_way(&self.tree.pool.load(), &open.inode, own)?;
        let sync = if data_only { sys::file::fdatasync } else { sys::file::fsync };
        open.file.sync(open.write_back_errors, sync)
    }

    /// Like [`Self::fsync`], after a change by `open` that is no write, if its handle or the mount asks for that.
    ///
    /// # Errors
    /// Those of [`Self::fsync`].
    pub(crate) fn sync_if_asked(&self, handle: Handle, open: &FileHandle) -> Result<()> {
        let by_mount = self.tree.pool.load().settings.synced == Synced::All;
        match open.sync.max(by_mount.then_some(Sync::All)) {
            None => Ok(()),
            Some(sync) => self.fsync(handle, sync == Sync::Data),
        }
    }

    /// The directory's entries are on the disks of all branches that have a copy.
    ///
    /// # Errors
    /// What the first branch that failed answered; the others were asked all the same. A copy that is not there any more does
    /// not count; ESTALE if none is. EIO once for each `handle` if names were changed on a mount of a branch that is gone.
    pub fn fsyncdir(&self, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        let pool = self.tree.pool.load();
        // Its copies as they are known: names were changed in them.
        let dir = self.tree.inode(ino)?;
        if !dir.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        self.tree.sync_way(&pool, &dir, None)?;
        let (mut all, mut there) = (Ok(()), false);
        for at in dir.copies() {
            let synced = self.tree.sync_copy_by(&pool, &dir, at, |fd| {
                let fd = sys::at::reopen(fd, OFlags::RDONLY | OFlags::DIRECTORY)?;
                if data_only { sys::file::fdatasync(fd.as_fd()) } else { sys::file::fsync(fd.as_fd()) }
            });
            match synced {
                Err(error) if self.tree.has_vanished(&pool, &dir, at, error) => {}
                synced => {
                    there = true;
                    all = all.and(synced);
                }
            }
        }
        let losses = dir.losses();
        if let Some(open) = self.files.dirs.get(&handle.0)
            && open.losses.swap(losses, Relaxed) != losses
        {
            let at = dir.branch().ok_or(OpError::STALE)?;
            tracing::warn!(dir = ?dir.name().map(|name| name.name), "directory: unsynced changes on a mount that is gone may be lost; its fsync fails with EIO");
            return all.and(Err(lost(at)));
        }
        if there { all } else { Err(OpError::STALE) }
    }

    /// Everything written to the pool is on the branches' disks.
    ///
    /// # Errors
    /// What the first branch that failed answered; the others were asked all the same.
    pub fn syncfs(&self) -> Result<()> {
        let pool = self.tree.pool.load();
        let mut all = Ok(());
        for branch in &pool.branches {
            let then = branch.unsynced.now();
            let synced = branch.ask_long(|| sync_all(branch.root().as_fd()));
            if synced.is_ok() {
                branch.unsynced.settled_until(then);
            }
            all = all.and(synced);
        }
        all
    }
}

/// Names that an earlier daemon of the pool changed may not be on the disks, and are not known. Before the first request each local
/// branch is synced, by a thread of its own; one that takes longer than `limit` is not waited for.
pub fn sync_earlier_names(pool: &Pool, limit: Duration) {
    if pool.branches.len() == 1 {
        return;
    }
    let (done, all_done) = channel();
    let mut devices = BTreeSet::new();
    let is_local = |branch: &&Arc<Member>| branch.is_open() && !branch.is_remote();
    for branch in pool.branches.iter().filter(is_local).filter(|branch| devices.insert(branch.dev())) {
        let (branch, done) = (branch.clone(), done.clone());
        let thread = fsstack_sync::thread::Builder::new().name("sync-branch".into());
        let sync = move || {
            let synced = sync_all(branch.root().as_fd());
            drop(done);
            if let Err(error) = synced {
                tracing::debug!(%error, branch = %branch.path.display(), "names of an earlier mount are not surely on disk");
            }
        };
        if let Err(error) = fsstack_branch::thread::start(thread, sync) {
            tracing::debug!(%error, "no thread to sync a branch");
        }
    }
    drop(done);
    // Nothing is sent: the wait ends when the last thread has dropped its sender.
    let _ended: Result<(), RecvTimeoutError> = all_done.recv_timeout(limit);
}

impl Tree {
    /// Whether the copy of `dir` on the branch `at`, whose sync failed with `error`, was removed out of band: it has nothing
    /// to be synced. A copy that cannot be asked may be there.
    fn has_vanished(&self, pool: &Pool, dir: &Arc<Inode>, at: BranchIx, error: OpError) -> bool {
        let is_stale = match error {
            OpError::Branch { sys, .. } => sys.errno == Errno::STALE,
            OpError::Refused(errno) => errno == Errno::STALE,
            OpError::Sys(_) | OpError::NoBranch(_) => false,
        };
        if !is_stale && !error.is_missing() {
            return false;
        }
        // A branch that was mounted again says ESTALE of what it has.
        let Some(name) = dir.name() else { return false };
        match self.stat_in(pool, &name.parent, at, &name.name) {
            Ok(there) => dir.copy_ino(at) != Some(there.ino),
            Err(error) => error.is_missing() || error.errno() == Errno::STALE,
        }
    }
}
