//! A branch, and how far the index has the marks on it.

use std::ffi::CStr;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_sync::atomic::Ordering::Relaxed;
use fsstack_sys::xattr::On;
use fsstack_sys::{Stat, SysError};

use crate::index::BranchMarks;
use crate::mark;

/// A branch whose objects may be marked.
#[derive(Debug)]
pub struct MarkedBranch {
    branch: Arc<Branch>,
    /// State of its marks.
    pub marks: BranchMarks,
}

impl Deref for MarkedBranch {
    type Target = Branch;

    fn deref(&self) -> &Branch {
        &self.branch
    }
}

impl MarkedBranch {
    /// A branch of whose marks nothing is known.
    pub fn new(branch: Arc<Branch>) -> Self {
        Self { branch, marks: BranchMarks::default() }
    }

    /// Whether files are asked for their marks: the index does not have all of them.
    pub fn asks_marks(&self) -> bool {
        self.marks.ask_files.load(Relaxed)
    }

    /// Attributes of `name` in its directory `dir`: what an object's identity is made from. Inside of [`Branch::ask`].
    pub fn stat(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Stat, SysError> {
        let stat = self.stat_generation(dir, name)?;
        if !self.asks_marks() || stat.is_dir() {
            return Ok(stat);
        }
        let on = if name.is_empty() { On::Fd(dir) } else { On::Name(dir, name) };
        let alias = mark::of(self, on, mark::FILE, stat.ino)?;
        Ok(Stat { alias: alias.map(|id| (id.ino.0, id.generation)), ..stat })
    }

    /// Like [`Self::stat`], for the object of `fd`.
    pub fn stat_fd(&self, fd: BorrowedFd<'_>) -> Result<Stat, SysError> {
        self.stat(fd, c"")
    }
}
