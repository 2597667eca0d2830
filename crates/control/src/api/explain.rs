//! Reasons for a place: of what exists, and of what would be made.

use serde::{Deserialize, Serialize};

/// Why an object is on its branch and uses its write path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Explained {
    /// The path from the pool's root.
    pub path: String,
    /// The bytes of the path in base64, where `path` shows other bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// `file`, `directory` or another kind.
    pub kind: String,
    /// The branch that serves it.
    pub branch: String,
    /// The placement rule for its directory; null if there is none.
    #[serde(default)]
    pub rule: Option<String>,
    /// All copies in the order of the branches; of a file the first is served and the others are hidden.
    pub copies: Vec<String>,
    /// Its write path; null if it is not a regular file.
    pub write_path: Option<WritePathExplained>,
    /// Further notes, a sentence each.
    pub notes: Vec<String>,
}

/// Why a file has its write path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WritePathExplained {
    /// `passthrough` or `stacked`: the present path of an open file, or that of the next open.
    pub now: String,
    /// Whether the file is open.
    pub open: bool,
    /// Value of the pool's setting or of the directory's rule.
    pub setting: String,
    /// The deciding setting: `pool`, or the directory of a rule.
    pub decided_by: String,
    /// Why `now` follows from `setting`.
    pub reason: String,
}

/// Where a new file would be placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlacementExplained {
    /// The path from the pool's root.
    pub path: String,
    /// The bytes of the path in base64, where `path` shows other bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// Expected size in bytes.
    pub size: u64,
    /// The policy that ranks the branches.
    pub create: String,
    /// The placement rule that decides; null if it is the pool's policy.
    #[serde(default)]
    pub rule: Option<String>,
    /// The deepest existing directory on the path; missing ones are created with the file.
    pub parent: String,
    /// All branches: accepted ones in the order of attempts, then rejected ones.
    pub ranking: Vec<RankedBranch>,
    /// The branch that would take it; null if none would.
    pub chosen: Option<String>,
    /// One sentence: why that one, or why none.
    pub verdict: String,
}

/// A branch and the facts that ranked it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RankedBranch {
    /// Its path.
    pub branch: String,
    /// Its rank, from 1; null if it is rejected.
    pub rank: Option<u64>,
    /// Reason for its rank or rejection.
    pub why: String,
    /// Its mode.
    pub mode: String,
    /// Whether it answers; if not, its space and floor are unknown.
    #[serde(default = "answers")]
    pub reachable: bool,
    /// Bytes that users may still write.
    pub available: u64,
    /// Bytes that new files leave free.
    pub floor: u64,
    /// Number of leading directories of the path that it holds.
    pub holds: u64,
    /// Whether it holds the parent directory.
    pub holds_parent: bool,
    /// True if a file of the expected size fits.
    pub fits: bool,
}

/// Value of `reachable` from a daemon of an earlier version, which does not send it.
fn answers() -> bool {
    true
}
