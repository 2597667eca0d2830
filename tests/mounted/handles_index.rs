//! The index of an exported pool fails during use.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use fsstack_lab::{self as lab, MiB, needs};
use fsstack_sys::{Errno, OFlags};

use crate::handles::{check, forget, grow, hold, moved, open};
use crate::handles_elsewhere::index;
use crate::script::sh;

/// Waits until the handle opens; until then it is unreachable, never stale.
#[track_caller]
pub(crate) fn comes_back(pool: &fsstack_lab::Pool, held: &crate::handles::HeldHandle) {
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
    // A file moved now is found too, by the same daemon.
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

/// A branch is scanned for the first time, for directories' marks, when no file is marked yet. Then one is, and the
/// daemon is killed and the index lost before the scan ends.
#[test]
fn a_file_that_is_moved_to_a_branch_that_is_being_looked_through_keeps_its_number() {
    needs!(mounting(), loops(), drop_caches());
    let pool = lab::pool().xfs_branch("x", MiB(310)).xfs_branch("y", MiB(400)).option("create=ff");
    let mut pool = pool.option("write-path=stacked").option("nfs-export").unmounted();
    sh(pool.branch("y").path(), "mkdir -p m/{1..400}/{1..300}");
    sh(pool.branch("x").path(), "mkdir d; touch d/film");
    pool.branch("x").fill_until_free(MiB(12));
    pool.remount();
    let mut held = hold(&pool, "d/film");
    held.content = None;
    grow(&pool, "d/film");
    assert!(!index(&pool).starts_with("complete"), "the look is over before the test is under way");
    pool.kill_daemon();
    pool.unmount();
    sh(pool.state_dir(), "rm */index.redb");
    pool.remount();
    assert_eq!(fs::metadata(pool.at("d/film")).unwrap().ino(), held.ino);
    comes_back(&pool, &held);
}
