//! Names that changed on a branch and may not be on its disk.
//!
//! Each branch is a journal of its own. The object that replaces a name on another branch may be on disk first: after a power
//! cut the old name is back, and may hide the new object. So a branch knows the names that left each of its directories, or
//! came there by a rename, since their last sync. An fsync first syncs those on the path to its object. If only one branch
//! took part, its own journal keeps the order.
//! The same holds for a directory's rights, which decide who may read the synced objects below it.
//!
//! A name that was renamed away is synced before another branch gets an object of that name. If the rename were lost, that
//! object would hide the renamed file, which would have no name then.
//!
//! Besides, each copy of a directory knows whether any name changed in it, and on which mount of its branch
//! (`inode/copies.rs`). A change on a lost mount may be lost too: the directory's fsync says so, once to each handle.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_branch::error::{OpError, Result};
use fsstack_identity::number::hash_name;
use fsstack_pool::BranchIx;
use fsstack_sys::at::{SetTime, Times};
use fsstack_sys::file::sync_dir;
use fsstack_sys::{self as sys, Call, Errno, OFlags, SysError};

use crate::inode::Inode;
use crate::member::Member;
use crate::member::unsynced::{Event, Mark};
use crate::pool::Pool;
use crate::settings::Synced;
use crate::tree::Tree;
use crate::tree::quiet_dirs::note_given;

/// Change of a name in a branch's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameEvent {
    /// It is new. Whether another branch had it before is recorded there.
    Came,
    /// It was removed, or means another object.
    Went,
    /// Its object has another name on the branch.
    Renamed,
}

/// A name in a directory, as a hash.
fn hash(dir: &Inode, name: &CStr) -> u64 {
    hash_name(dir.id.ino, name.to_bytes())
}

/// A name in the copy of `dir` on the branch `at` was changed, and the pool's directory was not: its times stay.
pub(crate) fn changed_unseen(
    tree: &Tree,
    pool: &Pool,
    at: BranchIx,
    (dir, name): (&Arc<Inode>, &CStr),
    change: NameEvent,
) {
    let branch = pool.branch(at);
    let mount_generation = branch.mount_generation();
    dir.note_change(at, mount_generation);
    tree.catalogue_name(pool, at, (dir, name));
    if pool.branches.len() == 1 {
        return;
    }
    let event = match change {
        NameEvent::Came => return,
        NameEvent::Went => Event::Went(hash(dir, name)),
        NameEvent::Renamed => Event::Renamed(hash(dir, name)),
    };
    branch.unsynced.note(dir.id.ino, event, mount_generation);
}

/// `dir` was removed, which was `name` in `parent`. Objects that were renamed out of it would be hidden by those of a new directory of
/// that name on another branch, if both changes were lost: as if it had been renamed itself.
pub(crate) fn forget_removed(pool: &Pool, dir: &Inode, (parent, name): (&Inode, &CStr)) {
    for branch in &*pool.branches {
        if let Some(mount_generation) = branch.unsynced.forget(dir.id.ino) {
            branch.unsynced.note(parent.id.ino, Event::Renamed(hash(parent, name)), mount_generation);
        }
    }
}

impl Tree {
    /// A program has changed a name in the copy of `dir` on the branch `at`.
    pub(crate) fn changed(
        &self,
        pool: &Pool,
        at: BranchIx,
        (dir, name): (&Arc<Inode>, &CStr),
        change: NameEvent,
    ) {
        changed_unseen(self, pool, at, (dir, name), change);
        note_given(self, pool, (dir, at), Times { atime: SetTime::Omit, mtime: SetTime::Now });
    }

    /// Mode, owner, attributes or flags of `dir` were changed, on all of its copies.
    pub(crate) fn attributes_changed(&self, pool: &Pool, dir: &Inode) {
        if pool.branches.len() > 1 {
            for branch in dir.copies().into_iter().map(|at| pool.branch(at)) {
                branch.unsynced.note(dir.id.ino, Event::AttributesChanged, branch.mount_generation());
            }
        }
    }

    /// Syncs the new names of objects renamed away from `name` in `dir` on branches other than `own`, which is about to get an
    /// object of that name. A branch that cannot be asked does not prevent it: no sync was requested.
    pub(crate) fn sync_renamed(&self, pool: &Pool, (dir, name): (&Arc<Inode>, &CStr), own: &[BranchIx]) {
        for branch in pool.branches.iter().filter(|branch| branch.unsynced.any()) {
            if !own.contains(&branch.ix)
                && branch.unsynced.is_renamed(dir.id.ino, hash(dir, name))
                && let Err(error) = self.sync_copy(pool, dir, branch.ix)
            {
                tracing::debug!(%error, ?name, "a rename may be lost by a power cut, and what takes its old name kept");
            }
        }
    }

    /// Syncs removals on other branches than `own` on the way to `inode`: no such name comes back in the place of the object
    /// about to be synced. Also syncs the rights of the directories on the way.
    ///
    /// # Errors
    /// The branch's error; EIO if its mount is gone, and removed names may be back.
    pub(crate) fn sync_way(&self, pool: &Pool, inode: &Arc<Inode>, own: Option<BranchIx>) -> Result<()> {
        let is_other = |branch: &&Arc<Member>| Some(branch.ix) != own && branch.unsynced.any();
        if !pool.branches.iter().any(|branch| is_other(&branch)) {
            return Ok(());
        }
        let mut way = Vec::new();
        for first in inode.names() {
            let mut next = Some(first);
            while let Some(name) = next {
                next = name.parent.name();
                way.push(name);
            }
        }
        for branch in pool.branches.iter().filter(is_other) {
            sync_unknown(branch)?;
            for name in way.iter().rev() {
                let dir = &name.parent;
                let Some(mark) = branch.unsynced.of(dir.id.ino, hash(dir, &name.name)) else { continue };
                sync_noted(self, pool, dir, branch, mark)?;
            }
        }
        Ok(())
    }

    /// Syncs rights and marks of `dir` on branches other than `own`, which is about to get a copy of it: the copies must not
    /// differ after a power cut.
    ///
    /// # Errors
    /// The branch's error; EIO if its mount is gone, and the change may be lost.
    pub(crate) fn sync_attributes(&self, pool: &Pool, dir: &Arc<Inode>, own: BranchIx) -> Result<()> {
        for branch in pool.branches.iter().filter(|branch| branch.ix != own && branch.unsynced.any()) {
            let Some(mark) = branch.unsynced.of_attributes(dir.id.ino) else { continue };
            sync_noted(self, pool, dir, branch, mark)?;
        }
        Ok(())
    }

    /// The names in the copy of `dir` on the branch `at` are on disk.
    ///
    /// # Errors
    /// What the branch answered.
    pub(crate) fn sync_copy(&self, pool: &Pool, dir: &Arc<Inode>, at: BranchIx) -> Result<()> {
        self.sync_copy_by(pool, dir, at, sync_dir)
    }

    /// Like [`Self::sync_copy`], by `sync`.
    ///
    /// # Errors
    /// What the branch answered.
    pub(crate) fn sync_copy_by(
        &self,
        pool: &Pool,
        dir: &Arc<Inode>,
        at: BranchIx,
        sync: impl FnOnce(BorrowedFd<'_>) -> Result<(), SysError>,
    ) -> Result<()> {
        let branch = pool.branch(at);
        let (mark, change) = (branch.unsynced.of_dir(dir.id.ino), dir.take_change(at));
        let synced = self.dirfd(pool, dir, at).and_then(|fd| branch.ask_long(|| sync(fd.as_fd())));
        match (synced, change, mark) {
            (Err(_), Some(mount_generation), _) => dir.note_change(at, mount_generation),
            (Ok(()), Some(mount_generation), _) if mount_generation != branch.mount_generation() => {
                dir.lose_changes()
            }
            _ => {}
        }
        if let (Ok(()), Some(mark)) = (synced, mark) {
            branch.unsynced.settled(dir.id.ino, mark);
        }
        synced
    }

    /// With `dirsync` and `sync`, syncs changed names in `dir`, and the path to them, before the answer.
    ///
    /// # Errors
    /// The branch's error: the change stays.
    pub(crate) fn sync_changed(&self, pool: &Pool, dir: &Arc<Inode>) -> Result<()> {
        if pool.settings.synced == Synced::ByRequest {
            return Ok(());
        }
        let mut next = Some(dir.clone());
        while let Some(dir) = next {
            for at in dir.copies() {
                if dir.has_change(at) {
                    self.sync_copy(pool, &dir, at)?;
                }
            }
            next = dir.name().map(|name| name.parent);
        }
        Ok(())
    }
}

/// Syncs the copy of `dir` on `branch`, of which `mark` is noted.
fn sync_noted(tree: &Tree, pool: &Pool, dir: &Arc<Inode>, branch: &Member, mark: Mark) -> Result<()> {
    match tree.sync_copy(pool, dir, branch.ix) {
        // The copy itself was removed: that is recorded in the directory above.
        Err(error) if error.is_missing() => branch.unsynced.settled(dir.id.ino, mark),
        synced => synced?,
    }
    check_mount_generation(branch, mark.mount_generation)
}

/// Syncs the whole branch, if names may have changed in directories that are not known.
///
/// # Errors
/// The branch's error; EIO if its mount is gone, and the changes may be lost.
fn sync_unknown(branch: &Member) -> Result<()> {
    let Some(mark) = branch.unsynced.of_others() else { return Ok(()) };
    let now = branch.unsynced.now();
    branch.ask_long(|| sync_all(branch.root().as_fd()))?;
    branch.unsynced.settled_until(now);
    check_mount_generation(branch, mark.mount_generation)
}

/// Syncs the whole branch of `root`.
pub(crate) fn sync_all(root: BorrowedFd<'_>) -> Result<(), SysError> {
    let root = sys::at::reopen(root, OFlags::RDONLY | OFlags::DIRECTORY)?;
    sys::file::syncfs(root.as_fd())
}

/// Changes on a lost mount of `branch` may be lost with it.
fn check_mount_generation(branch: &Branch, mount_generation: u32) -> Result<()> {
    if mount_generation == branch.mount_generation() { Ok(()) } else { Err(lost(branch.ix)) }
}

/// An acknowledged change may not be on the branch `at`, which is not at fault by that.
pub(crate) fn lost(at: BranchIx) -> OpError {
    OpError::Branch { branch: at, sys: SysError::new(Call::Fsync, Errno::IO) }
}
