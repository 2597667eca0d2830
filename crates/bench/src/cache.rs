//! Drops caches before a cold measurement.

use std::fs::{self, File};
use std::io;

use rustix::fs::{Advice, fadvise};

/// Extent of a drop of caches, for the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// All clean pages, names and inodes of the machine.
    Machine,
    /// Only the file's pages in the target's cache; caches below are unchanged.
    FileOnly,
}

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Machine => "dropped with /proc/sys/vm/drop_caches",
            Self::FileOnly => {
                "dropped with posix_fadvise for the file only (not root: what lies below stayed cached)"
            }
        })
    }
}

/// Drops caches as far as permitted; `files` will be read.
pub(crate) fn drop_caches(files: &[File]) -> io::Result<Dropped> {
    for file in files {
        // Dirty pages cannot be dropped, so they are written first.
        file.sync_data()?;
        fadvise(file, 0, None, Advice::DontNeed)?;
    }
    let whole = fs::write("/proc/sys/vm/drop_caches", "3\n");
    Ok(if whole.is_ok() { Dropped::Machine } else { Dropped::FileOnly })
}
