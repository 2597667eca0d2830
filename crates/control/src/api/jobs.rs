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
        /// Fate of objects that are hidden by others of their name.
        #[serde(default)]
        hidden: HiddenObjects,
        /// Maximum bytes a second; null for no limit.
        #[serde(default)]
        rate: Option<u64>,
        /// Read each copy back before the old one goes.
        #[serde(default)]
        verify: bool,
        /// Part of the local day in which files move: `01:00-06:00`; null for all of it.
        #[serde(default)]
        window: Option<String>,
        /// Have files that are open by passthrough use the daemon from their next first open, and move them while they are open.
        #[serde(default)]
        make_way: bool,
        /// Only report what would move.
        #[serde(default)]
        dry_run: bool,
    },
    /// Moves files until the branches are about as full.
    Balance {
        /// Only files below this directory, a path from the pool's root; empty: all.
        #[serde(default)]
        dir: String,
        /// `percent` (used share) or `free` (free bytes).
        by: BalanceBy,
        /// How far branches may be apart, in hundredths of a percent: of a branch's size, or for free bytes of the mean size.
        until: u32,
        /// Maximum bytes a second; null for no limit.
        #[serde(default)]
        rate: Option<u64>,
        /// Read each copy back before the old one goes.
        #[serde(default)]
        verify: bool,
        /// Part of the local day in which files move: `01:00-06:00`; null for all of it.
        #[serde(default)]
        window: Option<String>,
        /// Have files that are open by passthrough use the daemon from their next first open, and move them while they are open.
        #[serde(default)]
        make_way: bool,
        /// Only report what would move.
        #[serde(default)]
        dry_run: bool,
    },
    /// Moves files that lie against the placement rules to branches that the rules name.
    Rules {
        /// Only files below this directory, a path from the pool's root; empty: all.
        #[serde(default)]
        dir: String,
        /// Maximum bytes a second; null for no limit.
        #[serde(default)]
        rate: Option<u64>,
        /// Read each copy back before the old one goes.
        #[serde(default)]
        verify: bool,
        /// Part of the local day in which files move: `01:00-06:00`; null for all of it.
        #[serde(default)]
        window: Option<String>,
        /// Have files that are open by passthrough use the daemon from their next first open, and move them while they are open.
        #[serde(default)]
        make_way: bool,
        /// Only report what would move.
        #[serde(default)]
        dry_run: bool,
    },
    /// Moves all files below a directory to one branch.
    Consolidate {
        /// The directory, a path from the pool's root.
        dir: String,
        /// The branch's path; null: the one that has most of it, if there is room for the rest.
        #[serde(default)]
        to: Option<String>,
        /// Maximum bytes a second; null for no limit.
        #[serde(default)]
        rate: Option<u64>,
        /// Read each copy back before the old one goes.
        #[serde(default)]
        verify: bool,
        /// Part of the local day in which files move: `01:00-06:00`; null for all of it.
        #[serde(default)]
        window: Option<String>,
        /// Have files that are open by passthrough use the daemon from their next first open, and move them while they are open.
        #[serde(default)]
        make_way: bool,
        /// Only report what would move.
        #[serde(default)]
        dry_run: bool,
    },
    /// Reports what a tier would move now.
    PlanTier {
        /// The tier, as `tiers=` has it: `fast>slow;start=80%;stop=60%`.
        tier: String,
    },
    /// Has a job begin no further move for now.
    Pause {
        /// The job's number.
        job: u64,
    },
    /// Has a paused job go on.
    Resume {
        /// The job's number.
        job: u64,
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

/// Fate of objects that are hidden by others of their name, or that files of a drained branch hide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum HiddenObjects {
    /// It does not begin.
    #[default]
    Stop,
    /// They are set aside on another branch, outside of the pool's tree.
    Move,
    /// Those that are the same as what the pool shows are removed.
    Delete,
}

/// Measure of a branch's fullness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum BalanceBy {
    /// Free bytes.
    Free,
    /// Used share.
    Percent,
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
    /// `drain`, `balance`, `rules`, `consolidate` or `tier`.
    pub kind: String,
    /// The branch that it empties; of a tier its classes; of others the directory, from the pool's root.
    pub branch: String,
    /// `counting`, `moving`, `waiting` (until the rest can be moved), `paused` or `parked` (outside of its window); after its end
    /// `planned`, `done`, `incomplete`, `refused`, `cancelled` or `out-of-window` (of a tier: it begins anew when the window opens).
    pub state: String,
    /// True if it has ended.
    pub over: bool,
    /// True if it only reports what would move.
    pub dry_run: bool,
    /// Part of the local day in which it moves files; null for all of it.
    #[serde(default)]
    pub window: Option<String>,
    /// Share of the time that it is at work, in percent: less where programs wait longer for its branches.
    #[serde(default)]
    pub at_work_percent: u32,
    /// Reason for a refusal.
    pub refusal: Option<String>,
    /// Files, links, sockets, fifos and devices that are to move, as found at the start.
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
    /// Number of objects that the last pass did not try, as the job was to wait.
    #[serde(default)]
    pub untried: u64,
    /// The first of them, at most 1000.
    pub stays: Vec<JobStaying>,
    /// Running time in seconds.
    pub seconds: u64,
    /// Moves that a dry run has planned file by file, at most 10000, in their order; only where one job is shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<JobMove>,
}

/// A planned move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobMove {
    /// The file, from the pool's root.
    pub path: String,
    /// The bytes of the path in base64, where `path` shows other bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// Its bytes on the branch.
    pub bytes: u64,
    /// Its branch.
    pub from: String,
    /// The branch that takes it.
    pub to: String,
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
    /// The bytes of the path in base64, where `path` shows other bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// The reason.
    pub why: String,
}
