//! Walks for the catalogue beside programs that go on changing names.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use fsstack_lab::{self as lab, needs};

use crate::catalogue::until_complete;

/// A name changes each millisecond: a walk that listed a directory at a time between changes would take ten minutes.
#[test]
fn a_walk_ends_beside_steady_changes() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").option("catalogue=on").unmounted();
    for n in 0..600 {
        fs::create_dir_all(pool.branch("a").path().join(format!("dir-{n}/below"))).unwrap();
    }
    pool.remount();
    pool.mkdir("changing");
    let (at, is_over) = (pool.at("changing"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..100).cycle() {
                if is_over.load(Relaxed) {
                    return;
                }
                fs::write(at.join(format!("f{n}")), "").unwrap();
                std::thread::sleep(Duration::from_millis(1));
                fs::remove_file(at.join(format!("f{n}"))).unwrap();
            }
        });
        // A failed wait must end the other thread too.
        let known = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| until_complete(&pool)));
        is_over.store(true, Relaxed);
        known.unwrap();
    });
}
