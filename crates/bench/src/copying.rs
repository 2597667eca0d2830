//! The copy engine: copies files from elsewhere into a target with the usual program.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::daemon;
use fsstack_lab::shell::command;
use rustix::fs::{statvfs, syncfs};

use crate::workload::Bytes;

/// Last part of the name of a target that uses `fsstack copy`.
pub(crate) const BULK: &str = "bulk-copy";

/// Longer than any copy that does not hang.
const LIMIT: Duration = Duration::from_secs(12 * 3600);

/// Program that copies into a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copier {
    /// cp -r.
    Cp,
    /// fsstack copy: the target is in a pool.
    Bulk,
}

impl Copier {
    /// Chooses by the target's name: `bulk-copy`, or `GROUP.bulk-copy`.
    pub(crate) fn of(target: &str) -> Self {
        if target.rsplit('.').next() == Some(BULK) { Self::Bulk } else { Self::Cp }
    }

    /// Program name for its CPU time.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Cp => "cp",
            Self::Bulk => "fsstack copy",
        }
    }

    /// Copies the content of `source` into the directory `into` and makes it durable.
    pub(crate) fn copy(self, source: &Path, into: &Path) -> Result<()> {
        let run = match self {
            Self::Cp => command("cp").arg("-r"),
            Self::Bulk => command(operator()?).arg("copy"),
        };
        run.arg(source.join(".")).arg(into).limit(LIMIT).measured().run()?;
        // `fsstack copy` returns when everything is on disk, so cp's time includes a sync.
        syncfs(File::open(into)?)?;
        Ok(())
    }
}

/// Path of the operator's command, beside the mount helper.
pub(crate) fn operator() -> Result<PathBuf> {
    let path = daemon::helper()?.with_file_name("fsstack");
    ensure!(
        path.is_file(),
        "there is no {}: build it by `cargo build -p fsstack-daemon -p fsstack-cli`",
        path.display()
    );
    Ok(path)
}

/// Files to copy; removed on drop.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    _dir: Entry,
}

impl Source {
    /// Makes a directory in the lab's with room for `needed` bytes.
    pub(crate) fn with_room(needed: u64) -> Result<Self> {
        let path = cleanup::fresh("copied")?;
        let dir = Entry::new_dir(&path)?;
        let stat = statvfs(&path).context("the room for what is copied")?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        ensure!(
            needed < free,
            "what is copied needs {}, and {} has {} free: set FSSTACK_LAB_DIR to a roomier place",
            Bytes(needed),
            path.display(),
            Bytes(free)
        );
        Ok(Self { path, _dir: dir })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_says_by_its_name_how_it_is_filled() {
        for (name, copier) in
            [("direct", Copier::Cp), ("dt8.bulk-copy", Copier::Bulk), ("bulk-copy", Copier::Bulk)]
        {
            assert_eq!(Copier::of(name), copier);
        }
    }

    #[test]
    fn cp_copies_all_that_is_there() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(from.path().join("one"), "1").unwrap();
        std::fs::create_dir(from.path().join("dir")).unwrap();
        Copier::Cp.copy(from.path(), to.path()).unwrap();
        assert_eq!(std::fs::read(to.path().join("one")).unwrap(), b"1");
        assert!(to.path().join("dir").is_dir());
    }
}
