//! Cookies of listings: the number of a branch, and a place in that branch's own directory.

use fsstack_identity::number::mix;
use fsstack_pool::BranchId;

use crate::pool::Pool;

/// Cookies of "." and "..", which the pool makes itself.
pub(crate) const DOT: u64 = 1;
pub(crate) const DOT_DOT: u64 = 2;

/// The first cookie that is good in one handle only. Others have the id of a branch in their high bits.
pub(super) const FIRST_OWN: u64 = 3;

/// The first cookie of entries that are shown at the end (`followed.rs`).
pub(crate) const TAIL: u64 = 1 << 47;

pub(super) const PLACE_BITS: u32 = 48;
/// A place that did not fit: the cookie has a hash of it, or its high bits where those will do.
pub(super) const WIDE: u64 = 1 << (PLACE_BITS - 1);
/// ext4's offsets are hashes of 63 bits in ascending order (small offsets where it has no hashed directories). Without the
/// low ones two names may share an offset: one of them may then be listed twice when a reader resumes between them, and none
/// is left out.
pub(super) const HASHED_SHIFT: u32 = 17;

pub(super) fn branch_of(cookie: u64) -> Option<BranchId> {
    u16::try_from(cookie >> PLACE_BITS).ok().and_then(BranchId::new)
}

/// The turn of the branch that `cookie` is of.
pub(crate) fn turn_of(pool: &Pool, cookie: u64) -> Option<usize> {
    branch_of(cookie).and_then(|id| pool.turn_of(id))
}

pub(super) fn wide(off: u64) -> u64 {
    WIDE | mix(off) & (WIDE - 1)
}
