//! Which names of a copy a listing has still to come to.
//!
//! A move asks that for each name that it takes along (`followed.rs`). To read the copy for each of them would take the square of its
//! size, so all its names are read once for a place at which a listing stands. A name that was made since is looked for by reading
//! on from there.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::Arc;

use fsstack_branch::error::Result;
use fsstack_identity::number::hash_name;
use fsstack_pool::BranchIx;
use fsstack_sync::Mutex;

use super::cookie::branch_of;
use super::listing::{Listing, Read};
use super::listing_memory::{Allowance, ListingMemory};
use crate::inode::Inode;
use crate::pool::Pool;
use crate::tree::Tree;

/// Entries of [`ListingMemory`] for a name: its hash, and its place.
const ENTRIES_OF_A_PLACE: usize = 2;

/// Names of the copy that a listing stands in, as they were when it came there.
#[derive(Debug, Default)]
pub(super) struct CopyPlaces(Mutex<Option<PlacesAt>>);

#[derive(Debug)]
struct PlacesAt {
    cookie: u64,
    /// By hashes of names: true for those that come behind `cookie`. Empty if there is no memory for them.
    names: HashMap<u64, bool>,
    _memory: Allowance,
}

impl CopyPlaces {
    /// Whether `name` comes behind `cookie` in the copy of `dir` that this is of.
    ///
    /// # Errors
    /// The copy cannot be read.
    pub(super) fn comes(
        &self,
        (tree, memory): (&Tree, &Arc<ListingMemory>),
        pool: &Pool,
        dir: &Arc<Inode>,
        cookie: u64,
        name: &CStr,
    ) -> Result<bool> {
        let known = || {
            let places = self.0.lock();
            let there = places.as_ref().filter(|places| places.cookie == cookie)?;
            Some(there.names.get(&hash_name(dir.id.ino, name.to_bytes())).copied())
        };
        if known().is_none() {
            // Not with the lock held: the branch may hang.
            let read = PlacesAt::read((tree, memory), pool, dir, cookie)?;
            *self.0.lock() = Some(read);
        }
        if let Some(Some(comes)) = known() {
            return Ok(comes);
        }
        let mut comes = false;
        behind((tree, memory), pool, dir, cookie, |read| {
            comes = *read.name == *name;
            !comes
        })?;
        Ok(comes)
    }
}

impl PlacesAt {
    fn read(
        (tree, memory): (&Tree, &Arc<ListingMemory>),
        pool: &Pool,
        dir: &Arc<Inode>,
        cookie: u64,
    ) -> Result<Self> {
        let (mut names, mut allowance) = (HashMap::new(), Allowance::of(memory.clone()));
        let mut has_memory = true;
        let mut keep = |read: &Read, comes: bool| {
            names.insert(hash_name(dir.id.ino, read.name.to_bytes()), comes);
            has_memory = allowance.covers(names.len() * ENTRIES_OF_A_PLACE);
            has_memory
        };
        // The names behind the cookie last: one that is made meanwhile is known as one that comes, or not known.
        if let Some(at) = copy_of(pool, cookie) {
            let mut whole = Listing::new(true, memory);
            whole.enter(tree, pool, dir, at)?;
            while let Some(read) = whole.read_one(pool)?
                && keep(&read, false)
            {}
        }
        behind((tree, memory), pool, dir, cookie, |read| keep(read, true))?;
        if !has_memory {
            names.clear();
            allowance.shrink(0);
        }
        Ok(Self { cookie, names, _memory: allowance })
    }
}

/// The branch with the copy that `cookie` is of.
fn copy_of(pool: &Pool, cookie: u64) -> Option<BranchIx> {
    pool.branches.iter().find(|branch| Some(branch.id) == branch_of(cookie)).map(|branch| branch.ix)
}

/// Reads the entries behind `cookie` in the copy that it is of, until `goes_on` says no.
fn behind(
    (tree, memory): (&Tree, &Arc<ListingMemory>),
    pool: &Pool,
    dir: &Arc<Inode>,
    cookie: u64,
    mut goes_on: impl FnMut(&Read) -> bool,
) -> Result<()> {
    let mut listing = Listing::new(true, memory);
    listing.go_to(tree, pool, dir, cookie)?;
    // Without that copy it stands in the next one.
    let copy = copy_of(pool, cookie);
    while listing.branch().is_some_and(|at| Some(at) == copy)
        && let Some(read) = listing.read_one(pool)?
        && goes_on(&read)
    {}
    Ok(())
}
