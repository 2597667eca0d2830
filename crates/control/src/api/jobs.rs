//! Jobs: work on a pool that goes on by itself.

use serde::{Deserialize, Serialize};

/// Begins a job, or asks for jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum JobRequest {
    /// Moves all that is on a branch to others.
    Drain {
        /// Its path.
        branch: String,
        /// Paths of the branches that may take it; none: all others.
        #[serde(default)]
        to: Vec<String>,
        /// Bytes a second at most; null: no limit.
        #[serde(default)]
        rate: Option<u64>,
        /// Only tell what would move.
        #[serde(default)]
        dry_run: bool,
    },
    /// Tells of the jobs.
    Show {
        /// Its number; null: all.
        #[serde(default)]
        job: Option<u64>,
    },
    /// Calls a job off: what is moved stays moved.
    Cancel {
        /// Its number.
        job: u64,
    },
}

/// Jobs at work, and the last that have ended, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Jobs {
    /// The jobs.
    pub jobs: Vec<JobStatus>,
}

/// A job as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobStatus {
    /// Its number, from 1 since the mount.
    pub id: u64,
    /// `drain`.
    pub kind: String,
    /// The branch that it empties.
    pub branch: String,
    /// `counting`, `moving` or `waiting` (until what is left can be moved); `planned`, `done`, `incomplete`, `refused` or `cancelled`
    /// when it has ended.
    pub state: String,
    /// Whether it has ended.
    pub over: bool,
    /// It was only to tell what would move.
    pub dry_run: bool,
    /// Why it was refused.
    pub refusal: Option<String>,
    /// Files, links, sockets, fifos and devices found when it began.
    pub files: u64,
    /// Their bytes on the branch.
    pub bytes: u64,
    /// Those that were moved.
    pub moved_files: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Directories that are not on the branch any more.
    pub moved_directories: u64,
    /// Where there is room for what was found.
    pub targets: Vec<JobTarget>,
    /// How many objects stay, as it was seen last.
    pub staying: u64,
    /// The first of them, 1000 at most.
    pub stays: Vec<JobStaying>,
    /// Seconds that it has been at work.
    pub seconds: u64,
}

/// Share of a branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobTarget {
    /// The branch.
    pub branch: String,
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// An object that stays where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobStaying {
    /// Its path from the pool's root.
    pub path: String,
    /// Why.
    pub why: String,
}
