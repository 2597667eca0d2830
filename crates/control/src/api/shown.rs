//! Output that the command makes itself, without a daemon.

use fsstack_pool::Printable;
use serde::{Deserialize, Serialize};

use super::{Status, exact};

/// The pools of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PoolList {
    /// Live pools.
    pub pools: Vec<ListedPool>,
    /// Mounts without a daemon that answers.
    #[serde(default)]
    pub dead: Vec<DeadPool>,
    /// Names of pools whose daemons were killed, and whose leftovers were just removed.
    pub cleaned_up: Vec<String>,
}

/// A mount without a daemon that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeadPool {
    /// Where it is mounted.
    pub mount_point: String,
    /// Its state, and the remedy.
    pub error: String,
}

/// A live pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ListedPool {
    /// Its name.
    pub id: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// Its daemon; null if that is in another PID namespace, where the number means another process.
    pub pid: Option<u32>,
    /// Its branches when it was mounted.
    pub branches: Vec<String>,
    /// Its control socket; null if it cannot be reached.
    pub socket: Option<String>,
}

/// Output of `fsstack nfs show`: how servers export a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExportShown {
    /// Where the pool is mounted.
    pub mount_point: String,
    /// Whether it is mounted with `nfs-export`; without it handles do not last.
    pub nfs_export: bool,
    /// The UUID of its block device, by which nfs-ganesha's handles survive remounts; null: it has none.
    pub nfs_identity: Option<String>,
    /// The line of exports(5).
    pub exports_line: String,
    /// The file for that line.
    pub exports_file: String,
    /// Result of installing the line; null: not requested.
    pub installed: Option<String>,
    /// nfs-ganesha's block of the export.
    pub ganesha_block: String,
    /// nfs-ganesha's parameters of the whole server.
    pub ganesha_core: String,
    /// Mount options of the pool that fit `--only-writer`; null: not requested.
    pub only_writer_options: Option<String>,
}

/// Output of `fsstack status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StatusList {
    /// One pool, or all.
    pub pools: Vec<Status>,
    /// Pools that do not answer: their daemons are dead, stopped, or for another user only.
    pub silent: Vec<SilentPool>,
}

/// A pool that does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SilentPool {
    /// Its name.
    pub id: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// Why not.
    pub error: String,
}

/// Output of `fsstack where`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FileLocations {
    /// In the order in which they were asked for.
    pub places: Vec<FileLocation>,
}

/// Where one path is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FileLocation {
    /// The path as given.
    pub path: String,
    /// The branch that answers for it.
    pub branch: String,
    /// Its path there.
    pub at: String,
    /// The bytes of `at` in base64, where `at` shows other bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_base64: Option<String>,
    /// Every copy of it, hidden ones too.
    pub copies: Vec<String>,
}

/// Output of `fsstack doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Findings {
    /// One a check, in the order in which they were made.
    pub findings: Vec<Finding>,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// Subject of the check: `kernel`, `limits`, a pool's or a branch's path.
    pub about: String,
    /// Finding, and the remedy if it is not ok.
    pub text: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Nothing to mend.
    Ok,
    /// It works, but could be better.
    Warn,
    /// It does not work, or will not when it matters.
    Fail,
}

/// Output of `fsstack check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Checked {
    /// In the order of paths.
    pub findings: Vec<CheckFinding>,
    /// Names of the pool that were looked at.
    pub names: u64,
    /// Objects that earlier runs with `--fix` have replaced, and that are kept until `--prune`.
    pub kept: u64,
    /// Where an interrupted check goes on with `--from`; null: it has come to its end.
    pub next: Option<String>,
}

/// One finding of `fsstack check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CheckFinding {
    /// The path from the pool's root; for `leftover` and `below-mount` that on the machine.
    pub path: String,
    /// The bytes of the path in base64, where `path` shows other bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// Kind of the finding.
    pub kind: CheckKind,
    /// Description of it.
    pub text: String,
    /// Remedy by hand.
    pub remedy: String,
    /// Action of `--fix`; null: it leaves it.
    pub fix: Option<String>,
    /// Whether that was done, with `--fix`; null: it was not tried.
    pub fixed: Option<bool>,
}

impl CheckFinding {
    /// Makes a finding at `path` that is not fixed; an empty path is the root.
    pub fn new(path: &[u8], kind: CheckKind, text: String, remedy: &str) -> Self {
        let path = if path.is_empty() { b"/" } else { path };
        Self {
            path: Printable(path).to_string(),
            path_base64: exact(path),
            kind,
            text,
            remedy: remedy.to_owned(),
            fix: None,
            fixed: None,
        }
    }
}

/// Output of `fsstack check --prune`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Pruned {
    /// Objects that earlier runs with `--fix` have kept.
    pub kept: Vec<KeptObject>,
}

/// An object that `fsstack check --fix` has replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptObject {
    /// Its path from the pool's root, before it was replaced.
    pub path: String,
    /// The bytes of the path in base64, where `path` shows other bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// The directory that keeps it.
    pub at: String,
    /// Description of it.
    pub text: String,
    /// Why it stays; null: it was removed.
    pub stays: Option<String>,
}

/// Kind of a finding of `fsstack check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CheckKind {
    /// Copies of a directory differ in owner, mode, ACL or extended attributes.
    Differs,
    /// A file is hidden by another branch's file.
    Hidden,
    /// A file hides a directory, or a directory a file.
    OtherKind,
    /// Left by an interrupted move, rename or copy.
    Leftover,
    /// Below a mount point.
    BelowMount,
    /// A mark with a number that was put on another object: a copying program has carried it here.
    Mark,
    /// The pool does not find an object by the number in its mark: NFS handles of it are stale.
    Index,
    /// A row of the index whose object no longer exists: it takes space only.
    StaleRow,
    /// A file lies on a branch that its placement rule does not name.
    Misplaced,
    /// Could not be read.
    NotChecked,
}

/// One sample of `fsstack top`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Moment {
    /// The pool.
    pub status: Status,
    /// Its branches in order.
    pub branches: Vec<BranchLoad>,
    /// The processes in the stack, the busiest first.
    pub processes: Vec<ProcessLoad>,
}

/// Rates of a branch's disk, by the kernel's account, whatever the write path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BranchLoad {
    /// The branch.
    pub branch: String,
    /// Null where the branch is on no block device of this machine.
    pub disk: Option<DiskLoad>,
}

/// Rates of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DiskLoad {
    /// Bytes read.
    pub read_bytes: f64,
    /// Bytes written.
    pub written_bytes: f64,
    /// Reads.
    pub reads: f64,
    /// Writes.
    pub writes: f64,
    /// Microseconds that a read or write took on average; null where there was none.
    pub latency_us: Option<f64>,
    /// Part of the time in which it was busy, from 0 to 1.
    pub busy: f64,
}

/// A process and the CPU that it uses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessLoad {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Role in the stack: `daemon` of this pool, `fuse` (serves another FUSE file system), `server`.
    pub role: String,
    /// CPUs that it kept busy: 1.0 is one of them all the time.
    pub cpus: f64,
    /// Resident memory.
    pub resident_bytes: u64,
}

/// Output of `fsstack copy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Copied {
    /// The directory of the pool that was copied into.
    pub into: String,
    /// Files that were copied, each under its first name.
    pub files: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Directories that were made.
    pub directories: u64,
    /// Further names of files that were copied.
    pub hard_links: u64,
    /// Symbolic links that were made.
    pub symlinks: u64,
    /// Devices, pipes and sockets that were made.
    pub others: u64,
    /// Files that the pool had already.
    pub already_there: u64,
    /// Whether each file was read back and compared.
    pub verified: bool,
    /// How long it took.
    pub seconds: f64,
    /// Where the files are.
    pub branches: Vec<CopiedTo>,
    /// Files that could not be copied.
    pub failed: Vec<NotCopied>,
    /// Why what was copied may not be on disk; null: it is.
    #[serde(default)]
    pub not_synced: Option<String>,
}

/// Files put on a branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CopiedTo {
    /// The branch.
    pub branch: String,
    /// Files.
    pub files: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A file that could not be copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NotCopied {
    /// The source.
    pub path: String,
    /// Why.
    pub error: String,
}
