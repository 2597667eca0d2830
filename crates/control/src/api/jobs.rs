//! Jobs: work on a pool that continues without its requester.

use serde::{Deserialize, Serialize};

/// Starts, lists or cancels jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum JobRequest {
    /// Moves everything on a branch to others.
    Drain {
        /// The branch's path.
        branch: String,
        /// Paths of the branches that may receive it; empty means all others.
        #[serde(default)]
        to: Vec<String>,
        /// Maximum bytes a second; null for no limit.
        #[serde(default)]
        rate: Option<u64>,
        /// Only report what would move.
        #[serde(default)]
        dry_run: bool,
    },
    /// Lists jobs.
    Show {
        /// The job's number; null for all.
        #[serde(default)]
        job: Option<u64>,
    },
    /// Cancels a job; what it has moved stays moved.
    Cancel {
        /// The job's number.
        job: u64,
    },
}

/// Running jobs and the last ended ones, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Jobs {
    /// The jobs.
    pub jobs: Vec<JobStatus>,
}

/// Present state of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobStatus {
    /// Its number, from 1 since the mount.
    pub id: u64,
    /// `drain`.
    pub kind: String,
    /// The branch that it empties.
    pub branch: String,
    /// `counting`, `moving` or `waiting` (until the rest can be moved); after its end `planned`, `done`, `incomplete`,
    /// `refused` or `cancelled`.
    pub state: String,
    /// True if it has ended.
    pub over: bool,
    /// True if it only reports what would move.
    pub dry_run: bool,
    /// Reason for a refusal.
    pub refusal: Option<String>,
    /// Files, links, sockets, fifos and devices found at the start.
    pub files: u64,
    /// Their bytes on the branch.
    pub bytes: u64,
    /// Number of them that were moved.
    pub moved_files: u64,
    /// Bytes that were moved.
    pub moved_bytes: u64,
    /// Directories removed from the branch.
    pub moved_directories: u64,
    /// Branches with room for the found objects, and their shares.
    pub targets: Vec<JobTarget>,
    /// Number of objects that stay, at the last look.
    pub staying: u64,
    /// The first of them, at most 1000.
    pub stays: Vec<JobStaying>,
    /// Running time in seconds.
    pub seconds: u64,
}

/// A branch's share.
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

/// An object that stays on the branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobStaying {
    /// Its path from the pool's root.
    pub path: String,
    /// The reason.
    pub why: String,
}
