//! The names of this crate under shuttle.

pub(crate) mod locks;
pub mod thread;
pub mod time;

use std::cell::{Cell, RefCell};

pub use shuttle::sync::{atomic, mpsc};
#[doc(hidden)]
pub use shuttle::thread::LocalKey as ShuttleKey;

/// A value of each thread of the model.
#[derive(Debug)]
pub struct LocalKey<T: 'static>(#[doc(hidden)] pub ShuttleKey<T>);

impl<T: 'static> LocalKey<T> {
    /// Runs `work` with the thread's value.
    pub fn with<R>(&'static self, work: impl FnOnce(&T) -> R) -> R {
        self.0.with(work)
    }

    /// Like [`Self::with`].
    ///
    /// # Errors
    ///
    /// The thread is ending, and the value is gone.
    pub fn try_with<R>(&'static self, work: impl FnOnce(&T) -> R) -> Result<R, shuttle::thread::AccessError> {
        self.0.try_with(work)
    }
}

impl<T: 'static> LocalKey<Cell<T>> {
    /// Returns the value.
    pub fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.0.with(Cell::get)
    }

    /// Sets the value.
    pub fn set(&'static self, value: T) {
        self.0.with(|cell| cell.set(value));
    }

    /// Sets the value and returns the one before.
    pub fn replace(&'static self, value: T) -> T {
        self.0.with(|cell| cell.replace(value))
    }

    /// Takes the value.
    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.0.with(Cell::take)
    }
}

impl<T: 'static> LocalKey<RefCell<T>> {
    /// Runs `work` with the value.
    pub fn with_borrow<R>(&'static self, work: impl FnOnce(&T) -> R) -> R {
        self.0.with(|cell| work(&cell.borrow()))
    }

    /// Runs `work` with the value, to change it.
    pub fn with_borrow_mut<R>(&'static self, work: impl FnOnce(&mut T) -> R) -> R {
        self.0.with(|cell| work(&mut cell.borrow_mut()))
    }

    /// Sets the value.
    pub fn set(&'static self, value: T) {
        self.0.with(|cell| cell.replace(value));
    }

    /// Takes the value.
    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.0.with(RefCell::take)
    }
}

/// Like std's.
#[macro_export]
macro_rules! thread_local {
    () => {};
    ($(#[$attr:meta])* $vis:vis static $name:ident: $t:ty = const { $init:expr } $(; $($rest:tt)*)?) => {
        $crate::thread_local!(@one $(#[$attr])* $vis $name, $t, $init);
        $($crate::thread_local!($($rest)*);)?
    };
    ($(#[$attr:meta])* $vis:vis static $name:ident: $t:ty = $init:expr $(; $($rest:tt)*)?) => {
        $crate::thread_local!(@one $(#[$attr])* $vis $name, $t, $init);
        $($crate::thread_local!($($rest)*);)?
    };
    (@one $(#[$attr:meta])* $vis:vis $name:ident, $t:ty, $init:expr) => {
        $(#[$attr])* $vis static $name: $crate::LocalKey<$t> =
            $crate::LocalKey($crate::ShuttleKey { init: || $init, _p: std::marker::PhantomData });
    };
}
