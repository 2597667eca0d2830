//! Threads, locks, atomics and clocks of the crates above.
//!
//! In a normal build each name is that of std or `parking_lot` itself. With the feature `shuttle` it is one with the same
//! methods that hands every step to the model checker, so that a model runs the code that ships. Time is then a counter
//! that only sleeps and timeouts advance ([`model`]).

#[cfg(feature = "shuttle")]
pub mod model;
#[cfg(feature = "shuttle")]
mod modelled;
pub mod ranked;

#[cfg(feature = "shuttle")]
pub use modelled::{
    LocalKey, ShuttleKey, atomic, locks::Condvar, locks::Mutex, locks::MutexGuard, locks::RwLock,
    locks::RwLockReadGuard, locks::RwLockWriteGuard, locks::WaitTimeoutResult, mpsc, thread, time,
};
#[cfg(not(feature = "shuttle"))]
pub use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};
#[cfg(feature = "shuttle")]
pub use shuttle::sync::Barrier;
#[cfg(not(feature = "shuttle"))]
pub use std::{
    sync::{Barrier, atomic, mpsc},
    thread, thread_local, time,
};

/// Atomics of std in every build: for counters and bits whose order no model looks at.
pub mod unmodelled {
    pub use std::sync::atomic;
}
