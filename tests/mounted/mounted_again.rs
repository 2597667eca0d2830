//! A branch that is mounted again while calls are stuck in its old mount, whose server is frozen: the new mount is used as if
//! nobody were. On both transports.

use std::fs;
use std::thread;

use fsstack_lab::pool::Builder;
use fsstack_lab::{Pool, needs};

use crate::hung_branches::{Frozen, described, filled, until};

/// Permits of the branch.
const PERMITS: usize = 4;

fn errno_of(path: &std::path::Path) -> Option<i32> {
    fs::read(path).err().and_then(|error| error.raw_os_error())
}

/// Has `callers` programs ask the frozen branch at once, and waits until all of them are answered.
fn stuck(pool: &Pool, callers: usize) {
    let asked: Vec<_> = (0..callers)
        .map(|n| {
            let file = pool.at(format!("on-a/{n}"));
            thread::spawn(move || errno_of(&file))
        })
        .collect();
    asked.into_iter().for_each(|asked| assert_eq!(asked.join().unwrap(), Some(5)));
}

fn is_used_whatever_is_stuck(builder: Builder, callers: usize) {
    let mut pool = filled(builder);
    let frozen = Frozen::new(pool.branch("a").daemon());
    stuck(&pool, callers);
    pool.branch_mut("a").unmount_lazily();
    pool.branch_mut("a").remount();
    until("the branch is used again", || fs::read(pool.at("on-a/30")).is_ok());
    // By as many as may be inside, and by those who wait for them.
    for _ in 0..10 {
        let asked: Vec<_> = (0..3 * PERMITS)
            .map(|n| {
                let file = pool.at(format!("on-a/{}", 28 + n));
                thread::spawn(move || errno_of(&file))
            })
            .collect();
        asked.into_iter().for_each(|asked| assert_eq!(asked.join().unwrap(), None));
    }
    frozen.0.kill().unwrap();
}

fn few(transport: &str) -> Builder {
    described().option(&format!("branch-inflight={PERMITS}")).option(&format!("transport={transport}"))
}

#[test]
fn a_branch_mounted_again_is_used_with_all_permits_stuck_in_the_old_mount_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    is_used_whatever_is_stuck(few("dev"), PERMITS);
}

#[test]
fn a_branch_mounted_again_is_used_with_all_permits_stuck_in_the_old_mount_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    is_used_whatever_is_stuck(few("ring"), PERMITS);
}

#[test]
fn a_branch_mounted_again_is_used_with_twenty_four_calls_stuck_in_the_old_mount_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    is_used_whatever_is_stuck(described().option("transport=dev"), 24);
}

#[test]
fn a_branch_mounted_again_is_used_with_twenty_four_calls_stuck_in_the_old_mount_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    is_used_whatever_is_stuck(described().option("transport=ring"), 24);
}
