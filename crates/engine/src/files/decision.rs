//! Write path of a file and the reason: decided at its first open (`opened/choose.rs`), and shown by status and `explain`.

use std::fmt;
use std::sync::Arc;

use fsstack_pool::Size;

use super::route::Route;
use crate::rules::Rule;
use crate::settings::WritePath;

/// Chosen write path of a file, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathDecision {
    /// The wish; a passthrough wish has no id yet.
    pub route: Route,
    /// The write path that is set for it.
    pub set: WritePath,
    /// The directory's rule that set it; None: the pool's own setting.
    pub rule: Option<Arc<Rule>>,
    /// Reason for the stacked path nevertheless.
    pub reason: Option<StackedReason>,
}

/// Reason for the stacked path where it was not configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum StackedReason {
    /// It is no regular file.
    NotRegular,
    /// Writes are answered when they are on the disk.
    Synchronous,
    /// Writes must strip set-uid, set-gid or capabilities from it.
    Strips,
    /// It is append-only, of which the kernel knows nothing: it would let a mapping of it be stored into.
    AppendOnly,
    /// `auto`, and its branch has little room left.
    NearFull {
        /// Bytes available there.
        available: u64,
        /// Bytes that `passthrough-headroom` asks for.
        headroom: u64,
    },
    /// The kernel does no passthrough to files of its branch.
    BranchRefuses,
    /// Its branch does not open it.
    DoesNotOpen,
    /// This mount has no passthrough: the kernel, the privilege or the options exclude it.
    NoPassthrough,
    /// A job waits for it, and moves it while it is open.
    MakesWay,
}

impl fmt::Display for StackedReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synchronous => out.write_str("the mount is synchronous (sync)"),
            Self::NotRegular => out.write_str("it is no regular file"),
            Self::Strips => out.write_str("a write must take set-uid, set-gid or capabilities from it"),
            Self::AppendOnly => out.write_str("it may only be added to"),
            Self::NearFull { available, headroom } => write!(
                out,
                "its branch has {} available, less than passthrough-headroom={}",
                Size(*available).approx(),
                Size(*headroom).approx()
            ),
            Self::BranchRefuses => out.write_str("the kernel refuses passthrough on its branch"),
            Self::DoesNotOpen => out.write_str("its branch did not open it"),
            Self::NoPassthrough => out.write_str("this mount has no passthrough"),
            Self::MakesWay => out.write_str("a job waits to move it (--make-way)"),
        }
    }
}

impl PathDecision {
    /// Whether the kernel is to read and write it.
    pub fn is_passthrough(&self) -> bool {
        matches!(self.route, Route::Passthrough(_))
    }

    /// The same, had the kernel not taken the file.
    pub(crate) fn refused(mut self, stacked: Route, reason: StackedReason) -> Self {
        self.route = stacked;
        self.reason = Some(reason);
        self
    }
}

impl fmt::Display for PathDecision {
    /// Printed as in `stacked: the rule /a=stacked for its directory`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.is_passthrough() { "passthrough: " } else { "stacked: " })?;
        match &self.rule {
            Some(rule) => write!(out, "the rule {rule} for its directory")?,
            None => write!(out, "the pool's write-path={}", self.set)?,
        }
        match &self.reason {
            Some(reason) => write!(out, ", but {reason}"),
            None => Ok(()),
        }
    }
}
