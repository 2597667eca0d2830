//! The daemon's interface for operators: one method per request, and the reasons of refusals.

use serde::{Deserialize, Serialize};

use crate::api::{
    BranchChanged, BranchRequest, CallsByCaller, CataloguePage, CatalogueRequest, Changed, Explained,
    HandlesRequest, HandlesTried, JobRequest, Jobs, Keys, PlacementExplained, ProfileRequest, RecentLines,
    RuleRequest, Rules, SettingsRequest, SlowCalls, SlowRequest, StaleRows, StaleRowsRequest, Status,
    TierList, TierRequest, Upgrade, UpgradeRequest, WritePathChanged, WritePathRequest,
};
use crate::copying::Copying;

/// The daemon's side of the requests. Methods may block; each runs on its own thread.
pub trait Operator: Send + Sync + 'static {
    /// Returns the pool's present state.
    fn status(&self) -> Status;
    /// Returns every key with its value.
    fn keys(&self) -> Keys;
    /// Changes keys, all of them or none.
    ///
    /// # Errors
    /// An unknown key, an invalid value, or a key that cannot change while the pool is mounted.
    fn change(&self, request: &SettingsRequest) -> Result<Changed, Refusal>;
    /// Changes the write path.
    ///
    /// # Errors
    /// The kernel does not support the requested path.
    fn write_path(&self, request: &WritePathRequest) -> Result<WritePathChanged, Refusal>;
    /// Adds, removes or changes a branch.
    ///
    /// # Errors
    /// No such branch, or it is in use.
    fn branch(&self, request: &BranchRequest) -> Result<BranchChanged, Refusal>;
    /// Resolves handles from their numbers alone, as for a kernel that has forgotten the objects.
    fn handles(&self, request: &HandlesRequest) -> HandlesTried;
    /// Returns rows of the index whose objects no longer exist, or removes them.
    fn stale_rows(&self, request: &StaleRowsRequest) -> StaleRows;
    /// Starts, lists or cancels jobs, and returns them.
    ///
    /// # Errors
    /// No such branch or job, or the job cannot start.
    fn jobs(&self, request: &JobRequest) -> Result<Jobs, Refusal>;
    /// Lists, sets or removes placement rules, and returns them.
    ///
    /// # Errors
    /// The text is no rule, or names no branch of the pool.
    fn rules(&self, request: &RuleRequest) -> Result<Rules, Refusal>;
    /// Returns names from the catalogue.
    ///
    /// # Errors
    /// The pool keeps none, or it has no such branch.
    fn catalogue(&self, request: &CatalogueRequest) -> Result<CataloguePage, Refusal>;

    /// Shows, sets or removes tiers, and returns them.
    ///
    /// # Errors
    /// The text is no tier, or names no class of the pool.
    fn tiers(&self, request: &TierRequest) -> Result<TierList, Refusal>;
    /// Takes a step of an upgrade: how far it has come.
    ///
    /// # Errors
    /// The pool cannot be handed over now, or not to that program.
    fn upgrade(self: std::sync::Arc<Self>, request: &UpgradeRequest) -> Result<Upgrade, Refusal>;
    /// Returns slow calls, and sets from when a call is slow.
    fn slow_calls(&self, request: &SlowRequest) -> SlowCalls;
    /// Returns the last lines of the log.
    fn log_lines(&self) -> RecentLines;
    /// Returns totals of calls by caller, and begins them.
    fn profile(&self, request: &ProfileRequest) -> CallsByCaller;
    /// Explains why the object at a path is on its branch and uses its write path.
    ///
    /// # Errors
    /// Nothing is there.
    fn explain(&self, path: &[u8]) -> Result<Explained, Refusal>;
    /// Explains where a new file of this size would be placed.
    ///
    /// # Errors
    /// The path cannot be resolved.
    fn explain_create(&self, path: &[u8], size: u64) -> Result<PlacementExplained, Refusal>;
    /// Starts the dialogue of a bulk copy.
    fn copy(&self) -> Box<dyn Copying>;
    /// Returns the pool's metrics in OpenMetrics text format.
    fn metrics(&self) -> String;
}

/// Reason for refusing a request, on one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[error("{error}")]
pub struct Refusal {
    /// Kind of refusal.
    pub kind: RefusalKind,
    /// Subject, reason and remedy.
    pub error: String,
}

/// Kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// Invalid request.
    Usage,
    /// The subject does not exist.
    Missing,
    /// Impossible in the current state: files are open, another change is in progress.
    Busy,
    /// A system error.
    Failed,
}

impl Refusal {
    /// Makes a refusal of an invalid request.
    pub fn usage(error: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Usage, error: error.into() }
    }

    /// Makes a refusal because the subject does not exist.
    pub fn missing(error: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Missing, error: error.into() }
    }

    /// Makes a refusal that the current state causes.
    pub fn busy(error: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Busy, error: error.into() }
    }

    /// Makes a refusal for a system error.
    pub fn failed(error: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Failed, error: error.into() }
    }
}
