//! Hard links: on the file's own branch.

use std::os::fd::{AsFd, BorrowedFd};

use fsstack_branch::error::{OpError, Result};
use fsstack_pool::BranchMode;
use fsstack_pool::EntryName;
use fsstack_pool::Ino;
use fsstack_sys::{self as sys, Errno, SysError};

use crate::answer::Entry;
use crate::inode::clock::Moment;
use crate::kept::slots;
use crate::tree::unsynced_dirs::NameEvent;
use crate::union::Union;

impl Union {
    /// Makes `name` in `parent` one more name of the file `ino`. The kernel holds one more lookup of it.
    ///
    /// # Errors
    /// EEXIST if any branch has the name; EROFS, ENOSPC and the like from the file's branch, which is the only
    /// one that can have the link.
    pub fn link(&self, ino: Ino, parent: Ino, name: EntryName<'_>) -> Result<Entry> {
        let pool = self.tree.pool.load();
        let inode = self.tree.inode(ino)?;
        let parent = self.tree.dir(parent)?;
        let name = name.as_cstr();
        if inode.is_dir() {
            return Err(Errno::PERM.into());
        }
        let _create_guard = self.tree.must_be_missing(&pool, &parent, name)?;
        // An open file may be about to move, and does not: its branch is asked for when it stays.
        let open = inode.open_file();
        let stays = open.as_ref().map(|file| file.hold()).transpose()?;
        let at = inode.branch().ok_or(OpError::STALE)?;
        let branch = pool.branch(at);
        if branch.mode() == BranchMode::ReadOnly {
            return Err(branch.said(SysError { call: sys::Call::Link, errno: Errno::ROFS }));
        }
        let dir = self.tree.skeleton(&pool, &parent, at).map_err(OpError::of_a_new_parent)?;
        self.tree.sync_renamed(&pool, (&parent, name), &[at]);
        let name_it = |fd: BorrowedFd<'_>| {
            sys::at::link_fd(fd, dir.as_fd(), name)?;
            branch.stat_fd(fd)
        };
        let pin = if open.is_none() { Some(self.tree.pin(&pool, &inode)?) } else { None };
        // With the old name removed it is a rename. (After the search for the file, if it had to be searched for.)
        let _moving = pool.moving([&parent, &parent])?;
        let _linking = branch.linking()?;
        slots::acts(0);
        let stat = match (&open, &pin) {
            (Some(file), _) => file.ask_inside(name_it)?,
            (None, Some(pin)) => pin.ask(&pool, name_it)?,
            (None, None) => return Err(OpError::STALE),
        };
        parent.has_new(name);
        self.tree.changed(&pool, at, (&parent, name), NameEvent::Came);
        if let Some(old) = inode.name() {
            self.tree.note_rule_of(&pool, &old.parent, &parent, &[at]);
        }
        self.tree.sync_changed(&pool, &parent)?;
        let entry = self.tree.admit_file(&pool, &parent, name, (at, stat), Moment::KNOWN);
        drop(stays);
        self.tree.catalogue_attributes(&pool, &inode);
        Ok(entry)
    }
}
