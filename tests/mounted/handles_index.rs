//! The index of an exported pool fails while the pool is in use.

use std::fs;
use std::time::{Duration, Instant};

use fsstack_lab::needs;
use fsstack_sys::{Errno, OFlags};

use crate::handles::{check, forget, grow, hold, moved, open};
use crate::script::sh;

/// Waits until the handle opens; until then it is out of reach, never stale.
#[track_caller]
fn comes_back(pool: &fsstack_lab::Pool, held: &crate::handles::Held) {
    let began = Instant::now();
    while let Err(error) = open(pool, held, OFlags::PATH) {
        assert_eq!(error, Errno::NOMEM);
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    check(pool, held);
}

#[test]
fn a_database_that_is_emptied_under_the_pool_is_made_anew() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, held) = moved();
    pool.remount();
    sh(pool.state_dir(), "truncate -s 0 */index.redb");
    forget();
    comes_back(&pool, &held);
    // What is moved now is found too, and the daemon is the same all the while.
    let daemon = pool.daemon();
    pool.write("d/reel", b"");
    let mut other = hold(&pool, "d/reel");
    other.content = None;
    grow(&pool, "d/reel");
    forget();
    comes_back(&pool, &other);
    assert_eq!(pool.daemon().pid, daemon.pid);
    assert!(fs::metadata(pool.at("d/film")).is_ok());
    pool.remount();
    for held in [&held, &other] {
        comes_back(&pool, held);
    }
}
