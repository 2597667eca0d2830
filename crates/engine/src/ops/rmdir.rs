//! Removing a directory.
//!
//! All copies are looked into before any is removed. They are removed while the tree lock is held, so that
//! no thread gives a branch a new copy meanwhile; the hidden copies first, so that what is left, should a
//! branch fail in between, is the directory as it was.
//!
//! A directory that is known to have one copy is removed by one call there. The shape is shared then, for threads
//! would wait for each other at every removal: that this directory gets no other copy meanwhile, the directory
//! itself sees to ([`Inode::go`]).

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::entries::Entries;
use fsstack_branch::error::{OpError, Result};
use fsstack_pool::EntryName;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::{self as sys, Errno, OFlags, Stat};

use crate::changes::names::End;
use crate::handles::dir_number::forget_copy;
use crate::handles::removed::NameRemoval;
use crate::inode::Inode;
use crate::kept::slots;
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::resolve::DirStats;
use crate::tree::unsynced_dirs::{NameEvent, forget_removed};
use crate::union::Union;

impl Union {
    /// Removes the empty directory `name` from `parent` on all branches.
    ///
    /// # Errors
    /// ENOTEMPTY if it has an entry on any branch, EROFS if a copy cannot be removed: then nothing is.
    pub fn rmdir(&self, parent: Ino, name: EntryName<'_>) -> Result<()> {
        let pool = self.tree.pool.load();
        let parent = self.tree.dir(parent)?;
        let name = name.as_cstr();
        self.tree.check_whole(&pool, &parent)?;
        if self.remove_only_copy(&pool, &parent, name)? {
            return self.tree.sync_changed(&pool, &parent);
        }
        let _tree_lock = self.tree.tree_lock.write(&pool)?;
        let branches = parent.copies();
        self.tree.check_removable(&pool, &parent, name, Stat::is_dir)?;
        if branches.len() > 1 {
            for at in &branches {
                self.tree.check_empty(&pool, &parent, name, *at)?;
            }
        }
        let known = self.tree.known(&parent, name);
        let holders = match branches.len() > 1 || known.is_none() {
            true => self.tree.find_all(&pool, &parent, name, None)?,
            false => DirStats::new(),
        };
        let known = known.or_else(|| self.tree.known_as(&pool, End { dir: &parent, name }, &holders));
        let dirs: DirStats = holders.into_iter().filter(|(_, stat)| stat.is_dir()).collect();
        if dirs.len() > 1 {
            self.tree.check_not_fixed(&pool, &parent, &dirs)?;
        }
        let object = known.as_ref().and_then(|inode| self.tree.object_of(&pool, inode));
        let removal = known.as_ref().map(|inode| self.tree.removal(&pool, inode, (&parent, name)));
        slots::acts(0);
        let mut last = OpError::MISSING;
        let (mut removed, mut gone) = (false, Vec::new());
        // A branch that cannot be written has no directory of that name (`check_removable`); a file there stays hidden.
        for at in branches.into_iter().rev().filter(|at| pool.branch(*at).is_writable()) {
            let copy = known.as_ref().and_then(|inode| inode.copy_on(at));
            match self.tree.remove_on(&pool, &parent, name, at, sys::at::rmdir) {
                Ok(()) => {
                    removed = true;
                    gone.extend(copy.map(|copy| (at, copy)));
                }
                Err(error) if error.is_missing() => {}
                // A hidden file of that name is not ours to remove.
                Err(error) if error.errno() == Errno::NOTDIR => last = error,
                Err(error) => {
                    // It is there, but not on those branches: nothing is to be made in what it had there.
                    if let Some(inode) = &known {
                        for (at, copy) in gone {
                            inode.drop_copy(at, copy);
                            forget_copy(&self.tree, &pool, inode, (at, copy.0));
                        }
                    }
                    return Err(error);
                }
            }
        }
        if !removed {
            return Err(last);
        }
        if let Some((inode, removal)) = known.zip(removal) {
            self.tree.dir_was_removed(&pool, (&inode, object), (&parent, name), removal);
        }
        self.tree.sync_changed(&pool, &parent)
    }

    /// Whether `name` was a directory that is known to have one copy, which is removed.
    ///
    /// # Errors
    /// What the branch of that copy answered; nothing is removed then.
    fn remove_only_copy(&self, pool: &Pool, parent: &Arc<Inode>, name: &CStr) -> Result<bool> {
        let Some(dir) = self.tree.known(parent, name) else { return Ok(false) };
        let _tree_lock = self.tree.tree_lock.read(pool)?;
        if !self.tree.knows_copies(pool, &dir) {
            return Ok(false);
        }
        let Some(rmdir_guard) = dir.go() else { return Ok(false) };
        let branch = pool.branch(rmdir_guard.at);
        if !branch.is_writable() || !parent.is_on(rmdir_guard.at) || !dir.has_name(parent, name) {
            return Ok(false);
        }
        let object = self.tree.object_of(pool, &dir);
        let removal = self.tree.removal(pool, &dir, (parent, name));
        let fd = self.tree.dirfd(pool, parent, rmdir_guard.at)?;
        slots::acts(0);
        match branch.ask(|| sys::at::rmdir(fd.as_fd(), name)) {
            // Not what it was known to be.
            Err(error) if error.is_missing() || error.errno() == Errno::NOTDIR => return Ok(false),
            removed => removed?,
        }
        self.tree.changed(pool, rmdir_guard.at, (parent, name), NameEvent::Went);
        self.tree.dir_was_removed(pool, (&dir, object), (parent, name), removal);
        Ok(true)
    }
}

impl Tree {
    /// The object of a directory that is about to be removed or replaced, and its branch, if it can be kept.
    pub(crate) fn object_of(&self, pool: &Pool, dir: &Arc<Inode>) -> Option<(BranchIx, Arc<DirFd>)> {
        let at = dir.branch().filter(|_| self.unlinked_inodes.has_room())?;
        Some((at, self.dirfd(pool, dir, at).ok()?))
    }

    /// The directory `dir` has lost its name for good: its `object` stays until the kernel forgets it.
    fn dir_was_removed(
        &self,
        pool: &Pool,
        (dir, object): (&Arc<Inode>, Option<(BranchIx, Arc<DirFd>)>),
        (parent, name): (&Arc<Inode>, &CStr),
        removal: NameRemoval<'_>,
    ) {
        if let Some(object) = object {
            keep_object(self, pool, dir, object);
        }
        dir.lost_name(parent, name);
        forget_removed(pool, dir, (parent, name));
        self.gone(pool, removal);
    }

    /// The copy on `at`, if there is one, has no entries.
    pub(crate) fn check_empty(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        at: BranchIx,
    ) -> Result<()> {
        let branch = pool.branch(at);
        let fd = match self.dirfd(pool, parent, at) {
            Err(error) if error.is_missing() => return Ok(()),
            fd => fd?,
        };
        let how = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = branch.ask(|| sys::at::open(fd.as_fd(), name, how, 0, branch.mounts));
        let dir = match opened {
            // A file of that name on a later branch is hidden: none of rmdir's business.
            Err(error) if error.is_missing() || error.errno() == Errno::NOTDIR => return Ok(()),
            dir => dir?,
        };
        match Entries::new(branch, dir, 4096).next_entry()? {
            Some(_) => Err(Errno::NOTEMPTY.into()),
            None => Ok(()),
        }
    }
}

/// Keeps the `object` of the directory `dir`, which was removed or replaced, until the kernel forgets it. Its descriptor counts
/// as that of a removed object, not among the open directories that make room for others.
pub(crate) fn keep_object(tree: &Tree, pool: &Pool, dir: &Inode, (at, object): (BranchIx, Arc<DirFd>)) {
    tree.unlinked_inodes.take_over(&object);
    dir.keep_unlinked(pool.branch(at), object);
}
