//! Making directories, symlinks, fifos, sockets and devices.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use fsstack_branch::caller::Caller;
use fsstack_branch::error::{OpError, Result};
use fsstack_pool::EntryName;
use fsstack_pool::Ino;
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Stat, SysError};

use crate::answer::Entry;
use crate::inode::clock::Moment;
use crate::kept::slots;
use crate::ops::create::take_back;
use crate::tree::resolve::entry;
use crate::tree::unsynced_dirs::NameEvent;
use crate::union::Union;

/// Object to make.
#[derive(Clone, Copy, Debug)]
pub enum New<'a> {
    /// A directory with this mode.
    Dir(u32),
    /// A file, fifo, socket or device: mode with type, and device number as `makedev` gives it.
    Node(u32, u64),
    /// A symlink to this.
    Symlink(&'a CStr),
}

impl New<'_> {
    fn make(self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), SysError> {
        match self {
            Self::Dir(mode) => sys::at::mkdir(dir, name, mode),
            Self::Node(mode, rdev) => sys::at::mknod(dir, name, mode, rdev),
            Self::Symlink(target) => sys::at::symlink(target, dir, name),
        }
    }

    fn take_back(self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), SysError> {
        match self {
            Self::Dir(_) => sys::at::rmdir(dir, name),
            Self::Node(..) | Self::Symlink(_) => sys::at::unlink(dir, name),
        }
    }
}

impl Union {
    /// Makes `new` under `name` in `parent`, on the first branch of the ranking that takes it. It belongs to
    /// the caller from the first moment. The kernel holds one lookup of it.
    ///
    /// # Errors
    /// EEXIST if any branch has the name; the most telling reason if no branch takes it.
    pub fn make(&self, parent: Ino, name: EntryName<'_>, new: New<'_>, caller: Caller) -> Result<Entry> {
        let pool = self.tree.pool.load();
        let parent = self.tree.dir(parent)?;
        let name = name.as_cstr();
        let _create_guard = self.tree.must_be_missing(&pool, &parent, name)?;
        let (at, stat, dir): (_, Stat, _) = self.tree.place(&pool, &parent, |at| {
            let dir = self.tree.skeleton(&pool, &parent, at)?;
            self.tree.sync_renamed(&pool, (&parent, name), &[at]);
            let branch = pool.branch(at);
            slots::acts(0);
            branch.ask_as(caller, || new.make(dir.as_fd(), name))?;
            let stat = branch.ask(|| branch.stat(dir.as_fd(), name));
            // Another branch may be tried next: this one must not keep the name.
            let stat = stat.map_err(|error| {
                let removed = branch.ask(|| new.take_back(dir.as_fd(), name));
                take_back(branch, name, error, removed)
            })?;
            Ok((at, stat, dir))
        })?;
        parent.has_new(name);
        self.tree.changed(&pool, at, (&parent, name), NameEvent::Came);
        self.tree.sync_changed(&pool, &parent)?;
        // The mount that is there now may have given its number to another object.
        if !dir.is_of_present_mount(pool.branch(at)) {
            return Err(OpError::UNSURE);
        }
        let on = On::Name(dir.as_fd(), name);
        Ok(if stat.is_dir() {
            self.tree.admit_new_dir(&pool, &parent, name, at, stat, on)
        } else {
            let id = self.tree.new_identity(&pool, pool.branch(at), &stat, on);
            entry(&self.tree.admit_file_as(id, &parent, name, (at, &stat), Moment::KNOWN), stat)
        })
    }
}
