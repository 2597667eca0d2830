//! File handles where the number of a moved file is used again on the branch that it was moved from.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use fsstack_lab::{self as lab, Pool, needs};
use fsstack_sys::{Errno, OFlags};

use crate::handles::{Held, check, check_stale, forget, hold, moved, open};
use crate::script::sh;

/// The name of what `make` makes on `x` in the place of the moved file: with its inode number there.
pub(crate) fn in_its_place(pool: &Pool, held: &Held, make: impl Fn(&Path)) -> Option<String> {
    pool.branch("x").drop_ballast();
    let number = held.ino & ((1 << 48) - 1);
    let mut names = (0..2000).map(|n| format!("n{n}"));
    let found = names.find(|name| {
        // XFS frees inodes some time after their last name is gone.
        std::thread::sleep(Duration::from_millis(1));
        let path = pool.branch("x").path().join(name);
        make(&path);
        fs::symlink_metadata(path).unwrap().ino() == number
    });
    if found.is_none() {
        lab::Skip::because("XFS did not use the number again").announce();
    }
    found
}

#[test]
fn a_new_file_never_has_the_number_of_one_that_was_moved_away() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, held) = moved();
    let Some(again) = in_its_place(&pool, &held, |path| fs::write(path, "new").unwrap()) else { return };
    let new = hold(&pool, &again);
    assert_ne!(new.ino, held.ino);
    for _ in 0..2 {
        check(&pool, &held);
        check(&pool, &new);
        forget();
        check(&pool, &new);
        check(&pool, &held);
        pool.remount();
    }
    is_found_without_the_index(&mut pool, &new);
    is_found_at_last(&pool, &held);
}

#[test]
fn a_new_directory_never_has_the_number_of_a_file_that_was_moved_away() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, held) = moved();
    let Some(again) = in_its_place(&pool, &held, |path| fs::create_dir(path).unwrap()) else { return };
    let new = hold(&pool, &again);
    assert_ne!(new.ino, held.ino);
    for _ in 0..2 {
        forget();
        check(&pool, &new);
        forget();
        check(&pool, &held);
        pool.remount();
    }
    // It keeps its other number when the file is gone.
    fs::remove_file(pool.at("d/film")).unwrap();
    for _ in 0..2 {
        forget();
        check(&pool, &new);
        assert_eq!(fs::metadata(pool.at(&again)).unwrap().ino(), new.ino);
        check_stale(&pool, &held);
        pool.remount();
    }
    is_found_without_the_index(&mut pool, &new);
}

/// A new file that has just been given another number than its branch says, and the daemon is killed.
#[test]
fn another_number_outlives_a_crash_at_once() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, held) = moved();
    let Some(again) = in_its_place(&pool, &held, |path| fs::write(path, "new").unwrap()) else { return };
    let new = hold(&pool, &again);
    pool.kill_daemon();
    pool.remount();
    check(&pool, &new);
    check(&pool, &held);
}

/// The index is lost and made anew: until then the object is out of reach, never stale.
#[track_caller]
fn is_found_without_the_index(pool: &mut Pool, held: &Held) {
    pool.unmount();
    sh(pool.state_dir(), "rm */index.redb");
    pool.remount();
    forget();
    is_found_at_last(pool, held);
}

#[track_caller]
fn is_found_at_last(pool: &Pool, held: &Held) {
    let began = Instant::now();
    while let Err(error) = open(pool, held, OFlags::PATH) {
        assert_eq!(error, Errno::NOMEM);
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    check(pool, held);
}
