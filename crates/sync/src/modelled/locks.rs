//! Locks with the methods of `parking_lot`, on those of shuttle.
//!
//! A wait with a timeout lets others run, tries once more, and then ends: the model's time advances by the timeout. So a
//! thread that is never notified is found only where it waits without one.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Duration;

use shuttle::sync as model;

use super::time::{Instant, pass};

/// Like `parking_lot`'s.
#[derive(Debug, Default)]
pub struct Mutex<T>(model::Mutex<T>);

/// A mutex, held.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// None while a condition variable is waited for.
    guard: Option<model::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// Makes an unlocked mutex.
    #[track_caller]
    pub const fn new(value: T) -> Self {
        Self(model::Mutex::new(value))
    }

    /// Takes the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { mutex: self, guard: Some(guard) }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.0.try_lock().ok()?;
        Some(MutexGuard { mutex: self, guard: Some(guard) })
    }

    /// Takes the lock, or ends after a while.
    pub fn try_lock_for(&self, timeout: Duration) -> Option<MutexGuard<'_, T>> {
        within(timeout, || self.try_lock())
    }

    /// Returns the value; exclusive access needs no lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> MutexGuard<'_, T> {
    /// Runs `work` with the mutex unlocked.
    pub fn unlocked<R>(guard: &mut Self, work: impl FnOnce() -> R) -> R {
        guard.guard = None;
        let done = work();
        guard.guard = guard.mutex.lock().guard;
        done
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.guard {
            Some(guard) => guard,
            None => unreachable!("a mutex is used while its condition variable is waited for"),
        }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.guard {
            Some(guard) => guard,
            None => unreachable!("a mutex is used while its condition variable is waited for"),
        }
    }
}

/// Like `parking_lot`'s.
#[derive(Debug, Default)]
pub struct Condvar(model::Condvar);

/// Whether a wait ended without a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// True if it did.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Makes a condition variable.
    pub const fn new() -> Self {
        Self(model::Condvar::new())
    }

    /// Waits for a notification.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.guard.take() {
            guard.guard = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Waits until `condition` is false.
    pub fn wait_while<T>(&self, guard: &mut MutexGuard<'_, T>, mut condition: impl FnMut(&mut T) -> bool) {
        while condition(guard) {
            self.wait(guard);
        }
    }

    /// Lets others run for `timeout`.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> WaitTimeoutResult {
        MutexGuard::unlocked(guard, || super::thread::sleep(timeout));
        WaitTimeoutResult(true)
    }

    /// Lets others run until `deadline`.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> WaitTimeoutResult {
        self.wait_for(guard, deadline - Instant::now())
    }

    /// Wakes one thread.
    pub fn notify_one(&self) -> bool {
        self.0.notify_one();
        true
    }

    /// Wakes all threads.
    pub fn notify_all(&self) -> usize {
        self.0.notify_all();
        0
    }
}

/// Like `parking_lot`'s.
#[derive(Debug, Default)]
pub struct RwLock<T>(model::RwLock<T>);

/// A lock, held shared.
pub type RwLockReadGuard<'a, T> = model::RwLockReadGuard<'a, T>;
/// A lock, held alone.
pub type RwLockWriteGuard<'a, T> = model::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    /// Makes an unlocked lock.
    #[track_caller]
    pub const fn new(value: T) -> Self {
        Self(model::RwLock::new(value))
    }

    /// Shares the lock.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock alone.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shares the lock if nobody has it alone.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read().ok()
    }

    /// Like [`Self::try_read`].
    pub fn try_read_recursive(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.try_read()
    }

    /// Takes the lock alone if it is free.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok()
    }

    /// Shares the lock, or ends after a while.
    pub fn try_read_for(&self, timeout: Duration) -> Option<RwLockReadGuard<'_, T>> {
        within(timeout, || self.try_read())
    }

    /// Like [`Self::try_read_for`].
    pub fn try_read_recursive_for(&self, timeout: Duration) -> Option<RwLockReadGuard<'_, T>> {
        self.try_read_for(timeout)
    }

    /// Takes the lock alone, or ends after a while.
    pub fn try_write_for(&self, timeout: Duration) -> Option<RwLockWriteGuard<'_, T>> {
        within(timeout, || self.try_write())
    }

    /// Returns the value; exclusive access needs no lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

fn within<T>(timeout: Duration, attempt: impl Fn() -> Option<T>) -> Option<T> {
    attempt().or_else(|| {
        super::thread::yield_now();
        attempt().or_else(|| {
            pass(timeout);
            None
        })
    })
}
