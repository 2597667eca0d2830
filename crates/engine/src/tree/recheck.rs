//! Asking anew which branches have copies of a directory.
//!
//! A lookup of a directory's name asks. A program that holds a directory (its working directory, a descriptor, an NFS handle) uses
//! it without: copies that were removed, renamed or made out of band are found here, when names in it are used.

use std::ffi::CStr;
use std::sync::Arc;

use super::Tree;
use super::resolve::{DirStats, Found};
use crate::inode::Inode;
use crate::pool::Pool;

/// Has `dir` know its copies as of lately, if they can be asked for.
pub(super) fn recheck(tree: &Tree, dir: &Arc<Inode>) {
    let pool = tree.pool.load();
    if tree.knows_copies(&pool, dir) {
        return;
    }
    let (mut due, mut at) = (Vec::new(), dir.clone());
    // A copy is reached by those above it.
    while !tree.knows_copies(&pool, &at)
        && let Some(name) = at.name()
    {
        due.push(at);
        at = name.parent;
    }
    while let Some(dir) = due.pop() {
        if !dir.is_unsure() {
            ask(tree, &pool, &dir);
        }
    }
}

/// Asks for the copies of `dir` by its name. What has that name by now may be something else: then `dir` stays as it is known.
fn ask(tree: &Tree, pool: &Pool, dir: &Arc<Inode>) {
    if let Some(name) = dir.name()
        && let Ok(Found::Dir(stats, copies)) = tree.find(pool, &name.parent, &name.name)
        && has_one_of(dir, &stats)
    {
        note_new_copies(tree, pool, (&name.parent, &name.name), dir, &stats);
        dir.update_copies(&copies);
        tree.keep_number(pool, dir, None);
    }
}

/// Whether one of the copies `stats` is known to be `dir`'s.
pub(crate) fn has_one_of(dir: &Inode, stats: &DirStats) -> bool {
    stats.iter().any(|(at, stat)| dir.copy_ino(*at) == Some(stat.ino))
}

/// Records those of the copies `stats` of the live directory `dir`, found as `name` in `parent`, that it was not known to have.
pub(crate) fn note_new_copies(
    tree: &Tree,
    pool: &Pool,
    (parent, name): (&Arc<Inode>, &CStr),
    dir: &Inode,
    stats: &DirStats,
) {
    for (at, stat) in stats.iter().filter(|(at, stat)| dir.copy_ino(*at) != Some(stat.ino)) {
        tree.new_copy(pool, parent, name, dir.id, *at, stat.ino);
    }
}
