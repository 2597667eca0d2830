//! Waiting for an event, with a limit that only a fault reaches.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Limit of a wait, also on a machine under load.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two looks.
const EVENT_LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Waits until `done`; after a minute the test fails with `what` it waited for.
#[track_caller]
pub fn until(what: &str, done: impl FnMut() -> bool) {
    until_within(EVENT_TIMEOUT, what, done);
}

/// Like [`until`], with another limit.
#[track_caller]
pub fn until_within(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < limit, "{what}: waited in vain");
        sleep(EVENT_LOOK_PAUSE);
    }
}
