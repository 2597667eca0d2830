//! The operator's interface of a daemon: one method a request, and the reasons of refusals.

use serde::{Deserialize, Serialize};

use crate::api::{
    BranchChanged, BranchRequest, Changed, Explained, HandlesRequest, HandlesTried, JobRequest, Jobs, Keys,
    PlacementExplained, SettingsRequest, Status, WritePathChanged, WritePathRequest,
};
use crate::copying::Copying;

/// The daemon's side of the requests. They may block: each is run by a thread of its own.
pub trait Operator: Send + Sync + 'static {
    /// The pool as it is now.
    fn status(&self) -> Status;
    /// Every key with its value.
    fn keys(&self) -> Keys;
    /// Changes keys, all of them or none.
    ///
    /// # Errors
    /// An unknown key, a value that is not one, a key that cannot change while the pool is mounted.
    fn change(&self, request: &SettingsRequest) -> Result<Changed, Refusal>;
    /// Switches how bytes reach a branch.
    ///
    /// # Errors
    /// The kernel does not do what is asked for.
    fn write_path(&self, request: &WritePathRequest) -> Result<WritePathChanged, Refusal>;
    /// Adds, removes or changes a branch.
    ///
    /// # Errors
    /// No such branch, or it is in use.
    fn branch(&self, request: &BranchRequest) -> Result<BranchChanged, Refusal>;
    /// Where handles lead, as for a kernel that has forgotten what they are of.
    fn handles(&self, request: &HandlesRequest) -> HandlesTried;
    /// Begins, shows or calls off jobs: those concerned.
    ///
    /// # Errors
    /// No such branch or job, or it cannot begin.
    fn jobs(&self, request: &JobRequest) -> Result<Jobs, Refusal>;
    /// Why what is at a path of the pool is where it is, and goes as it goes.
    ///
    /// # Errors
    /// Nothing is there.
    fn explain(&self, path: &[u8]) -> Result<Explained, Refusal>;
    /// Where a new file of this size would be put, and why.
    ///
    /// # Errors
    /// The path leads nowhere.
    fn explain_create(&self, path: &[u8], size: u64) -> Result<PlacementExplained, Refusal>;
    /// A bulk copy's conversation begins.
    fn copy(&self) -> Box<dyn Copying>;
    /// The pool's figures in the text format of OpenMetrics.
    fn metrics(&self) -> String;
}

/// Why a request was refused, on one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[error("{error}")]
pub struct Refusal {
    /// Kind of refusal.
    pub kind: RefusalKind,
    /// Subject, reason and remedy.
    pub error: String,
}

/// Kind of the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// It was asked for wrongly.
    Usage,
    /// The subject does not exist.
    Missing,
    /// Not as things stand: files are open, another change is under way.
    Busy,
    /// The system failed.
    Failed,
}

impl Refusal {
    /// It was asked for wrongly.
    pub fn usage(error: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Usage, error: error.into() }
    }

    /// Refusal because the subject does not exist.
    pub fn missing(error: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Missing, error: error.into() }
    }

    /// Not as things stand.
    pub fn busy(error: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Busy, error: error.into() }
    }

    /// The system failed.
    pub fn failed(error: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Failed, error: error.into() }
    }
}
