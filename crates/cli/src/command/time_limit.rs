//! Time limit for requests that may hang.

use std::time::Duration;

use fsstack_sync::mpsc;

/// Time limit for all requests to a file system.
pub(crate) const HUNG_AFTER: Duration = Duration::from_secs(5);

/// Runs `ask` on its own thread; `None` if it hangs. A stuck thread ends with the process, or keeps it alive.
pub(crate) fn unless_it_hangs<T: Send + 'static>(
    timeout: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (result, answer) = mpsc::channel();
    fsstack_sync::thread::spawn(move || result.send(ask()));
    answer.recv_timeout(timeout).ok()
}
