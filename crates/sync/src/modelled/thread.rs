//! Threads of a model.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use shuttle::thread as model;
pub use shuttle::thread::{Scope, ScopedJoinHandle, Thread, ThreadId, current, park, scope, yield_now};
pub use std::thread::{Result, panicking};

/// Like std's.
#[derive(Debug, Default)]
pub struct Builder(model::Builder);

/// Like std's.
#[derive(Debug)]
pub struct JoinHandle<T> {
    thread: model::JoinHandle<T>,
    has_ended: Arc<AtomicBool>,
}

impl Builder {
    /// Describes a thread.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives it a name.
    #[must_use]
    pub fn name(self, name: String) -> Self {
        Self(self.0.name(name))
    }

    /// Changes nothing: a model's threads have stacks of one size.
    #[must_use]
    pub fn stack_size(self, _: usize) -> Self {
        self
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// None.
    pub fn spawn<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let has_ended = Arc::<AtomicBool>::default();
        let ends = has_ended.clone();
        let thread = self.0.spawn(move || {
            let done = work();
            ends.store(true, SeqCst);
            done
        })?;
        Ok(JoinHandle { thread, has_ended })
    }
}

impl Builder {
    /// Starts it in `scope`.
    ///
    /// # Errors
    ///
    /// None.
    pub fn spawn_scoped<'scope, T: Send + 'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        Ok(scope.spawn(work))
    }
}

impl<T> JoinHandle<T> {
    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// It panicked.
    pub fn join(self) -> Result<T> {
        self.thread.join()
    }

    /// The thread.
    pub fn thread(&self) -> &Thread {
        self.thread.thread()
    }

    /// True if its work is done.
    pub fn is_finished(&self) -> bool {
        self.has_ended.load(SeqCst)
    }
}

/// Starts a thread.
///
/// # Panics
///
/// Never.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match Builder::new().spawn(work) {
        Ok(thread) => thread,
        Err(error) => panic!("a model's thread does not start: {error}"),
    }
}

/// Lets others run; the model's time advances by `time`.
pub fn sleep(time: Duration) {
    super::time::pass(time);
    // Fair to those that a loop with a sleep waits for.
    yield_now();
}
