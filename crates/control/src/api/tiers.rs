//! Tiers: classes of branches whose files go to another class when they are full.

use serde::{Deserialize, Serialize};

/// Request to show or change tiers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum TierRequest {
    /// Shows the tiers.
    Show,
    /// Makes a tier, in place of the one that files of its class leave by.
    Set {
        /// The tier, as `tiers=` has it: `fast>slow;start=80%;stop=60%`.
        tier: String,
        /// Write it to the pool's config file too.
        #[serde(default)]
        persist: bool,
    },
    /// Removes the tier that files of a class leave by. Its job ends; what was moved stays moved.
    Remove {
        /// The class.
        fast: String,
        /// Remove it from the pool's config file too.
        #[serde(default)]
        persist: bool,
    },
}

/// The tiers of a pool, after the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TierList {
    /// The tiers, by the class that files leave.
    pub tiers: Vec<TierStatus>,
    /// The config file that was changed too.
    pub persisted: Option<String>,
}

/// A tier, and what it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TierStatus {
    /// The class that files leave.
    pub fast: String,
    /// The class that takes them.
    pub slow: String,
    /// The tier as it is written.
    pub tier: String,
    /// Used share of the faster class above which files leave.
    pub start: String,
    /// Used share at which they stop.
    pub stop: String,
    /// `atime`, `mtime` or `size`.
    pub order: String,
    /// Files that were used in so many seconds stay.
    pub min_age_seconds: u64,
    /// Part of the local day in which files leave; null for all of it.
    pub window: Option<String>,
    /// Bytes of the faster class that cannot be had any more.
    pub fast_used: u64,
    /// Its size in bytes.
    pub fast_total: u64,
    /// Bytes of the slower class that cannot be had any more.
    pub slow_used: u64,
    /// Its size in bytes.
    pub slow_total: u64,
    /// `below-start`, `moving` (by `job`), `due`, `out-of-window`, `waiting` (for the end of `job`), `no-branch`, `no-room` or `resting`
    /// (`job` moved nothing, or was cancelled).
    pub state: String,
    /// The job that moves, is waited for, or was the last one.
    pub job: Option<u64>,
    /// The state in a sentence.
    pub why: String,
}
