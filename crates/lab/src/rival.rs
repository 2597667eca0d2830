//! Other union file systems over the same branches, for comparison.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cleanup::Entry;
use crate::daemon::{self, Process};
use crate::needs::{self, Skip};
use crate::shell::command;

/// A union file system as Debian packages it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Union {
    /// mergerfs.
    Mergerfs,
    /// mhddfs.
    Mhddfs,
}

impl Union {
    /// The program that mounts it; the package has the same name.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Mergerfs => "mergerfs",
            Self::Mhddfs => "mhddfs",
        }
    }

    /// True if it is installed.
    pub fn installed(self) -> Result<(), Skip> {
        needs::program(self.program())
    }

    fn separator(self) -> &'static str {
        match self {
            Self::Mergerfs => ":",
            Self::Mhddfs => ",",
        }
    }
}

/// A mounted rival; unmounted on drop.
#[derive(Debug)]
pub struct Rival {
    target: PathBuf,
    daemon: Process,
    // Dropped in this order: the mount, then the mount point.
    mount: Entry,
    _dir: Entry,
}

impl Rival {
    /// Mounts `union` over `branches` at `target`, which is made.
    pub fn mount(union: Union, branches: &[&Path], target: &Path, options: &[&str]) -> Result<Self> {
        let dir = Entry::dir(target)?;
        let mount = Entry::mount(target)?;
        let paths: Vec<String> = branches.iter().map(|path| path.display().to_string()).collect();
        let mut run = command(union.program()).arg(paths.join(union.separator())).arg(target);
        if !options.is_empty() {
            run = run.arg("-o").arg(options.join(","));
        }
        run.run().with_context(|| format!("mounting {}", union.program()))?;
        let daemon = daemon::server_of(target)?;
        Ok(Self { target: target.to_owned(), daemon, mount, _dir: dir })
    }

    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.target
    }

    /// The process that serves it.
    #[must_use]
    pub fn daemon(&self) -> Process {
        self.daemon
    }

    /// Unmounts it and waits for its daemon's end.
    pub fn unmount(self) -> Result<()> {
        self.mount.undo()?;
        self.daemon.wait(Duration::from_secs(60))
    }
}
