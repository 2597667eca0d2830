//! Counts system calls per thread and per call.

use std::cell::Cell;

use crate::call::Call;

thread_local! {
    /// Number of calls so far times 256, plus the last call's number and 1.
    static LAST: Cell<u64> = const { Cell::new(0) };
    static MADE: [Cell<u64>; Call::COUNT] = const { [const { Cell::new(0) }; Call::COUNT] };
}

/// System calls of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts([u64; Call::COUNT]);

impl Counts {
    /// Number of calls of this kind.
    pub fn of(&self, call: Call) -> u64 {
        self.0[call as usize]
    }

    /// Number of calls of all kinds.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

pub(crate) fn one(call: Call) {
    LAST.with(|last| last.set(((last.get() >> 8) + 1) << 8 | (call as u64 + 1)));
    MADE.with(|made| made[call as usize].set(made[call as usize].get() + 1));
}

/// Returns how many calls the calling thread has made so far, and the last one.
pub fn last() -> (u64, Option<Call>) {
    let last = LAST.get();
    let which = usize::try_from(last & 0xff).unwrap_or(0).checked_sub(1);
    (last >> 8, which.and_then(|at| Call::ALL.get(at)).copied())
}

/// Counts of the calling thread so far.
pub fn this_thread() -> Counts {
    MADE.with(|made| Counts(std::array::from_fn(|at| made[at].get())))
}

/// Runs `work` on the calling thread. Returns its result and the system calls it made through this crate.
pub fn scope<T>(work: impl FnOnce() -> T) -> (T, Counts) {
    let before = this_thread();
    let result = work();
    let after = this_thread();
    (result, Counts(std::array::from_fn(|at| after.0[at] - before.0[at])))
}
