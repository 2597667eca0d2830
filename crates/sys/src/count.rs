//! How many system calls a thread has made, by call.

use std::cell::Cell;

use crate::call::Call;

thread_local! {
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
    MADE.with(|made| made[call as usize].set(made[call as usize].get() + 1));
}

/// What the calling thread has done so far.
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
