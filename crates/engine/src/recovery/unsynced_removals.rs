//! Names that the settling of one record removes, or found removed: their directories are synced at its end, each once, before the
//! record goes. An earlier settling may have been cut between a removal and its sync.
//!
//! The index has the new copy's place since before it got its name. Where the copy is gone, the index forgets that place before the
//! record goes: on a branch without birth times it could not know the copy from a later object with its inode number, and the file
//! that stayed where it was would be one that has left.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use fsstack_branch::branch::Branch;
use fsstack_identity::index::{Index, birth};
use fsstack_identity::mark;
use fsstack_identity::number::{Identity, number, number_on_root};
use fsstack_pool::{BranchId, Ino};
use fsstack_sys::file::fsync;
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, OFlags, Stat, SysError};

use crate::recovery::told::Stamp;

/// Open directories at most.
const MOST: usize = 256;

/// Directories that have lost names and are not synced, by device and inode number.
#[derive(Default)]
pub(crate) struct UnsyncedRemovals {
    dirs: HashMap<(u64, u64), OwnedFd>,
    /// A directory could not be synced.
    failed: Option<SysError>,
    /// Places of copies that are gone, as [`Index::forget_places`] takes them.
    vacated: Vec<(Ino, u32)>,
    /// Copies that are the file from now on, according to their marks.
    arrived: Vec<(Identity, Ino, u32)>,
}

impl UnsyncedRemovals {
    /// Removes `name`.
    pub(crate) fn unlink(&mut self, dir: &OwnedFd, name: &CStr) -> Result<(), SysError> {
        sys::at::unlink(dir.as_fd(), name)?;
        self.has_lost(dir)
    }

    /// A name was removed from `dir`, now or before.
    pub(crate) fn has_lost(&mut self, dir: &OwnedFd) -> Result<(), SysError> {
        let stat = sys::at::stat_fd(dir.as_fd())?;
        if let Entry::Vacant(new) = self.dirs.entry((stat.dev, stat.ino)) {
            new.insert(sys::at::reopen(dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?);
        }
        if self.dirs.len() > MOST {
            self.sync_each();
        }
        Ok(())
    }

    /// The copy of that stamp on the branch `on` has no name any more, or has got none.
    pub(crate) fn is_vacated(&mut self, on: BranchId, copy: Stamp) {
        self.vacated.push((number_on_root(on, copy.ino), copy.born));
    }

    /// The copy with the attributes `stat` on the branch `on`, which has the name, is the file.
    pub(crate) fn has_arrived(&mut self, on: &Branch, (dir, name): &(OwnedFd, CString), stat: &Stat) {
        // An index that was made anew may lack it. It is read again by a scan then.
        let marked = mark::of(on, On::Name(dir.as_fd(), name), mark::FILE, stat.ino).ok().flatten();
        self.arrived.extend(marked.map(|id| (id, number(on, stat.dev, stat.ino), birth(stat))));
    }

    /// Syncs the directories, then has the index know which copies are there.
    ///
    /// # Errors
    /// The record stays: not all that was removed is surely gone.
    pub(crate) fn sync(mut self, index: &Index) -> Result<(), SysError> {
        self.sync_each();
        self.failed.map_or(Ok(()), Err)?;
        index.learn_files_now(&self.arrived);
        index.forget_places(&self.vacated);
        Ok(())
    }

    fn sync_each(&mut self) {
        for (_, dir) in self.dirs.drain() {
            self.failed = fsync(dir.as_fd()).err().or(self.failed);
        }
    }
}
