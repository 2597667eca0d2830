//! Resolving handles of an exported pool.

use serde::{Deserialize, Serialize};

/// Request to resolve handles of an exported pool from their numbers alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HandlesRequest {
    /// Handles to resolve.
    pub handles: Vec<HandleOf>,
    /// Number of handles to return of objects that only the index finds.
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
    /// Distinguishes objects that had the number one after the other.
    pub generation: u32,
}

/// Results of resolving handles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HandlesTried {
    /// Results, in the order of the request.
    pub ends: Vec<HandleEnd>,
    /// Handles of objects that only the index finds, for a further request.
    pub indexed: Vec<HandleOf>,
    /// Branches of the exported pool that are missing now.
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
    /// Unknown: a branch is unreachable or not in the pool.
    Unknown,
    /// Not tried: finding the object takes a walk through a whole branch.
    NotTried,
}

/// Request for rows of the index whose objects no longer exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StaleRowsRequest {
    /// The first number to look at.
    pub from: u64,
    /// Removes these rows.
    #[serde(default)]
    pub remove: bool,
}

/// Rows of the index whose objects no longer exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StaleRows {
    /// These rows; with `remove` they are removed.
    pub rows: Vec<StaleRow>,
    /// Number at which the next request goes on; null: there are no more.
    pub next: Option<u64>,
}

/// A row of the index whose object no longer exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StaleRow {
    /// The object's handle.
    pub handle: HandleOf,
    /// Paths of the branches that it was on, as far as they are in the pool.
    pub branches: Vec<String>,
}

/// A branch that is not in the pool now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AwayBranch {
    /// Its durable id.
    pub id: u16,
    /// Its former path; empty if unknown.
    pub path: String,
}
