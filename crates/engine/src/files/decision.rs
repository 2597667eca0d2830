//! Write path of a file and the reason: decided at its first open, and shown by status and `explain`.

use std::fmt;
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_branch::error::{OpError, Result};
use fsstack_pool::Size;
use fsstack_sys::{self as sys, Kind};

use super::route::Route;
use super::{OpenFile, SET_ID};
use crate::files::capability::has_capability;
use crate::pool::Pool;
use crate::rules::Rule;
use crate::settings::{PageCache, Synced, WritePath};
use crate::tree::inode::Inode;
use crate::union::Union;

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

/// Facts for the choice, besides the settings.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) inode: &'a Arc<Inode>,
    pub(crate) branch: &'a Branch,
    /// It is open, or to be opened, for writing.
    pub(crate) write: bool,
    /// Set-uid and the like.
    pub(crate) strips: bool,
    /// It is append-only.
    pub(crate) append_only: bool,
}

impl Union {
    /// How the file should go, were it opened now.
    pub(crate) fn choose(&self, pool: &Pool, facts: Facts<'_>) -> PathDecision {
        let decision = choose(pool, facts);
        if decision.is_passthrough() && !self.files.backings.work() {
            return decision.refused(stacked_route(pool), StackedReason::NoPassthrough);
        }
        decision
    }

    /// How the closed file `inode` would go, were it opened now to read it, or also to write it if writes must strip
    /// privileges from it.
    pub(crate) fn choose_closed(&self, pool: &Pool, inode: &Arc<Inode>) -> Result<PathDecision> {
        let (capable, stat) =
            self.tree.pin(pool, inode)?.ask(pool, |fd| Ok((has_capability(fd), sys::at::stat_fd(fd)?)))?;
        let strips = capable || stat.mode & SET_ID != 0;
        let branch = pool.branch(inode.branch().ok_or(OpError::STALE)?);
        let append_only = stat.is_append_only();
        Ok(self.choose(pool, Facts { inode, branch, write: strips, strips, append_only }))
    }

    /// How the open file of `inode` would go, were it opened now as it is.
    pub(crate) fn choose_again(&self, pool: &Pool, inode: &Arc<Inode>, file: &OpenFile) -> PathDecision {
        let (branch, strips, append_only) = (file.branch(), file.strips(), file.is_append_only());
        self.choose(pool, Facts { inode, branch: &branch, write: file.is_writable(), strips, append_only })
    }
}

fn choose(pool: &Pool, facts: Facts<'_>) -> PathDecision {
    let rules = &pool.settings.rules;
    let rule =
        if rules.is_empty() { None } else { facts.inode.path().and_then(|path| rules.find(&path).cloned()) };
    let set = rule.as_ref().map_or(pool.settings.write_path, |rule| rule.how);
    let reason = match set {
        _ if facts.append_only && facts.inode.kind == Kind::File => Some(StackedReason::AppendOnly),
        WritePath::Stacked => None,
        _ if facts.write && pool.settings.synced == Synced::All => Some(StackedReason::Synchronous),
        _ if facts.inode.kind != Kind::File => Some(StackedReason::NotRegular),
        _ if facts.write && facts.strips => Some(StackedReason::Strips),
        _ if facts.branch.refuses_passthrough() => Some(StackedReason::BranchRefuses),
        WritePath::Passthrough => None,
        WritePath::Auto if facts.write => near_full(pool, facts.branch),
        WritePath::Auto => None,
    };
    let stacked = set == WritePath::Stacked || reason.is_some();
    let route = match reason {
        // The page cache writes whole pages back.
        Some(StackedReason::AppendOnly) => Route::Direct,
        _ if stacked => stacked_route(pool),
        _ => Route::Passthrough(0),
    };
    PathDecision { route, set, rule, reason }
}

/// How stacked files go.
pub(crate) fn stacked_route(pool: &Pool) -> Route {
    match pool.settings.page_cache {
        PageCache::Off => Route::Direct,
        PageCache::On | PageCache::WriteBack => Route::Cached,
    }
}

/// A writer past the daemon could not be helped when the branch is full.
fn near_full(pool: &Pool, branch: &Branch) -> Option<StackedReason> {
    let headroom = pool.settings.passthrough_headroom;
    let available = branch.space().ok().filter(|_| headroom > 0)?.available;
    (available < headroom).then_some(StackedReason::NearFull { available, headroom })
}
