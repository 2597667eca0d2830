//! Names that a listing shows behind all copies of a directory: those of branches out of reach, from the catalogue
//! (`degraded=catalogue`).
//!
//! Their cookies are in the order of hashes of their names, so they mean the same in another handle. A listing that goes on there
//! when the branches are back ends with EIO, since those were passed over.

use fsstack_branch::error::{OpError, Result};
use fsstack_identity::number::hash_name;
use fsstack_pool::{BranchIx, Ino};

use crate::opened::cookie::TAIL;
use crate::opened::listing::{Listing, Read};
use crate::pool::Pool;
use crate::settings::Degraded;

/// The first cookie of such a name; those of other kinds are smaller, or as large as [`TAIL`].
const FIRST: u64 = TAIL >> 1;

/// Names that are listed behind all copies.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    /// The names in the order of their cookies; None: not read yet.
    pub(crate) reads: Option<Vec<Read>>,
    /// All copies that can be read were, and others were not.
    pub(crate) is_due: bool,
    /// Branches that were passed over, a bit each.
    skipped: u64,
}

impl Behind {
    pub(super) fn len(&self) -> usize {
        self.reads.as_ref().map_or(0, Vec::len)
    }

    /// The listing goes on without the branch `at`.
    pub(super) fn skip(&mut self, at: BranchIx) {
        self.skipped |= 1_u64.checked_shl(u32::from(at.0)).unwrap_or(u64::MAX);
    }

    /// Whether the branch `at` was passed over.
    pub(crate) fn has_skipped(&self, at: BranchIx) -> bool {
        self.skipped & 1_u64.checked_shl(u32::from(at.0)).unwrap_or(u64::MAX) != 0
    }

    /// The first name behind `cookie`.
    pub(crate) fn after(&self, cookie: u64) -> Option<&Read> {
        let reads = self.reads.as_deref()?;
        let from = match cookie {
            moved if is_tail(moved) => reads.len(),
            own if is_of(own) => reads.partition_point(|read| read.cookie <= own),
            _ => 0,
        };
        reads.get(from)
    }
}

impl Listing {
    /// Whether a copy with this answer is skipped.
    pub(super) fn passes_over(&mut self, pool: &Pool, at: BranchIx, error: OpError) -> bool {
        if error.is_fault() {
            self.behind.skip(at);
        }
        self.short |= error.is_fault() && pool.settings.degraded != Degraded::Read;
        error.is_fault()
    }

    /// Keeps what is listed behind all copies.
    ///
    /// # Errors
    /// EIO if the memory of listings is used up.
    pub(crate) fn keep_behind(&mut self, reads: Vec<Read>) -> Result<()> {
        if !self.memory.covers(self.entries() + reads.len()) {
            return Err(OpError::UNSURE);
        }
        self.behind.reads = Some(reads);
        Ok(())
    }
}

/// Whether `cookie` is of a name that has moved, and is shown behind all copies and the names of this module.
pub(crate) fn is_tail(cookie: u64) -> bool {
    cookie >> TAIL.trailing_zeros() == 1
}

/// Whether `cookie` is that of such a name.
pub(crate) fn is_of(cookie: u64) -> bool {
    (FIRST..TAIL).contains(&cookie)
}

/// Sorts the names `reads` of the directory `dir`, and gives each its cookie.
pub(crate) fn give_cookies(dir: Ino, reads: &mut [Read]) {
    for read in reads.iter_mut() {
        read.cookie = FIRST | hash_name(dir, read.name.to_bytes()) & (FIRST - 1);
    }
    reads.sort_by(|a, b| (a.cookie, &a.name).cmp(&(b.cookie, &b.name)));
    let mut before = FIRST;
    for read in reads {
        read.cookie = read.cookie.max(before + 1).min(TAIL - 1);
        before = read.cookie;
    }
}
