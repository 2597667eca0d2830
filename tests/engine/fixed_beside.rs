//! A branch that is read-only by its mount alone, beside others.

use std::fs;
use std::path::PathBuf;

use fsstack_lab::{Branch, Kind, Layout, MiB};
use fsstack_pool::BranchMode;
use tempfile::TempDir;

use crate::test_bed::{TestBed, settings};

/// A file system that is mounted read-only, with `d/kept` and `d/sub` on it, and two directories beside it.
pub(crate) struct FixedBeside {
    fixed: Branch,
    others: [PathBuf; 2],
    _home: TempDir,
}

impl FixedBeside {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let fixed = Branch::make("fixed", Kind::Tmpfs(MiB(8)), Layout::Sparse, home.path()).unwrap();
        fs::create_dir_all(fixed.path().join("d/sub")).unwrap();
        fs::write(fixed.path().join("d/kept"), "x").unwrap();
        fixed.remount_ro();
        let others = ["b", "c"].map(|name| home.path().join(name));
        others.iter().for_each(|other| fs::create_dir_all(other.join("d")).unwrap());
        Self { fixed, others, _home: home }
    }

    /// A pool of two branches, of which the one at `fixed` is read-only by its mount alone.
    pub(crate) fn pool(&self, fixed: usize) -> TestBed {
        self.pool_beside(&self.others[..1], fixed)
    }

    /// Like [`Self::pool`], of three branches.
    pub(crate) fn pool_with_third(&self, fixed: usize) -> TestBed {
        self.pool_beside(&self.others, fixed)
    }

    fn pool_beside(&self, others: &[PathBuf], fixed: usize) -> TestBed {
        let mut paths = others.to_vec();
        paths.insert(fixed, self.fixed.path().to_owned());
        TestBed::at(&paths, &vec![BranchMode::ReadWrite; paths.len()], settings())
    }
}
