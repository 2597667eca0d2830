//! How many system calls a thread has made, by call.

use std::cell::Cell;

use crate::call::Call;

thread_local! {
    /// How many calls in all, times 256, and which was the last one, plus 1.
    static LAST: Cell<u64> = const { Cell::new(0) };
    static MADE: [Cell<u64>; Call::COUNT] = const { [const { Cell::new(0) }; Call::COUNT] };
}

/// A thread's system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts([u64; Call::COUNT]);

impl Counts {
    /// Calls of this kind.
    pub fn of(&self, call: Call) -> u64 {
        self.0[call as usize]
    }

    /// All calls.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

pub(crate) fn one(call: Call) {
    LAST.with(|last| last.set(((last.get() >> 8) + 1) << 8 | (call as u64 + 1)));
    MADE.with(|made| made[call as usize].set(made[call as usize].get() + 1));
}

/// How many calls the calling thread has made so far, and which was the last.
pub fn last() -> (u64, Option<Call>) {
    let last = LAST.get();
    let which = usize::try_from(last & 0xff).unwrap_or(0).checked_sub(1);
    (last >> 8, which.and_then(|at| Call::ALL.get(at)).copied())
}

/// Counts of the calling thread so far.
pub fn this_thread() -> Counts {
    MADE.with(|made| Counts(std::array::from_fn(|at| made[at].get())))
}

/// Runs `work` on the calling thread: its result, and the system calls that it made through this crate.
pub fn scope<T>(work: impl FnOnce() -> T) -> (T, Counts) {
    let before = this_thread();
    let result = work();
    let after = this_thread();
    (result, Counts(std::array::from_fn(|at| after.0[at] - before.0[at])))
}
