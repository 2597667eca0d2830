//! Drains that outlive the daemon: an attribute of the branch's root says that the branch is being emptied.
//!
//! It is there from before the branch takes nothing new until the operator cancels the job, gives the branch a mode or removes it.
//! A mount that finds it makes the branch NC and begins the job again, which costs a walk if nothing is left.
//!
//! The mark names the pool and the branch. One that names others was copied there, or came with a branch from another pool: it
//! means nothing, and is removed.
//!
//! Value: 1, the pool's id, the branch's id in 2 bytes, bytes a second at most as 8 bytes (0 for no limit), and the ids of the targets, 2 bytes
//! each, none for all; little-endian. The four highest bits of the rate: copies are read back; files make way; hidden objects are set
//! aside; hidden objects are removed. Version 0.1 wrote it without what comes before the rate, an even number of bytes; that counts
//! on a branch that is no copy (`root_mark.rs`). With 2 as the first byte two minutes of the day follow the rate, 2 bytes each: the
//! window in which files move.

use std::ffi::CStr;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_branch::error::Result;
use fsstack_pool::{BranchIx, BranchMode, DayMinute, Window};
use fsstack_sys::Errno;
use fsstack_sys::file::sync_dir;
use fsstack_sys::xattr::{self, On};

use super::Jobs;
use super::{DrainOrder, HiddenCopies, JobList, Manner};
use crate::member::Member;
use crate::pool::Pool;

/// The attribute of a branch's root.
const ATTRIBUTE: &CStr = c"trusted.fsstack.drain";

/// Bit of the rate: copies are read back.
const VERIFY: u64 = 1 << 63;
/// Bit of the rate: files that are open by passthrough make way. A daemon that does not know it takes it for a very high rate.
const MAKE_WAY: u64 = 1 << 62;
/// Bits of the rate: hidden objects are set aside, or removed. A daemon that does not know them leaves the objects where they are.
const MOVE_HIDDEN: u64 = 1 << 61;
const DELETE_HIDDEN: u64 = 1 << 60;
const BITS: u64 = VERIFY | MAKE_WAY | MOVE_HIDDEN | DELETE_HIDDEN;

/// First byte of a mark that names its pool and branch.
const NAMED: u8 = 1;
/// First byte of one that has a window too.
const WINDOWED: u8 = 2;

/// The branch that is being drained, of a pool. A pool without an id has zeros.
type Subject = ([u8; 16], u16);

/// In place of the id of a pool that has none.
const NO_POOL: [u8; 16] = [0; 16];

/// Content of the attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Remembered {
    /// None: version 0.1 wrote it.
    of: Option<Subject>,
    rate: Option<NonZeroU64>,
    verify: bool,
    make_way: bool,
    hidden: HiddenCopies,
    window: Option<Window>,
    targets: Vec<u16>,
}

impl Remembered {
    fn encode(&self) -> Vec<u8> {
        let bit = |set, bit| if set { bit } else { 0 };
        let hidden = match self.hidden {
            HiddenCopies::Stop => 0,
            HiddenCopies::Move => MOVE_HIDDEN,
            HiddenCopies::Delete => DELETE_HIDDEN,
        };
        let rate = self.rate.map_or(0, NonZeroU64::get) & !BITS;
        let rate = rate | bit(self.verify, VERIFY) | bit(self.make_way, MAKE_WAY) | hidden;
        let mut value = Vec::new();
        if let Some((pool, branch)) = self.of {
            value.push(if self.window.is_some() { WINDOWED } else { NAMED });
            value.extend_from_slice(&pool);
            value.extend_from_slice(&branch.to_le_bytes());
        }
        value.extend_from_slice(&rate.to_le_bytes());
        if let (Some(_), Some(window)) = (self.of, self.window) {
            value.extend([window.from(), window.to()].iter().flat_map(|at| at.minutes().to_le_bytes()));
        }
        value.extend(self.targets.iter().flat_map(|id| id.to_le_bytes()));
        value
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let is_windowed = value.first() == Some(&WINDOWED);
        let (of, value) = match value.split_first_chunk::<19>() {
            Some(([NAMED | WINDOWED, pool @ .., low, high], rest)) if value.len() % 2 == 1 => {
                (Some((*pool, u16::from_le_bytes([*low, *high]))), rest)
            }
            _ => (None, value),
        };
        let (rate, ids) = value.split_first_chunk::<8>()?;
        let (ids, []) = ids.as_chunks::<2>() else { return None };
        let (window, ids) = match (of, ids) {
            (Some(_), [from, to, ids @ ..]) if is_windowed => {
                let minute = |bytes: &[u8; 2]| DayMinute::new(u16::from_le_bytes(*bytes));
                (Window::new(minute(from), minute(to)), ids)
            }
            (Some(_), _) if is_windowed => return None,
            (_, ids) => (None, ids),
        };
        let targets = ids.iter().map(|id| u16::from_le_bytes(*id)).collect();
        let rate = u64::from_le_bytes(*rate);
        let (verify, make_way) = (rate & VERIFY != 0, rate & MAKE_WAY != 0);
        let hidden = match rate & (MOVE_HIDDEN | DELETE_HIDDEN) {
            MOVE_HIDDEN => HiddenCopies::Move,
            DELETE_HIDDEN => HiddenCopies::Delete,
            _ => HiddenCopies::Stop,
        };
        let rate = NonZeroU64::new(rate & !BITS);
        Some(Self { of, rate, verify, make_way, hidden, window, targets })
    }
}

/// No mount begins to empty `branch` again.
///
/// # Errors
/// It is still remembered.
pub(crate) fn forget(branch: &Branch) -> Result<()> {
    let root = branch.root();
    let forgotten = branch.ask(|| {
        xattr::remove(On::Fd(root.as_fd()), ATTRIBUTE)?;
        sync_dir(root.as_fd())
    });
    match forgotten {
        Err(error) if matches!(error.errno(), Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(error) => {
            tracing::warn!(%error, branch = %branch.path.display(), "the drain mark of the branch cannot be removed; the next mount starts the drain again");
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

fn of(branch: &Member) -> Option<Remembered> {
    let root = branch.root();
    let value = branch.ask(|| xattr::get_vec(On::Fd(root.as_fd()), ATTRIBUTE)).ok()?;
    Remembered::parse(&value)
}

impl Jobs {
    /// Begins jobs again that were interrupted, and the drains that an earlier daemon did not end, whose branches take nothing new.
    pub(crate) fn resume_all(self: &Arc<Self>) {
        // First: a drain that was done long ago keeps its mark, and would exclude them.
        self.resume_interrupted();
        let pool = self.pool();
        for branch in
            pool.branches.iter().filter(|branch| branch.is_writable() && !self.list.drains(branch.ix))
        {
            self.resume_drain(&pool, branch);
        }
    }

    /// Begins the drain of `branch` again, if the branch knows of one. What keeps it from beginning is logged.
    fn resume_drain(self: &Arc<Self>, pool: &Pool, branch: &Member) {
        let Some(known) = of(branch) else { return };
        let Remembered { of, rate, verify, make_way, hidden, window, targets } = known;
        self.list.note_drain_mark(branch.ix);
        let path = branch.path.display();
        let subject = (self.id.map_or(NO_POOL, |id| id.0), branch.id.get());
        if self.id.is_none() && of.is_some_and(|(pool, _)| pool != NO_POOL) {
            tracing::warn!(branch = %path, "drain not resumed: no branch tells the pool's id now; the next mount tries again");
            return;
        }
        if of.is_some_and(|of| of != subject) {
            tracing::warn!(branch = %path, "drain not resumed: the drain mark is that of another branch or pool; start it with fsstack branch drain if it is meant");
            let _reported = forget(branch);
            return;
        }
        if self.changes.set_branch_mode(branch.ix, BranchMode::NoCreate).is_err() {
            return;
        }
        let found = |id: &u16| pool.branches.iter().find(|other| other.id.get() == *id);
        let to: Option<Vec<BranchIx>> = targets.iter().map(|id| found(id).map(|other| other.ix)).collect();
        let Some(to) = to else {
            tracing::warn!(branch = %path, "drain not resumed: a branch that takes its files is not in the pool; start it with fsstack branch drain");
            return;
        };
        let manner = Manner { rate, verify, make_way, dry_run: false };
        let order = DrainOrder { from: branch.ix, to, hidden, manner, window };
        if let Err(error) = self.begin_drain(order, Self::drain_again) {
            tracing::warn!(%error, branch = %path, "drain not resumed; start it with fsstack branch drain");
        }
    }

    /// The drain of `order` outlives the daemon from now on.
    ///
    /// # Errors
    /// The branch does not keep it.
    pub(super) fn remember_drain(&self, order: &DrainOrder) -> Result<()> {
        let pool = self.pool();
        let branch = pool.branch(order.from);
        let targets = order.to.iter().map(|at| pool.branch(*at).id.get()).collect();
        let Manner { rate, verify, make_way, .. } = order.manner;
        let of = Some((self.id.map_or(NO_POOL, |id| id.0), branch.id.get()));
        let (hidden, window) = (order.hidden, order.window);
        let value = Remembered { of, rate, verify, make_way, hidden, window, targets }.encode();
        let root = branch.root();
        self.list.note_drain_mark(order.from);
        branch.ask(|| {
            xattr::set(On::Fd(root.as_fd()), ATTRIBUTE, &value, 0)?;
            sync_dir(root.as_fd())
        })
    }

    /// The drain of the branch is over for good, if there was one: the operator wants something else of the branch.
    pub(crate) fn forget_drain(&self, ix: BranchIx) {
        // Without one nothing is asked of the branch, which may hang.
        if let Some(branch) = self.pool().live(ix)
            && self.list.take_drain_mark(ix)
            && forget(branch).is_err()
        {
            self.list.note_drain_mark(ix);
        }
    }
}

impl JobList {
    /// The root of the branch `ix` has a drain mark, or may have one.
    pub(crate) fn note_drain_mark(&self, ix: BranchIx) {
        self.state.lock().marked.insert(ix);
    }

    /// Whether a drain mark was noted for the branch; from now on none is.
    pub(crate) fn take_drain_mark(&self, ix: BranchIx) -> bool {
        self.state.lock().marked.remove(&ix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_read_as_it_was_written() {
        for (rate, targets) in [(None, vec![]), (NonZeroU64::new(300 << 10), vec![1, 0x7fff])] {
            for of in [None, Some(([9; 16], 0x0102)), Some((NO_POOL, 1))] {
                for window in [None, "22:00-06:30".parse().ok().filter(|_| of.is_some())] {
                    let (verify, targets) = (rate.is_some(), targets.clone());
                    let make_way = window.is_some();
                    for hidden in [HiddenCopies::Stop, HiddenCopies::Move, HiddenCopies::Delete] {
                        let targets = targets.clone();
                        let remembered = Remembered { of, rate, verify, make_way, hidden, window, targets };
                        assert_eq!(Remembered::parse(&remembered.encode()), Some(remembered));
                    }
                }
            }
        }
        for bad in [&b""[..], b"1234567", b"123456789", &[1; 21]] {
            assert_eq!(Remembered::parse(bad), None);
        }
    }
}
