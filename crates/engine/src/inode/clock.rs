//! A clock that counts what threads of the pool change of directories' copies and of names: an answer of the branches says nothing of
//! what was changed after its question was put.

use fsstack_sync::atomic::AtomicU64;
use fsstack_sync::atomic::Ordering::SeqCst;

static CHANGES: AtomicU64 = AtomicU64::new(1);

/// Moments of the last renames and removals of names, in slots by the object's number. Where objects share a slot, a lookup of one
/// may keep the name that was known until the next lookup.
static RENAMED: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// A moment on the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Before all changes.
    pub(super) const NEVER: Self = Self(0);
    /// Moment of what is known for sure, not by an answer of the branches.
    pub(crate) const KNOWN: Self = Self(u64::MAX);

    /// A question that is put now.
    pub fn now() -> Self {
        Self(CHANGES.load(SeqCst))
    }

    /// A change that happens now: questions up to now are older.
    pub(crate) fn of_change() -> Self {
        Self(CHANGES.fetch_add(1, SeqCst) + 1)
    }

    /// Records that the object `number` is renamed now. The caller has its state locked.
    pub(super) fn renames(number: u64) -> Self {
        let now = Self::of_change();
        slot(number).fetch_max(now.0, SeqCst);
        now
    }

    /// Whether the object `number` may have been renamed since. The caller has its state locked.
    pub(super) fn is_before_rename(self, number: u64) -> bool {
        self.0 < slot(number).load(SeqCst)
    }
}

fn slot(number: u64) -> &'static AtomicU64 {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    &RENAMED[usize::try_from(hash).unwrap_or(0)]
}
