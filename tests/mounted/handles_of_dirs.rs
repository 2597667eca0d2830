//! File handles of directories with copies on several branches: copies from before the pool, on branches that join
//! later, and separated out of band.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use fsstack_lab::{self as lab, MiB, Pool, needs};
use fsstack_sys::{Errno, OFlags};

use crate::command::output_of;
use crate::handles::{HeldHandle, check, forget, hold, open};
use crate::script::sh;

/// A pool of `x`, of the branches `x` and `z` that both have a directory `d` from before; `z` has the older one.
fn joined_later() -> (Pool, HeldHandle) {
    let pool = lab::pool().xfs_branch("x", MiB(300)).xfs_branch("z", MiB(300)).option("nfs-export");
    let mut pool = pool.unmounted();
    for branch in ["z", "x"] {
        fs::create_dir(pool.branch(branch).path().join("d")).unwrap();
        fs::write(pool.branch(branch).path().join("d").join(branch), branch).unwrap();
        // The clock of birth times may not advance for milliseconds.
        std::thread::sleep(Duration::from_millis(20));
    }
    pool.remount_of(&["x"]);
    let held = hold(&pool, "d");
    (pool, held)
}

/// Checks that the handle is valid whether the directory is known by name or not, now and after remounts.
#[track_caller]
fn check_always(pool: &mut Pool, held: &HeldHandle) {
    for turn in 0..3 {
        check(pool, held);
        assert_eq!(fs::metadata(pool.at("d")).unwrap().ino(), held.ino, "turn {turn}");
        forget();
        check(pool, held);
        pool.remount();
    }
}

#[test]
fn a_directory_keeps_its_number_when_a_branch_with_an_older_one_joins() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, held) = joined_later();
    for order in [["x", "z"], ["z", "x"]] {
        pool.remount_of(&order);
        check_always(&mut pool, &held);
    }
    let beside = hold(&pool, "d/z");
    // The number survives the removal of the copy that it came from.
    pool.unmount();
    fs::remove_dir_all(pool.branch("x").path().join("d")).unwrap();
    pool.remount();
    check_always(&mut pool, &held);
    check(&pool, &beside);
}

/// A copy made by hand on the first branch, while the pool is not mounted, does not become the first copy.
#[test]
fn a_directory_keeps_its_number_when_a_copy_is_made_on_an_earlier_branch() {
    needs!(mounting(), loops(), drop_caches());
    let pool = lab::pool().xfs_branch("x", MiB(300)).xfs_branch("z", MiB(300)).option("nfs-export");
    let mut pool = pool.unmounted();
    pool.remount_of(&["x"]);
    pool.remount_of(&["x", "z"]);
    fs::create_dir(pool.branch("z").path().join("d")).unwrap();
    let held = hold(&pool, "d");
    pool.unmount();
    std::thread::sleep(Duration::from_millis(20));
    fs::create_dir(pool.branch("x").path().join("d")).unwrap();
    pool.remount();
    check_always(&mut pool, &held);
}

#[test]
fn a_directory_keeps_its_number_when_its_branch_goes_that_another_joined_live() {
    needs!(mounting(), loops(), drop_caches());
    for looked_up in [true, false] {
        let (mut pool, held) = joined_later();
        let (at, z) = (pool.path().display().to_string(), pool.branch("z").path().display().to_string());
        if !looked_up {
            forget();
        }
        output_of(&["branch", "add", &at, &z]);
        assert_eq!(fs::metadata(pool.at("d")).unwrap().ino(), held.ino);
        pool.unmount();
        fs::remove_dir_all(pool.branch("x").path().join("d")).unwrap();
        pool.remount_of(&["x", "z"]);
        check_always(&mut pool, &held);
    }
}

/// A copy that appears out of band beside a known one: by a lookup, or found where one was to be made.
#[test]
fn a_directory_keeps_its_number_when_a_copy_appeared_beside_the_first() {
    needs!(mounting(), loops(), drop_caches());
    for found_where_it_was_to_be_made in [false, true] {
        let pool = lab::pool().xfs_branch("x", MiB(300)).xfs_branch("z", MiB(300)).option("nfs-export");
        let mut pool = pool.option("create=lfs").unmounted();
        let [x, z] = ["x", "z"].map(|branch| pool.branch(branch).path().to_owned());
        sh(&z, "mkdir old; echo > old/f; chmod 777 old");
        fs::create_dir(x.join("d")).unwrap();
        pool.remount();
        let held = hold(&pool, "d");
        assert!(fs::metadata(pool.at("old/f")).is_ok());
        fs::create_dir(z.join("d")).unwrap();
        if found_where_it_was_to_be_made {
            // The kernel knows both directories: it does not look `d` up again.
            fs::rename(pool.at("old/f"), pool.at("d/f")).unwrap();
            assert!(z.join("d/f").exists());
        } else {
            forget();
            std::thread::sleep(Duration::from_millis(1100));
            assert_eq!(fs::metadata(pool.at("d")).unwrap().ino(), held.ino);
            sh(pool.path(), "ls -l d");
        }
        pool.unmount();
        fs::remove_dir(x.join("d")).unwrap();
        pool.remount();
        check_always(&mut pool, &held);
    }
}

/// While `x` is away, another directory is merged with the first copy, and gives it its number. It is gone when `x` is back.
#[test]
fn a_directory_has_its_number_again_after_another_one_was_merged_with_its_first_copy() {
    needs!(mounting(), loops(), drop_caches());
    let pool = lab::pool().xfs_branch("x", MiB(300)).xfs_branch("y", MiB(300)).xfs_branch("z", MiB(300));
    let mut pool = pool.option("nfs-export").unmounted();
    let [x, y, z] = ["x", "y", "z"].map(|branch| pool.branch(branch).path().to_owned());
    for dir in [z.join("other"), y.join("d"), x.join("d")] {
        fs::create_dir(dir).unwrap();
        // The clock of birth times may not advance for milliseconds.
        std::thread::sleep(Duration::from_millis(20));
    }
    pool.remount();
    let (held, other) = (hold(&pool, "d"), hold(&pool, "other"));
    pool.unmount();
    fs::rename(z.join("other"), z.join("d")).unwrap();
    pool.remount_of(&["y", "z"]);
    assert_eq!(fs::metadata(pool.at("d")).unwrap().ino(), other.ino, "the older copy counts");
    pool.unmount();
    fs::remove_dir(z.join("d")).unwrap();
    pool.remount_of(&["x", "y", "z"]);
    check_always(&mut pool, &held);
    assert_eq!(open(&pool, &other, OFlags::PATH).unwrap_err(), Errno::STALE);
    pool.unmount();
    fs::remove_dir(x.join("d")).unwrap();
    pool.remount();
    check_always(&mut pool, &held);
}

/// A directory with copies on `x` and `y` and with `one` and `two` in it, renamed to `part` on `y` only, while the pool
/// is not mounted.
fn parted() -> (Pool, HeldHandle) {
    let pool = lab::pool().xfs_branch("x", MiB(300)).xfs_branch("y", MiB(300)).option("nfs-export");
    let mut pool = pool.unmounted();
    let [x, y] = ["x", "y"].map(|branch| pool.branch(branch).path().to_owned());
    sh(&x, "mkdir made; echo > made/one");
    sh(&y, "echo > two");
    pool.remount();
    fs::rename(pool.at("two"), pool.at("made/two")).unwrap();
    assert_eq!(pool.holders("made"), ["x", "y"]);
    let held = hold(&pool, "made");
    pool.unmount();
    sh(&y, "mv made part");
    pool.remount();
    (pool, held)
}

#[test]
fn a_handle_of_a_directory_that_was_parted_leads_to_the_first_half() {
    needs!(mounting(), loops(), drop_caches());
    for order in [None, Some(["made", "part"]), Some(["part", "made"])] {
        let (mut pool, held) = parted();
        let numbers = |pool: &Pool, order: &[&str]| -> Vec<u64> {
            order.iter().map(|name| fs::metadata(pool.at(name)).unwrap().ino()).collect()
        };
        match order {
            // Before any lookup.
            None => {
                let dir = open(&pool, &held, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
                let mut entries = fsstack_sys::dirents::Dirents::new(dir, 4096);
                let mut names = Vec::new();
                while let Some(entry) = entries.next().unwrap() {
                    names.push(entry.name.to_str().unwrap().to_owned());
                }
                assert!(names.contains(&"one".to_owned()) && !names.contains(&"two".to_owned()), "{names:?}");
            }
            Some(order) => {
                let seen = numbers(&pool, &order);
                assert_ne!(seen[0], seen[1]);
                assert_eq!(fs::metadata(pool.at("made")).unwrap().ino(), held.ino);
            }
        }
        let part = hold(&pool, "part");
        assert_ne!(part.ino, held.ino);
        for _ in 0..2 {
            check(&pool, &held);
            check(&pool, &part);
            pool.remount();
        }
        // The halves are independent directories from now on.
        fs::remove_dir_all(pool.at("made")).unwrap();
        for _ in 0..2 {
            forget();
            let began = Instant::now();
            while open(&pool, &held, OFlags::PATH).err() == Some(Errno::NOMEM) {
                assert!(began.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(open(&pool, &held, OFlags::PATH).err(), Some(Errno::STALE), "{order:?}");
            check(&pool, &part);
            assert_eq!(fs::metadata(pool.at("part")).unwrap().ino(), part.ino, "{order:?}");
            pool.remount();
        }
    }
}
