//! Names that the settling of one record removes, or found removed: their directories are synced at its end, each once, before the
//! record goes. An earlier settling may have been cut between a removal and its sync.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use fsstack_sys::file::fsync;
use fsstack_sys::{self as sys, OFlags, SysError};

/// Open directories at most.
const MOST: usize = 256;

/// Directories that have lost names and are not synced, by device and inode number.
#[derive(Default)]
pub(crate) struct UnsyncedRemovals {
    dirs: HashMap<(u64, u64), OwnedFd>,
    /// A directory could not be synced.
    failed: Option<SysError>,
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

    /// Syncs the directories.
    ///
    /// # Errors
    /// The record stays: not all that was removed is surely gone.
    pub(crate) fn sync(mut self) -> Result<(), SysError> {
        self.sync_each();
        self.failed.map_or(Ok(()), Err)
    }

    fn sync_each(&mut self) {
        for (_, dir) in self.dirs.drain() {
            self.failed = fsync(dir.as_fd()).err().or(self.failed);
        }
    }
}
