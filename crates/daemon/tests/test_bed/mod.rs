//! Directories to mount, removed on drop.

use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Branches `a`, `b` and `c` and a mount point `mnt` in a directory shown as `$D`.
pub(crate) struct TestBed {
    dir: TempDir,
}

impl TestBed {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        ["a", "b", "c", "mnt"].iter().for_each(|name| fs::create_dir(dir.path().join(name)).unwrap());
        Self { dir }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Replaces `$D` by the directory.
    pub(crate) fn fill(&self, text: &str) -> String {
        text.replace("$D", self.path().to_str().unwrap())
    }

    /// Replaces the directory by `$D`.
    pub(crate) fn hide(&self, text: &str) -> String {
        text.replace(self.path().to_str().unwrap(), "$D")
    }
}
