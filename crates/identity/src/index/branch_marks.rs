//! State of the marks on a branch, as the index knows it.

use fsstack_sync::atomic::{AtomicBool, Ordering::Relaxed};

/// State of a branch's marks.
#[derive(Debug, Default)]
pub struct BranchMarks {
    /// Not all marks of files are in the index: each file is asked.
    pub ask_files: AtomicBool,
    /// Not all marks of directories are in the index.
    pub ask_dirs: AtomicBool,
    /// The branch bears the index's session: objects there may be marked.
    pub(super) signed: AtomicBool,
}

impl BranchMarks {
    /// True if all marks are in the index: a number that it does not have is of nothing on this branch.
    pub fn are_known(&self) -> bool {
        !self.ask_files.load(Relaxed) && !self.ask_dirs.load(Relaxed)
    }
}
