//! Removing a directory.
//!
//! All copies are looked into before any is removed. They are removed while the tree's shape is held, so that
//! no thread gives a branch a new copy meanwhile; the hidden copies first, so that what is left, should a
//! branch fail in between, is the directory as it was.

use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_pool::EntryName;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::{self as sys, Errno, OFlags};

use crate::entries::Entries;
use crate::error::{OpError, Result};
use crate::inode::Inode;
use crate::pool::Pool;
use crate::union::Union;

impl Union {
    /// Removes the empty directory `name` from `parent` on all branches.
    ///
    /// # Errors
    /// ENOTEMPTY if it has an entry on any branch, EROFS if a copy cannot be removed: then nothing is.
    pub fn rmdir(&self, parent: Ino, name: EntryName<'_>) -> Result<()> {
        let pool = self.pool.load();
        let parent = self.dir(parent)?;
        let name = name.as_cstr();
        self.check_whole(&pool, &parent)?;
        let _shape = self.shape.write(&pool)?;
        let branches = parent.copies();
        if branches.len() > 1 {
            self.check_removable(&pool, &parent, name)?;
            for at in &branches {
                self.check_empty(&pool, &parent, name, *at)?;
            }
        }
        let known = self.known(&parent, name);
        if let Some(inode) = &known
            && self.ghosts.has_room()
            && let Some(at) = inode.branch()
            && let Ok(fd) = self.dirfd(&pool, inode, at)
        {
            inode.outlive(fd);
        }
        let mut last = OpError::MISSING;
        let mut removed = false;
        for at in branches.into_iter().rev() {
            let branch = pool.branch(at);
            let gone =
                self.dirfd(&pool, &parent, at).and_then(|fd| branch.ask(|| sys::at::rmdir(fd.as_fd(), name)));
            match gone {
                Ok(()) => removed = true,
                Err(error) if error.is_missing() => {}
                // A hidden file of that name is not ours to remove.
                Err(error) if error.errno() == Errno::NOTDIR => last = error,
                Err(error) => return Err(error),
            }
        }
        if !removed {
            return Err(last);
        }
        if let Some(inode) = known {
            inode.lost_name(&parent, name);
            self.forget_removed(&pool, inode.id);
        }
        Ok(())
    }

    /// The copy on `at`, if there is one, has no entries.
    pub(crate) fn check_empty(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &std::ffi::CStr,
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
        match Entries::new(branch, dir, 4096).next()? {
            Some(_) => Err(Errno::NOTEMPTY.into()),
            None => Ok(()),
        }
    }
}

pub(crate) fn is_dot(name: &std::ffi::CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}
