//! Choice of a file's write path, by the settings and what the file is.

use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_branch::error::{OpError, Result};
use fsstack_sys::{self as sys, Kind};

use super::tables::Files;
use crate::files::capability::has_capability;
use crate::files::decision::{PathDecision, StackedReason};
use crate::files::route::Route;
use crate::files::{OpenFile, SET_ID};
use crate::inode::Inode;
use crate::pool::Pool;
use crate::settings::{PageCache, Synced, WritePath};
use crate::tree::Tree;

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

impl Files {
    /// How the file should go, were it opened now.
    pub(crate) fn choose(&self, pool: &Pool, facts: Facts<'_>) -> PathDecision {
        let decision = choose(pool, facts);
        if decision.is_passthrough() && !self.backings.work() {
            return decision.refused(stacked_route(pool), StackedReason::NoPassthrough);
        }
        if decision.is_passthrough() && self.making_way.has(facts.inode.id.ino) {
            return decision.refused(stacked_route(pool), StackedReason::MakesWay);
        }
        decision
    }

    /// How the closed file `inode` would go, were it opened now to read it, or also to write it if writes must strip
    /// privileges from it.
    pub(crate) fn choose_closed(&self, tree: &Tree, pool: &Pool, inode: &Arc<Inode>) -> Result<PathDecision> {
        let (capable, stat) =
            tree.pin(pool, inode)?.ask(pool, |fd| Ok((has_capability(fd), sys::at::stat_fd(fd)?)))?;
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
