//! Requests to a pool and their replies, as JSON. The schemas in docs/schema are generated from these types.
//!
//! Paths in replies are printable text: other bytes are escaped, as everywhere in fsstack.

use data_encoding::BASE64;
use fsstack_pool::Printable;
use serde::{Deserialize, Serialize};

mod calls;
mod catalogue;
mod explain;
mod handles;
mod jobs;
mod keys;
mod rules;
mod shown;
mod tiers;
mod upgrade;

pub use calls::*;
pub use catalogue::*;
pub use explain::*;
pub use handles::*;
pub use jobs::*;
pub use keys::*;
pub use rules::*;
pub use shown::*;
pub use tiers::*;
pub use upgrade::*;

/// State of a pool. Sizes and counts are plain numbers: bytes, files, microseconds where the name says so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Status {
    /// The name of the pool in /run/fsstack.
    pub id: String,
    /// Mount point.
    pub mount_point: String,
    /// The daemon's process.
    pub pid: u32,
    /// The daemon's version.
    pub version: String,
    /// Seconds since it was mounted.
    pub uptime_seconds: u64,
    /// Transport of requests from the kernel: `ring` or `dev`.
    pub transport: String,
    /// Consequence of the daemon's death: `off`, the pool ends; `keep`, it goes on; `lost`, it ends, as the keeper has died.
    #[serde(default)]
    pub restart: String,
    /// Whether the kernel granted passthrough to this mount.
    pub passthrough: bool,
    /// The placement policy.
    pub create: String,
    /// Write path, where no directory's rule applies.
    pub write_path: String,
    /// Directories with a write path of their own.
    pub write_rules: Vec<WriteRule>,
    /// The pool's mount is read-only: programs can change nothing.
    #[serde(default)]
    pub read_only: bool,
    /// Directories with a placement of their own.
    #[serde(default)]
    pub placement_rules: Vec<PlacementRule>,
    /// Objects that came to lie against the placement rules since the mount, or since a balance by rules counted them.
    #[serde(default)]
    pub misplaced: u64,
    /// Classes whose files go to another one when they are full.
    #[serde(default)]
    pub tiers: Vec<TierStatus>,
    /// Total bytes, as statfs(2) reports them: each file system counts once; null if no branch answers.
    #[serde(default)]
    pub total: Option<u64>,
    /// Bytes that users may still write, by the same count.
    #[serde(default)]
    pub available: Option<u64>,
    /// The branches in order.
    pub branches: Vec<BranchStatus>,
    /// Open files by write path.
    pub open_files: OpenFiles,
    /// Tables in the daemon's memory.
    pub tables: Tables,
    /// The daemon's file descriptors.
    #[serde(default)]
    pub descriptors: Descriptors,
    /// Running jobs.
    #[serde(default)]
    pub jobs: Vec<JobStatus>,
    /// The pool's own id, stored with its branches, in the form of a UUID; none without privileges.
    #[serde(default)]
    pub pool_id: Option<String>,
    /// State of the index of moved files and directories.
    #[serde(default)]
    pub index: String,
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

/// Returns `path` in base64, if it is shown as other bytes than its own.
pub fn exact(path: &[u8]) -> Option<String> {
    let is_shown_as_it_is = Printable(path).to_string().as_bytes() == path;
    (!is_shown_as_it_is).then(|| BASE64.encode(path))
}

/// Returns the bytes of a path that is shown as `path`, or exactly in base64.
pub fn bytes_of(path: &str, exactly: Option<&str>) -> Vec<u8> {
    let decoded = exactly.and_then(|text| BASE64.decode(text.as_bytes()).ok());
    decoded.unwrap_or_else(|| path.as_bytes().to_vec())
}

/// One branch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BranchStatus {
    /// The branch's path.
    pub path: String,
    /// Its durable id.
    pub id: u16,
    /// Class by which placement rules name it.
    #[serde(default)]
    pub class: Option<String>,
    /// `RW`, `NC` or `RO`.
    pub mode: String,
    /// `up`, `suspect`, `down` or `read-only`; `leaving` while its removal waits for open files to close.
    pub state: String,
    /// True for a local disk.
    pub local: bool,
    /// True if it also shows what is mounted inside it.
    #[serde(default)]
    pub cross_mounts: bool,
    /// Total bytes; null if the branch does not answer.
    pub total: Option<u64>,
    /// Bytes that users may still write; null if the branch does not answer.
    pub available: Option<u64>,
    /// Bytes that new files leave free.
    pub floor: u64,
    /// Free inodes; null if the branch does not answer.
    pub inodes_free: Option<u64>,
    /// Bytes reserved for running copies.
    pub reserved: u64,
    /// True if the kernel has refused passthrough there.
    pub refuses_passthrough: bool,
    /// Files open on it.
    pub open_files: u64,
    /// Calls of the daemon in progress.
    pub in_flight: u64,
    /// Calls of the daemon since the branch was added.
    pub calls: u64,
    /// Calls that failed with a fault of the branch (EIO, ETIMEDOUT, ENOTCONN and the like).
    pub faults: u64,
    /// Median time of a call in microseconds, to a factor of two; null before the first call.
    pub p50_us: Option<f64>,
    /// 99th percentile of the same.
    pub p99_us: Option<f64>,
    /// Bytes read by the daemon; passthrough is not counted.
    pub read_bytes: u64,
    /// Bytes written by the daemon.
    pub written_bytes: u64,
    /// Files moved off it because it was full.
    pub moved_away: u64,
    /// Files moved to it.
    pub moved_here: u64,
}

/// Open files by write path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OpenFiles {
    /// Files by passthrough.
    pub passthrough: u64,
    /// Files by the stacked path.
    pub stacked: u64,
    /// Files that would use the other path if they were opened now.
    pub other_way: u64,
}

/// File descriptors of the daemon: each file that is open in the pool takes one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Descriptors {
    /// Number of open descriptors; null if the system does not report it.
    pub open: Option<u64>,
    /// Limit of open descriptors, at which programs get ENFILE.
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
    /// Names and offsets kept by open listings, at most 4 194 304 in all.
    pub listing_entries: u64,
    /// Lookups answered by the one branch where the name was seen last.
    pub lookups_known: u64,
    /// Lookups that asked all branches that hold the directory.
    pub lookups_asked: u64,
    /// Opens by passthrough.
    pub opens_passthrough: u64,
    /// Opens by the stacked path.
    pub opens_stacked: u64,
}

/// Request to change keys: all of them or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SettingsRequest {
    /// Keys and their new values.
    pub changes: Vec<Assignment>,
    /// Only report what would change.
    #[serde(default)]
    pub dry_run: bool,
    /// Write them to the pool's config file too.
    #[serde(default)]
    pub persist: bool,
    /// From a remount: an option that cannot change is accepted, with a note if its value is another one.
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
    /// Keys whose values differ.
    pub changes: Vec<Change>,
    /// True for a dry run: nothing was changed.
    pub dry_run: bool,
    /// The config file that was changed too.
    pub persisted: Option<String>,
    /// Notes, one sentence each.
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

/// Request for another write path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WritePathRequest {
    /// `auto`, `passthrough` or `stacked`; `inherit` removes a directory's rule.
    pub write_path: String,
    /// The directory it applies to, from the pool's root; null for the whole pool.
    #[serde(default)]
    pub subtree: Option<String>,
    /// Only count the files that still use the other path.
    #[serde(default)]
    pub only_count: bool,
    /// Write it to the pool's config file too.
    #[serde(default)]
    pub persist: bool,
}

/// Result of changing the write path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WritePathChanged {
    /// Former write path.
    pub from: String,
    /// New write path.
    pub to: String,
    /// The directory it applies to; null for the whole pool.
    pub subtree: Option<String>,
    /// Open files that use the other path until their last close.
    pub other_way: u64,
    /// The config file that was changed too.
    pub persisted: Option<String>,
}

/// Request to change the branches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum BranchRequest {
    /// Adds a branch after the others.
    Add {
        /// The branch, as in SOURCE: `/disk=RW,50G`.
        branch: String,
    },
    /// Removes a branch; its files leave the pool.
    Remove {
        /// The branch's path.
        branch: String,
        /// Place nothing new there, and remove it when no file is open on it.
        #[serde(default)]
        when_idle: bool,
        /// Only report the progress of an earlier request.
        #[serde(default)]
        only_ask: bool,
    },
    /// Sets the mode.
    Mode {
        /// The branch's path.
        branch: String,
        /// `RW`, `NC` or `RO`.
        mode: String,
    },
    /// Declares that a branch outside the pool will not come back: its handles become stale.
    Forget {
        /// Its former path, or the id stored on it.
        branch: String,
    },
    /// Sets the floor.
    Floor {
        /// The branch's path.
        branch: String,
        /// A size, a percentage, or `pool` for the pool's own.
        floor: String,
    },
}

/// Result of changing the branches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BranchChanged {
    /// The branch.
    pub branch: String,
    /// Former state; empty for a new branch.
    pub from: String,
    /// New state; empty for a removed branch.
    pub to: String,
    /// Number of open files whose close it waits for.
    pub waits_for: u64,
    /// Notes on the change: strict placement rules that no branch is left for.
    #[serde(default)]
    pub notes: Vec<String>,
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
    fn paths_that_are_shown_otherwise_have_their_bytes() {
        let of = |path: &str| exact(path.as_bytes());
        assert_eq!([of("film"), of(r"n\012x"), of("")], [None, None, None]);
        assert_eq!(of("n\nx").as_deref(), Some("bgp4"));
        assert_eq!(of("a\nbc").as_deref(), Some("YQpiYw=="));
        assert_eq!(exact(b"ab\xff\xfe!").as_deref(), Some("YWL//iE="));
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
        check::<Checked>("check");
        check::<Pruned>("check-prune");
        check::<SlowCalls>("log");
        check::<SlowRequest>("request-log");
        check::<ProfileShown>("profile");
        check::<CallsByCaller>("callers");
        check::<ProfileRequest>("request-profile");
        check::<RecentLines>("log-lines");
        check::<ExportShown>("nfs-show");
        check::<Moment>("top");
        check::<Refusal>("error");
        check::<SettingsRequest>("request-set");
        check::<WritePathRequest>("request-write-path");
        check::<BranchRequest>("request-branch");
        check::<HandlesRequest>("request-handles");
        check::<HandlesTried>("handles");
        check::<StaleRowsRequest>("request-index-rows");
        check::<StaleRows>("index-rows");
        check::<Rules>("rules");
        check::<RuleRequest>("request-rule");
        check::<CatalogueRequest>("request-catalogue");
        check::<CataloguePage>("catalogue");
        check::<CatalogueUsage>("du");
        check::<TierList>("tiers");
        check::<TierRequest>("request-tier");
        check::<JobRequest>("request-job");
        check::<Jobs>("jobs");
        check::<Upgrade>("upgrade");
        check::<UpgradeRequest>("request-upgrade");
        check::<JobStatus>("job");
    }
}
