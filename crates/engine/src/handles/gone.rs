//! Entries of the index whose object is gone: it was removed on its branch, not through the pool. They mean nothing.
//!
//! An object may be moved while it is looked for. Its new place is in the index before it has a name there, and its old one goes
//! after that. So an object in use is left out, and all places are looked at twice: one that was taken for empty too early is
//! not empty any more once the old one is.

use std::path::PathBuf;

use fsstack_identity::index::IndexEntry;
use fsstack_identity::number::{self, Identity};
use fsstack_pool::Ino;
use fsstack_sync::time::{Duration, Instant};

use super::identify::settle;
use crate::pool::Pool;
use crate::tree::Tree;

/// Numbers that are read from the index at a time.
const AT_ONCE: usize = 256;
/// Time after which the rest is left to another call: branches may be slow.
const LOOK_FOR: Duration = Duration::from_secs(1);

/// Entry of an object that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoneObject {
    /// The object.
    pub id: Identity,
    /// Branches of the pool that it was on.
    pub branches: Vec<PathBuf>,
}

/// Entries of gone objects among those with numbers from `from` on, and the number that another call goes on at. They are removed if
/// `forget`.
pub(crate) fn gone_objects(
    tree: &Tree,
    pool: &Pool,
    mut from: u64,
    forget: bool,
) -> (Vec<GoneObject>, Option<u64>) {
    let (began, mut found) = (Instant::now(), Vec::new());
    loop {
        // Behind the last number the first ones follow.
        let numbers = tree.index.some(from, AT_ONCE).into_iter().map(|id| id.ino).filter(|ino| ino.0 >= from);
        let mut numbers: Vec<Ino> = numbers.collect();
        numbers.dedup();
        for ino in &numbers {
            let mut gone = gone(tree, pool, *ino);
            if !gone.is_empty() {
                let again = self::gone(tree, pool, *ino);
                gone.retain(|entry| again.contains(entry));
            }
            if forget && !gone.is_empty() {
                // A file in its place has another number while this row is there: its own row is on disk first.
                settle(tree, *ino);
                // A place that an object is given meanwhile stays.
                let places =
                    gone.iter().flat_map(|entry| entry.naturals.iter().map(|at| (entry.id, Some(*at))));
                tree.index.forget_each(&places.collect::<Vec<_>>());
            }
            found.extend(gone.into_iter().map(|entry| shown(pool, &entry)));
        }
        match numbers.last().and_then(|last| last.0.checked_add(1)) {
            None => return (found, None),
            next if began.elapsed() > LOOK_FOR => return (found, next),
            Some(next) => from = next,
        }
    }
}

fn gone(tree: &Tree, pool: &Pool, ino: Ino) -> Vec<IndexEntry> {
    // One that is open, or held, may have no name.
    if tree.inodes.get(ino).is_some() {
        return Vec::new();
    }
    let entries = tree.index.places(ino).into_iter();
    let is_gone = |entry: &IndexEntry| {
        !may_be_where_its_number_says(tree, pool, entry)
            && !entry.naturals.iter().any(|at| {
                tree.lives_at(pool, entry.id, *at) || is_there_without_a_mark(tree, pool, entry.id, *at)
            })
    };
    entries.filter(is_gone).collect()
}

/// Whether the object is where it got its number. If that cannot be known, true.
fn may_be_where_its_number_says(tree: &Tree, pool: &Pool, entry: &IndexEntry) -> bool {
    let natural = number::natural_of(entry.id.ino);
    let Some(inode) = number::inode_of(natural) else {
        // It was given another one than its own, at one of its places.
        return !entry
            .naturals
            .iter()
            .any(|at| number::another(Identity { ino: *at, ..entry.id }) == entry.id);
    };
    let Some(at) = pool.branch_of(natural) else { return !tree.index.is_of_a_gone_branch(natural) };
    let branch = pool.branch(at);
    if branch.by_number.is_none() {
        return true;
    }
    let found = tree.open_raw(branch, inode);
    found.map_or(true, |found| found.is_some_and(|(_, stat)| number::identity(branch, &stat) == entry.id))
}

/// Whether a directory is there that has its number in the pool though it could not be marked.
fn is_there_without_a_mark(tree: &Tree, pool: &Pool, id: Identity, natural: Ino) -> bool {
    let there = pool.branch_of(natural).zip(number::inode_of(natural));
    there.is_some_and(|(at, inode)| {
        let branch = pool.branch(at);
        let found = tree.open_raw(branch, inode);
        found.map_or(true, |found| {
            found.is_some_and(|(_, stat)| {
                stat.is_dir() && number::another(number::identity(branch, &stat)) == id
            })
        })
    })
}

fn shown(pool: &Pool, entry: &IndexEntry) -> GoneObject {
    let branches = entry.naturals.iter().filter_map(|at| pool.branch_of(*at));
    let mut branches: Vec<PathBuf> = branches.map(|at| pool.branch(at).path.clone()).collect();
    branches.dedup();
    GoneObject { id: entry.id, branches }
}
