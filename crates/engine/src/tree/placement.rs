//! The placement rule for a directory, by the names that lead there now.
//!
//! Nothing is kept of it: a walk up the known directories and down the tree of rules takes less time than to find out that what was
//! kept still holds after a rename above. Where there is no rule nothing is walked.

use std::sync::Arc;

use fsstack_pool::{BranchIx, DirPlacement};
use fsstack_sync::atomic::Ordering::Relaxed;
use smallvec::SmallVec;

use crate::inode::{Inode, InodeName};
use crate::pool::Pool;
use crate::tree::Tree;

/// How something new in `dir` is placed.
pub(crate) fn placement_in<'a>(pool: &'a Pool, dir: &Arc<Inode>) -> DirPlacement<'a> {
    let create = &pool.settings.create;
    if pool.rules.is_empty() {
        return DirPlacement::new(create, None);
    }
    let rule =
        names_to(dir).and_then(|names| pool.rules.find(names.iter().rev().map(|name| name.name.to_bytes())));
    DirPlacement::new(create, rule)
}

/// How a file with all these names is placed: by the rule for the first, within the strict rules for all of them.
pub(crate) fn placement_of<'a>(pool: &'a Pool, names: &[InodeName]) -> DirPlacement<'a> {
    let mut placements = names.iter().map(|name| placement_in(pool, &name.parent));
    let first = placements.next().unwrap_or_else(|| DirPlacement::new(&pool.settings.create, None));
    placements.fold(first, |placement, other| placement.also(&other))
}

/// How a file with names in the directories at these paths is placed, as by [`placement_of`].
pub(crate) fn placement_at<'a, 'p>(pool: &'a Pool, dirs: impl Iterator<Item = &'p [u8]>) -> DirPlacement<'a> {
    let mut placements = dirs.map(|dir| {
        let names: Vec<&[u8]> = dir.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        DirPlacement::new(&pool.settings.create, pool.rules.find(names.into_iter()))
    });
    let first = placements.next().unwrap_or_else(|| DirPlacement::new(&pool.settings.create, None));
    placements.fold(first, |placement, other| placement.also(&other))
}

/// The names that lead to `dir`, the last one first; None: it has none any more.
fn names_to(dir: &Arc<Inode>) -> Option<SmallVec<[InodeName; 8]>> {
    let mut names: SmallVec<[InodeName; 8]> = SmallVec::new();
    let mut name = if dir.is_root() { None } else { Some(dir.name()?) };
    while let Some(known) = name {
        name = if known.parent.is_root() { None } else { Some(known.parent.name()?) };
        names.push(known);
    }
    Some(names)
}

impl Tree {
    /// Objects on the branches `on` came from `old` to `new`, directories both: counts it if that is against the rule for `new` alone.
    pub(crate) fn note_rule_of(&self, pool: &Pool, old: &Arc<Inode>, new: &Arc<Inode>, on: &[BranchIx]) {
        if pool.rules.is_empty() || old.id == new.id {
            return;
        }
        let is_against = |dir| {
            let placement = placement_in(pool, dir);
            on.iter().any(|at| placement.is_against(*at))
        };
        if is_against(new) && !is_against(old) {
            self.note_misplaced();
        }
    }

    /// One more object lies against the rules.
    pub(crate) fn note_misplaced(&self) {
        self.misplaced.fetch_add(1, Relaxed);
    }
}
