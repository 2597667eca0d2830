//! Which names of a copy a listing has still to come to.
//!
//! A move asks that for each name that it takes along (`followed.rs`). The first answer for a place at which a listing stands is
//! found by reading on from there. To do so for each name would take the square of the copy's size, so for the second one all names
//! of the copy are read at once. A name that was made since is looked for by reading on.

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

/// Bit of a [`Places`] entry: the name comes behind the cookie.
const COMES: u64 = 1;

/// Names of the copy that a listing stands in, as they were when it came there.
#[derive(Debug, Default)]
pub(super) struct CopyPlaces(Mutex<Option<PlacesAt>>);

#[derive(Debug)]
struct PlacesAt {
    cookie: u64,
    /// None: one name was asked for so far.
    places: Option<Places>,
}

/// Hashes of names in ascending order, with [`COMES`] in place of the last bit. None without memory for them.
#[derive(Debug)]
struct Places {
    names: Vec<u64>,
    _memory: Allowance,
}

impl CopyPlaces {
    /// Whether `name` comes behind `cookie` in the copy of `dir` that this is of. `memory`: of the listing, and of places.
    ///
    /// # Errors
    /// The copy cannot be read.
    pub(super) fn comes(
        &self,
        (tree, memory): (&Tree, [&Arc<ListingMemory>; 2]),
        pool: &Pool,
        dir: &Arc<Inode>,
        cookie: u64,
        name: &CStr,
    ) -> Result<bool> {
        let hash = hash_name(dir.id.ino, name.to_bytes());
        let known = || {
            let mut at = self.0.lock();
            let Some(places) = at.as_ref().filter(|places| places.cookie == cookie) else {
                // Those of another place give their memory back.
                *at = Some(PlacesAt { cookie, places: None });
                return Some(None);
            };
            places.places.as_ref().map(|places| places.find(hash))
        };
        let mut found = known();
        if found.is_none() {
            // Not with the lock held: the branch may hang.
            let read = Places::read((tree, memory), pool, dir, cookie)?;
            *self.0.lock() = Some(PlacesAt { cookie, places: Some(read) });
            found = known();
        }
        if let Some(Some(comes)) = found {
            return Ok(comes);
        }
        let mut comes = false;
        behind((tree, memory[0]), pool, dir, cookie, |read| {
            comes = *read.name == *name;
            !comes
        })?;
        Ok(comes)
    }

    /// The listing goes on elsewhere, where names may have changed since.
    pub(super) fn forget(&self) {
        *self.0.lock() = None;
    }
}

impl Places {
    fn read(
        (tree, [memory, of_places]): (&Tree, [&Arc<ListingMemory>; 2]),
        pool: &Pool,
        dir: &Arc<Inode>,
        cookie: u64,
    ) -> Result<Self> {
        let (mut names, mut allowance) = (Vec::new(), Allowance::of(of_places.clone()));
        let mut has_memory = true;
        let mut keep = |read: &Read, comes: u64| {
            names.push(hash_name(dir.id.ino, read.name.to_bytes()) & !COMES | comes);
            has_memory = allowance.covers(names.len());
            has_memory
        };
        let mut is_whole = true;
        // The names behind the cookie last: one that is made meanwhile is known as one that comes, or not known.
        if let Some(at) = copy_of(pool, cookie) {
            let mut whole = Listing::new(true, memory);
            whole.enter(tree, pool, dir, at)?;
            while is_whole && let Some(read) = whole.read_one(pool)? {
                is_whole = keep(&read, 0);
            }
        }
        if is_whole {
            behind((tree, memory), pool, dir, cookie, |read| keep(read, COMES))?;
        }
        Ok(Self::of(names, allowance, has_memory))
    }

    fn of(mut names: Vec<u64>, mut memory: Allowance, has_memory: bool) -> Self {
        if has_memory {
            names.sort_unstable_by_key(|name| std::cmp::Reverse(*name));
            // Of a name that was read twice, that it comes.
            names.dedup_by_key(|name| *name & !COMES);
            names.reverse();
        } else {
            names = Vec::new();
        }
        names.shrink_to_fit();
        memory.shrink(names.len());
        Self { names, _memory: memory }
    }

    fn find(&self, hash: u64) -> Option<bool> {
        let at = self.names.binary_search_by_key(&(hash & !COMES), |name| name & !COMES).ok()?;
        Some(self.names[at] & COMES != 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_read_twice_comes_and_without_memory_none_is_known() {
        let memory = Arc::new(ListingMemory::new(1024));
        let names = |all: &[u64]| {
            let mut allowance = Allowance::of(memory.clone());
            assert!(allowance.covers(all.len()));
            (all.to_vec(), allowance)
        };
        let (read, allowance) = names(&[8, 2, 6, 4, 4 | COMES, 2 | COMES]);
        let places = Places::of(read, allowance, true);
        let found = [2, 3, 4, 6, 8, 10].map(|hash| places.find(hash));
        assert_eq!(found, [Some(true), Some(true), Some(true), Some(false), Some(false), None]);
        let (read, allowance) = names(&[2; 300]);
        let none = Places::of(read, allowance, false);
        assert_eq!((none.find(2), none.names.capacity()), (None, 0));
        drop(places);
        assert_eq!(memory.granted(), 0);
    }
}
