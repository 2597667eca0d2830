//! Names that the settling of one record removes: their directories are synced at its end, each once, before the record goes.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use fsstack_sys::file::sync_dir;
use fsstack_sys::{self as sys, SysError};

/// Open directories at most.
const MOST: usize = 256;

/// Directories that have lost names and are not synced, by device and inode number.
#[derive(Default)]
pub(crate) struct UnsyncedRemovals(HashMap<(u64, u64), OwnedFd>);

impl UnsyncedRemovals {
    /// Removes `name`.
    pub(crate) fn unlink(&mut self, dir: OwnedFd, name: &CStr) -> Result<(), SysError> {
        sys::at::unlink(dir.as_fd(), name)?;
        let stat = sys::at::stat_fd(dir.as_fd())?;
        self.0.entry((stat.dev, stat.ino)).or_insert(dir);
        if self.0.len() > MOST { self.sync() } else { Ok(()) }
    }

    /// Syncs the directories.
    pub(crate) fn sync(&mut self) -> Result<(), SysError> {
        self.0.drain().try_for_each(|(_, dir)| sync_dir(dir.as_fd()))
    }
}
