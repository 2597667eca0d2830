//! Requests to a pool and their answers, as JSON. The schemas in docs/schema are made from these types.
//!
//! Paths in answers are text for people: bytes that are no printable text stand escaped, as everywhere in fsstack.

use serde::{Deserialize, Serialize};

mod jobs;
mod keys;
mod shown;

pub use jobs::*;
pub use keys::*;
pub use shown::*;

/// Sizes and counts are plain numbers: bytes, files, microseconds where the name says so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Status {
    /// The name of the pool in /run/fsstack.
    pub id: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// The daemon's process.
    pub pid: u32,
    /// The daemon's version.
    pub version: String,
    /// Seconds since it was mounted.
    pub uptime_seconds: u64,
    /// How requests come from the kernel: `ring` or `dev`.
    pub transport: String,
    /// Whether the kernel granted passthrough to this mount.
    pub passthrough: bool,
    /// The placement policy.
    pub create: String,
    /// How bytes reach a branch where no rule for a directory says otherwise.
    pub write_path: String,
    /// Directories with a write path of their own.
    pub write_rules: Vec<WriteRule>,
    /// The branches in order.
    pub branches: Vec<BranchStatus>,
    /// Open files by the way their bytes go.
    pub open_files: OpenFiles,
    /// Tables in the daemon's memory.
    pub tables: Tables,
    /// The daemon's file descriptors.
    #[serde(default)]
    pub descriptors: Descriptors,
    /// Jobs at work.
    #[serde(default)]
    pub jobs: Vec<JobStatus>,
}

/// A directory whose files have a write path of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WriteRule {
    /// The directory, from the pool's root.
    pub subtree: String,
    /// `auto`, `passthrough` or `stacked`.
    pub write_path: String,
}

/// One branch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BranchStatus {
    /// Where it is.
    pub path: String,
    /// Its durable id.
    pub id: u16,
    /// `RW`, `NC` or `RO`.
    pub mode: String,
    /// `up`, `suspect`, `down` or `read-only`; `leaving` while it is waited for to be free of open files.
    pub state: String,
    /// Whether its file system is on a disk of this machine.
    pub local: bool,
    /// Bytes in all; null where the branch does not answer.
    pub total: Option<u64>,
    /// Bytes that a user may still write; null where the branch does not answer.
    pub available: Option<u64>,
    /// Bytes that new files leave free.
    pub floor: u64,
    /// Free inodes; null where the branch does not answer.
    pub inodes_free: Option<u64>,
    /// Bytes promised to copies that are under way.
    pub reserved: u64,
    /// Whether the kernel has refused passthrough there.
    pub refuses_passthrough: bool,
    /// Files open on it.
    pub open_files: u64,
    /// Calls of the daemon to it that have not returned.
    pub in_flight: u64,
    /// Calls of the daemon to it since it was added.
    pub calls: u64,
    /// Those among them that it failed (EIO, ETIMEDOUT, ENOTCONN and the like).
    pub faults: u64,
    /// Microseconds within which half of the calls were answered, to a factor of two; null before the first.
    pub p50_us: Option<f64>,
    /// The same of 99 in 100 calls.
    pub p99_us: Option<f64>,
    /// Bytes that the daemon read; what the kernel reads by passthrough is not known to it.
    pub read_bytes: u64,
    /// Bytes that the daemon wrote.
    pub written_bytes: u64,
    /// Files moved off it because it was full.
    pub moved_away: u64,
    /// Files moved to it.
    pub moved_here: u64,
}

/// Open files by the way their bytes go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OpenFiles {
    /// The kernel reads and writes the branch.
    pub passthrough: u64,
    /// The daemon reads and writes it.
    pub stacked: u64,
    /// Those among them that would go the other way, were they opened now.
    pub other_way: u64,
}

/// File descriptors of the daemon: each file that is open in the pool takes one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Descriptors {
    /// Open now; None: the system does not tell.
    pub open: Option<u64>,
    /// Limit of open descriptors: beyond it programs get ENFILE.
    pub limit: u64,
}

/// Tables in the daemon's memory, and the success of its caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Tables {
    /// Inodes that the kernel has not forgotten.
    pub inodes: u64,
    /// Open file handles.
    pub files: u64,
    /// Open directory handles.
    pub dirs: u64,
    /// Open descriptors of directories.
    pub dir_fds: u64,
    /// Names and offsets that open listings keep, of 4 194 304 at most in all.
    pub listing_entries: u64,
    /// Lookups answered by the one branch where the name was seen last.
    pub lookups_known: u64,
    /// Lookups for which all branches that hold the directory were asked.
    pub lookups_asked: u64,
    /// Opens whose bytes the kernel carries.
    pub opens_passthrough: u64,
    /// Opens whose bytes the daemon carries.
    pub opens_stacked: u64,
}

/// Asks for changes: all of them are made or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SettingsRequest {
    /// Keys and what they shall be.
    pub changes: Vec<Assignment>,
    /// Only tell what would change.
    #[serde(default)]
    pub dry_run: bool,
    /// Write them to the pool's config file too.
    #[serde(default)]
    pub persist: bool,
    /// Options of a remount: one that is not changed passes, whenever it could be.
    #[serde(default)]
    pub remount: bool,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    /// The key, in any of its spellings.
    pub key: String,
    /// Its value; null for a key that stands alone.
    pub value: Option<String>,
}

/// Changes made, or found by a dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Changed {
    /// Keys that are not what they were.
    pub changes: Vec<Change>,
    /// Nothing was changed: it was only asked for.
    pub dry_run: bool,
    /// The file that has the changes too.
    pub persisted: Option<String>,
    /// Further notes, a sentence each.
    pub notes: Vec<String>,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Change {
    /// The key.
    pub key: String,
    /// Former value.
    pub from: String,
    /// New value.
    pub to: String,
}

/// Asks for another write path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WritePathRequest {
    /// `auto`, `passthrough` or `stacked`; `inherit` takes a directory's rule away.
    pub write_path: String,
    /// The directory it holds for, from the pool's root; null: the whole pool.
    #[serde(default)]
    pub subtree: Option<String>,
    /// Only count the files that are still open another way.
    #[serde(default)]
    pub only_count: bool,
    /// Write it to the pool's config file too.
    #[serde(default)]
    pub persist: bool,
}

/// How the write path changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WritePathChanged {
    /// Former write path.
    pub from: String,
    /// New write path.
    pub to: String,
    /// The directory it holds for; null: the whole pool.
    pub subtree: Option<String>,
    /// Open files that still go the other way, until their last close.
    pub other_way: u64,
    /// The file that has the change too.
    pub persisted: Option<String>,
}

/// Asks for a change of the branches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum BranchRequest {
    /// One more, after the others.
    Add {
        /// The branch, as in SOURCE: `/disk=RW,50G`.
        branch: String,
    },
    /// One less: its files are in the pool no more.
    Remove {
        /// Its path.
        branch: String,
        /// Take nothing new there, and wait until no file is open on it.
        #[serde(default)]
        when_idle: bool,
        /// Only tell how far an earlier request has come.
        #[serde(default)]
        only_ask: bool,
    },
    /// Another mode.
    Mode {
        /// Its path.
        branch: String,
        /// `RW`, `NC` or `RO`.
        mode: String,
    },
    /// One that is not in the pool will not come back: handles of what was on it are stale.
    Forget {
        /// Its path, or the id that is stored on it.
        branch: String,
    },
    /// Another floor.
    Floor {
        /// Its path.
        branch: String,
        /// A size, a percentage, or `pool` for the pool's own.
        floor: String,
    },
}

/// How the branches changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BranchChanged {
    /// The branch.
    pub branch: String,
    /// Former state; empty for a new branch.
    pub from: String,
    /// New state; empty for a removed branch.
    pub to: String,
    /// It goes when this many files are closed that are open on it.
    pub waits_for: u64,
}

/// Asks where handles of an exported pool lead, as for a kernel that has forgotten what they are of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HandlesRequest {
    /// Those that are tried.
    pub handles: Vec<HandleOf>,
    /// How many handles of objects that only the index finds are asked for.
    #[serde(default)]
    pub indexed: u16,
}

/// Content of a file handle of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HandleOf {
    /// The object's inode number in the pool.
    pub number: u64,
    /// Which of the objects that had the number, one after the other.
    pub generation: u32,
}

/// Where handles lead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HandlesTried {
    /// Results for the requested handles, in their order.
    pub ends: Vec<HandleEnd>,
    /// Some of objects that only the index finds; they are tried when they are asked for.
    pub indexed: Vec<HandleOf>,
    /// Branches that were in the pool while it was exported, and are not now.
    pub away: Vec<AwayBranch>,
}

/// Result of resolving a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum HandleEnd {
    /// It leads to its object.
    Found,
    /// The object is gone.
    Stale,
    /// That is not known: a branch is out of reach, or not in the pool now.
    Unknown,
    /// The object could be found only by a look through a whole branch.
    NotTried,
}

/// A branch that is not in the pool now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AwayBranch {
    /// Its durable id.
    pub id: u16,
    /// Where it was; empty: that was not noted.
    pub path: String,
}

/// Why an object is where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Explained {
    /// The path from the pool's root.
    pub path: String,
    /// `file`, `directory` or another kind.
    pub kind: String,
    /// The branch that answers for it.
    pub branch: String,
    /// Every copy, in the order of the branches; of a file the first is served, others are hidden.
    pub copies: Vec<String>,
    /// The write path that holds for it, null for what is no file.
    pub write_path: Option<WritePathExplained>,
    /// Further notes, a sentence each.
    pub notes: Vec<String>,
}

/// Why a file's bytes go as they do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WritePathExplained {
    /// `passthrough` or `stacked`: of an open file as it is, of another as its next open will be.
    pub now: String,
    /// Whether the file is open.
    pub open: bool,
    /// Value of the pool's setting or of the directory's rule.
    pub setting: String,
    /// Which of them won: `pool`, or the directory of the rule.
    pub decided_by: String,
    /// Why `now` follows from `setting`.
    pub reason: String,
}

/// Where something new would be put.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlacementExplained {
    /// The path from the pool's root.
    pub path: String,
    /// Bytes it was asked for.
    pub size: u64,
    /// The policy that ranks the branches.
    pub create: String,
    /// The deepest directory on the way that exists: what is missing below is made with the file.
    pub parent: String,
    /// The branches, the first to be tried first, those that are refused last.
    pub ranking: Vec<RankedBranch>,
    /// The branch that would take it; null: none would.
    pub chosen: Option<String>,
    /// One sentence: why that one, or why none.
    pub verdict: String,
}

/// A branch and what it was judged by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankedBranch {
    /// Its path.
    pub branch: String,
    /// Its turn, from 1; null: it is refused.
    pub rank: Option<u64>,
    /// Why it comes there, or is refused.
    pub why: String,
    /// Its mode.
    pub mode: String,
    /// Bytes that a user may still write.
    pub available: u64,
    /// Bytes that new files leave free.
    pub floor: u64,
    /// How many leading directories of the path it holds.
    pub holds: u64,
    /// Whether it holds the parent directory.
    pub holds_parent: bool,
    /// Whether the file would fit, at the size that was asked for.
    pub fits: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::Refusal;
    use schemars::{JsonSchema, schema_for};

    fn check<T: JsonSchema>(name: &str) {
        let schema = serde_json::to_string_pretty(&schema_for!(T)).unwrap() + "\n";
        let file = format!("{}/../../docs/schema/{name}.json", env!("CARGO_MANIFEST_DIR"));
        expect_test::expect_file![file].assert_eq(&schema);
    }

    #[test]
    fn the_schemas_in_docs_are_current() {
        check::<PoolList>("list");
        check::<StatusList>("status");
        check::<Keys>("get");
        check::<Changed>("set");
        check::<WritePathChanged>("write-path");
        check::<BranchChanged>("branch");
        check::<FileLocations>("where");
        check::<Explained>("explain");
        check::<PlacementExplained>("explain-create");
        check::<Copied>("copy");
        check::<Findings>("doctor");
        check::<ExportShown>("nfs-show");
        check::<Moment>("top");
        check::<Refusal>("error");
        check::<SettingsRequest>("request-set");
        check::<WritePathRequest>("request-write-path");
        check::<BranchRequest>("request-branch");
        check::<HandlesRequest>("request-handles");
        check::<HandlesTried>("handles");
        check::<JobRequest>("request-job");
        check::<Jobs>("jobs");
        check::<JobStatus>("job");
    }
}
