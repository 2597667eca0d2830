//! Targets of file handles, for a check of an export: each is followed as for a kernel that has forgotten its object.
//!
//! Nothing is held or looked up for that, and no branch is looked through: what could be found only so is not tried.

use std::hash::{BuildHasher, RandomState};

use fsstack_identity::number::{self, Identity};
use fsstack_pool::Ino;
use fsstack_sys::Errno;

use crate::handles::by_number::ResolvedNumber;
pub use crate::handles::gone::GoneObject;
use crate::handles::gone::gone_objects;
use crate::member::Member;
use crate::pool::Pool;
use crate::tree::Tree;
use crate::union::Union;

/// Result of following a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleEnd {
    /// It leads to its object.
    Found,
    /// The object is gone.
    Stale,
    /// That is not known: a branch is out of reach, or not in the pool now.
    Unknown,
    /// The object could be found only by a look through a whole branch.
    NotTried,
}

impl Union {
    /// Where the handle of the object `id` leads.
    pub fn try_handle(&self, id: Identity) -> HandleEnd {
        let pool = self.tree.pool.load();
        if id.ino == Ino::ROOT {
            return if id.generation == 0 { HandleEnd::Found } else { HandleEnd::Stale };
        }
        if !self.tree.is_found_at_once(&pool, id.ino) {
            return HandleEnd::NotTried;
        }
        let found = self.tree.resolve_number(&pool, id.ino).map(|reached| match reached {
            ResolvedNumber::File(file) => file.id,
            ResolvedNumber::Dir(dir) => dir.id,
        });
        match found {
            Ok(found) if found == id => HandleEnd::Found,
            // The number was used again.
            Ok(_) => HandleEnd::Stale,
            Err(error) if error.errno() == Errno::STALE => HandleEnd::Stale,
            Err(_) => HandleEnd::Unknown,
        }
    }

    /// Some of the objects that only the index finds: moved files, and directories with several copies.
    pub fn some_indexed(&self, count: usize) -> Vec<Identity> {
        // From another one on at each call.
        self.tree.index.some(RandomState::new().hash_one(count), count)
    }
}

/// Entries of the index whose objects are gone, of those with numbers from `from` on, and the number that another call goes on at. They
/// are removed if `forget`.
pub fn gone_entries(union: &Union, from: u64, forget: bool) -> (Vec<GoneObject>, Option<u64>) {
    gone_objects(&union.tree, &union.pool(), from, forget)
}

impl Tree {
    /// Whether each place where the object may be is looked at without a look through a branch.
    fn is_found_at_once(&self, pool: &Pool, ino: Ino) -> bool {
        let indexed = self.index.places(ino).into_iter().flat_map(|place| place.naturals);
        indexed.chain(std::iter::once(ino)).all(|natural| {
            let known = |branch: &Member| branch.by_number.is_some() || self.remembers(branch, natural);
            if number::inode_of(natural).is_none() {
                let mut searched =
                    pool.branches.iter().filter(|branch| branch.by_number.is_none()).peekable();
                return searched.peek().is_none() || searched.any(|branch| known(branch));
            }
            pool.branch_of(natural).is_none_or(|at| known(pool.branch(at)))
        })
    }
}
