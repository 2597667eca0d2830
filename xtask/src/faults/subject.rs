//! The tested union file systems, mounted alike over the same branches.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use fsstack_lab::cleanup::Entry;
use fsstack_lab::daemon::{self, Process};
use fsstack_lab::mounts;
use fsstack_lab::shell::command;
use serde::{Deserialize, Serialize};

/// A union file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Subject {
    Mhddfs,
    Mergerfs,
    /// fsstack with `transport=dev`.
    Fsstack,
    /// fsstack with `transport=ring`.
    FsstackRing,
}

/// In the order of the table's columns.
pub(crate) const SUBJECTS: [Subject; 4] =
    [Subject::Mhddfs, Subject::Mergerfs, Subject::Fsstack, Subject::FsstackRing];

/// Placement of new files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// On the first branch with room.
    First,
    /// The program's default.
    Default,
}

impl Subject {
    /// The program's name, the same for both transports of fsstack.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mhddfs => "mhddfs",
            Self::Mergerfs => "mergerfs",
            Self::Fsstack | Self::FsstackRing => "fsstack",
        }
    }

    /// The transport, for the two columns of fsstack.
    pub(crate) fn transport(self) -> Option<&'static str> {
        match self {
            Self::Mhddfs | Self::Mergerfs => None,
            Self::Fsstack => Some("/dev/fuse"),
            Self::FsstackRing => Some("io_uring"),
        }
    }

    /// Name and transport, as messages have them.
    pub(crate) fn label(self) -> String {
        self.transport().map_or(self.name().to_owned(), |by| format!("{} by {by}", self.name()))
    }

    /// Relocation is on, as in mhddfs and fsstack by default; caches are off, as in the others.
    pub(crate) fn options(self, placement: Placement) -> &'static str {
        match (self, placement) {
            (Self::Mhddfs, _) => "mlimit=50M,allow_other",
            (Self::Mergerfs, Placement::First) => {
                "category.create=ff,minfreespace=4M,moveonenospc=true,cache.files=off,allow_other"
            }
            (Self::Mergerfs, Placement::Default) => {
                "minfreespace=4M,moveonenospc=true,cache.files=off,allow_other"
            }
            (Self::Fsstack, Placement::First) => "create=ff,minfreespace=4M,transport=dev",
            (Self::Fsstack, Placement::Default) => "minfreespace=4M,transport=dev",
            (Self::FsstackRing, Placement::First) => "create=ff,minfreespace=4M,transport=ring",
            (Self::FsstackRing, Placement::Default) => "minfreespace=4M,transport=ring",
        }
    }

    /// Its version, as it prints it.
    pub(crate) fn version(self, helper: &Path) -> Result<String> {
        let output = match self {
            Self::Fsstack | Self::FsstackRing => command(helper).arg("--version").output()?,
            Self::Mhddfs | Self::Mergerfs => {
                command("dpkg-query").args(["-W", "-f", "${Version}", self.name()]).output()?
            }
        };
        Ok(output.stdout.lines().next().unwrap_or("unknown").trim().to_owned())
    }

    /// Mounts it over `branches` at `target`; fsstack's program is `helper`.
    pub(crate) fn mount(
        self,
        helper: &Path,
        branches: &[&Path],
        target: &Path,
        placement: Placement,
    ) -> Result<Mounted> {
        std::fs::create_dir_all(target)?;
        let entry = Entry::mount(target)?;
        let (program, separator) = match self {
            Self::Mhddfs => (PathBuf::from("mhddfs"), ","),
            Self::Mergerfs => (PathBuf::from("mergerfs"), ":"),
            Self::Fsstack | Self::FsstackRing => (helper.to_owned(), ":"),
        };
        let paths: Vec<String> = branches.iter().map(|path| path.display().to_string()).collect();
        command(program)
            .arg(paths.join(separator))
            .arg(target)
            .args(["-o", self.options(placement)])
            .limit(Duration::from_secs(30))
            .run()
            .with_context(|| format!("mounting {}", self.name()))?;
        let daemon = daemon::server_of(target)?;
        Ok(Mounted { daemon, entry })
    }
}

/// A mount; removed on drop.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) daemon: Process,
    entry: Entry,
}

impl Mounted {
    /// Unmounts it, by force if its daemon is dead.
    pub(crate) fn take_down(self, target: &Path) {
        // Force is not the union's fault.
        let forced = self.entry.undo().or_else(|_| mounts::detach(target));
        if let Err(error) = forced {
            eprintln!("faults: {}: {error:#}", target.display());
        }
    }
}
