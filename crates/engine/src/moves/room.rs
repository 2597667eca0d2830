//! Room for a file that moves to a branch.
//!
//! It is reserved for as long as the file is copied, so that two files that move there at once do not both count on it. Both may have
//! seen room before either reserved it: the first to reserve has it, and the other is not copied. A copy may
//! take more than the file does: its own file system may compress it there. Such a copy is given up when it comes to the
//! branch's floor; and a copy that is whole is not named if less than the floor is left.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fsstack_branch::admin_state::{WrittenPart, moving_here};
use fsstack_branch::branch::Branch;
use fsstack_pool::{BranchIx, DirPlacement};
use fsstack_sync::atomic::{AtomicU64, Ordering::Relaxed};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::{self as sys, Call, Errno, Stat, SysError};
use smallvec::SmallVec;

use crate::member::Member;
use crate::moves::batch;
use crate::opened::tables::Files;
use crate::pool::Pool;

/// How often a copy looks how much room is left.
const ROOM_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Floor of the branch, which has `total` bytes, for files of a directory with this placement.
pub(crate) fn floor_of(pool: &Pool, placement: &DirPlacement<'_>, branch: &Branch, total: u64) -> u64 {
    let own = branch.floor().unwrap_or(pool.settings.floor);
    placement.floor(branch.ix, own).bytes_of(total)
}

/// Bytes that are reserved on the branches at one moment.
pub(crate) struct ReservedBytes(SmallVec<[(BranchIx, u64); 8]>);

impl ReservedBytes {
    /// Those of this moment.
    pub(crate) fn of(pool: &Pool) -> Self {
        Self(pool.branches.iter().map(|branch| (branch.ix, branch.reserved())).collect())
    }

    /// Those on the branch `at`.
    pub(crate) fn on(&self, at: BranchIx) -> u64 {
        self.0.iter().find(|(branch, _)| *branch == at).map_or(0, |(_, bytes)| *bytes)
    }
}

/// Room that is reserved for a copy.
pub(crate) struct ReservedRoom<'a> {
    to: &'a Member,
    id: u64,
    bytes: u64,
    floor: u64,
    /// Bytes that were reserved before.
    before: u64,
    written: Arc<AtomicU64>,
    looked: Cell<Instant>,
    is_short: Cell<bool>,
}

impl<'a> ReservedRoom<'a> {
    /// Reserves `bytes` on the branch `to` above `floor`.
    pub(crate) fn new(files: &Files, to: &'a Member, bytes: u64, floor: u64) -> Self {
        let (id, written) = (files.new_handle().0, Arc::new(AtomicU64::new(0)));
        moving_here(to).fetch_add(bytes, Relaxed);
        let before = to.promise(id, bytes, WrittenPart::Counted(written.clone()));
        let (looked, is_short) = (Cell::new(Instant::now()), Cell::new(false));
        Self { to, id, bytes, floor, before, written, looked, is_short }
    }

    /// Whether the room was reserved by others since `known` bytes were: both have seen it, and there is no room for both.
    pub(crate) fn is_taken(&self, known: u64) -> bool {
        known < self.before && self.to.space().is_ok_and(|space| space.available < self.floor)
    }

    /// Whether there is room for more of `copy`. The caller is inside of the branch.
    pub(crate) fn has_more(&self, copy: BorrowedFd<'_>) -> bool {
        if self.looked.get().elapsed() < ROOM_LOOK_INTERVAL {
            return true;
        }
        self.looked.set(Instant::now());
        let Ok(stat) = sys::at::stat_fd(copy) else { return true };
        let taken = stat.blocks.saturating_mul(512);
        self.written.store(taken.min(self.bytes), Relaxed);
        if taken > self.bytes && is_below(copy, &stat, self.floor) {
            self.is_short.set(true);
        }
        !self.is_short.get()
    }

    /// Whether the copy was given up for want of room.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.get()
    }

    /// Checks that the whole `copy` leaves the branch its floor. The caller is inside of the branch.
    ///
    /// # Errors
    /// ENOSPC if it does not.
    pub(crate) fn check(&self, copy: BorrowedFd<'_>) -> Result<(), SysError> {
        let Ok(stat) = sys::at::stat_fd(copy) else { return Ok(()) };
        if stat.size > batch::LARGEST && is_below(copy, &stat, self.floor) {
            return Err(SysError::new(Call::Statfs, Errno::NOSPC));
        }
        Ok(())
    }
}

impl Drop for ReservedRoom<'_> {
    fn drop(&mut self) {
        // The figures that are known may be older than the copy.
        self.to.distrust_space();
        self.to.give_back(self.id, self.bytes);
        moving_here(self.to).fetch_sub(self.bytes, Relaxed);
    }
}

/// Whether less than `floor` is left beside `copy`. A branch that does not tell has room.
fn is_below(copy: BorrowedFd<'_>, stat: &Stat, floor: u64) -> bool {
    let Ok(space) = sys::file::statfs(copy) else { return false };
    // XFS allocates space behind the end of a file that grows, and takes it back when the file is closed.
    let spare = stat.blocks.saturating_mul(512).saturating_sub(stat.size);
    space.available().saturating_add(spare) < floor
}
