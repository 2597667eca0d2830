//! The index of an exported pool fails during use.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use fsstack_lab::{self as lab, MiB, Pool, needs};
use fsstack_sys::{Errno, OFlags};

use crate::handles::{HeldHandle, check, forget, grow, hold, moved, open};
use crate::handles_elsewhere::index;
use crate::script::sh;

/// Waits until the handle opens; until then it is unreachable, never stale.
#[track_caller]
pub(crate) fn comes_back(pool: &Pool, held: &HeldHandle) {
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
///
/// How long a scan takes depends on the machine: one that is over too early is made anew over more directories.
#[test]
fn a_file_that_is_moved_to_a_branch_that_is_being_looked_through_keeps_its_number() {
    needs!(mounting(), loops(), drop_caches());
    let scanned = [400, 1600].into_iter().find_map(killed_under_the_scan);
    let (mut pool, held) = scanned.expect("the scan takes longer than one file's move");
    pool.remount();
    assert_eq!(fs::metadata(pool.at("d/film")).unwrap().ino(), held.ino);
    comes_back(&pool, &held);
}

/// Kills the daemon after a file moved to a branch of `wide` times 300 directories; `None` if they were scanned before that.
fn killed_under_the_scan(wide: u32) -> Option<(Pool, HeldHandle)> {
    let pool = lab::pool().xfs_branch("x", MiB(310)).xfs_branch("y", MiB(1000)).option("create=ff");
    let mut pool = pool.option("write-path=stacked").option("nfs-export").unmounted();
    sh(pool.branch("y").path(), &format!("mkdir -p m/{{1..{wide}}}/{{1..300}}"));
    sh(pool.branch("x").path(), "mkdir d; touch d/film");
    pool.branch("x").fill_until_free(MiB(0));
    pool.remount();
    let mut held = hold(&pool, "d/film");
    held.content = None;
    fs::write(pool.at("d/film"), lab::zeros(MiB(4))).unwrap();
    let is_under_way = !index(&pool).starts_with("complete");
    pool.kill_daemon();
    pool.unmount();
    assert_eq!(pool.holders("d/film"), ["y"]);
    sh(pool.state_dir(), "rm */index.redb");
    is_under_way.then_some((pool, held))
}
