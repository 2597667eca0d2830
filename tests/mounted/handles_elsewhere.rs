//! File handles on file systems other than ext4 and XFS: btrfs, which opens objects by number too, and others, which
//! are searched.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fsstack_lab::{self as lab, MiB, Pool, needs, test_bed};
use fsstack_sys::{Errno, OFlags};

use crate::handles::{check, check_stale, fill, forget, hold, hold_all, open, over};
use crate::script::sh;

/// Runs all events on the objects of the first branch.
fn whatever_happens(mut pool: Pool) {
    fill(&pool);
    over(&mut pool, |_| forget());
    over(&mut pool, Pool::remount);
    over(&mut pool, |pool| {
        pool.kill_daemon();
        pool.remount();
    });
    let held = hold_all(&pool);
    fs::rename(pool.at("d/file"), pool.at("moved")).unwrap();
    fs::rename(pool.at("d/sub"), pool.at("sub too")).unwrap();
    fs::rename(pool.at("d"), pool.at("e")).unwrap();
    for remounts in [false, true] {
        if remounts {
            pool.remount();
        }
        for held in &held {
            forget();
            check(&pool, held);
        }
    }
    // Out of band, while the pool is not mounted.
    let branch = pool.branches()[0].path().to_owned();
    pool.unmount();
    sh(&branch, "mkdir new; mv moved new/file; mv e new/d; mv 'sub too' new/d/s");
    pool.remount();
    for held in held.iter().rev() {
        check(&pool, held);
        forget();
    }
    sh(pool.path(), "rm -rf new");
    for held in &held {
        check_stale(&pool, held);
    }
    pool.remount();
    forget();
    for held in &held {
        check_stale(&pool, held);
    }
}

fn first(pool: lab::Builder) -> Pool {
    pool.tmp_branch("second").option("create=ff").option("nfs-export").mount()
}

#[test]
fn handles_of_what_is_on_btrfs() {
    needs!(mounting(), loops(), drop_caches(), program("mkfs.btrfs"));
    whatever_happens(first(lab::pool().btrfs_branch("b", MiB(200))));
}

/// On a tmpfs, or on a GlusterFS volume if that is the test bed.
#[test]
fn handles_of_what_must_be_looked_for() {
    needs!(mounting(), drop_caches());
    whatever_happens(first(match test_bed::is_gluster() {
        true => lab::pool().tmp_branch("g"),
        false => lab::pool().tmpfs_branch("t", MiB(100)),
    }));
}

#[test]
fn a_handle_is_found_among_many_names() {
    needs!(mounting(), loops(), drop_caches());
    let mut pool = first(lab::pool().tmpfs_branch("t", MiB(100)));
    fill(&pool);
    let held = hold_all(&pool);
    sh(pool.branch("t").path(), "for d in $(seq 100); do mkdir -p m/$d; (cd m/$d; touch $(seq 200)); done");
    for _ in 0..2 {
        pool.remount();
        held.iter().for_each(|held| check(&pool, held));
    }
    // The cached location is wrong now.
    fs::rename(pool.at("d"), pool.at("m/100/d")).unwrap();
    pool.remount();
    held.iter().rev().for_each(|held| check(&pool, held));
}

/// Repeats `act` in another thread during `scenario`.
fn beside(act: impl Fn() + Sync, scenario: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                act();
            }
        });
        let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(scenario));
        over.store(true, Relaxed);
        answer.unwrap();
    });
}

fn with_many_names() -> Pool {
    let pool = first(lab::pool().tmpfs_branch("t", MiB(100)));
    sh(pool.branch("t").path(), "for d in $(seq 40); do mkdir -p m/$d; (cd m/$d; touch $(seq 100)); done");
    for dir in ["a", "z"] {
        pool.mkdir(dir);
    }
    pool
}

#[test]
fn a_handle_is_stale_also_while_files_are_renamed() {
    needs!(mounting(), drop_caches());
    let pool = with_many_names();
    pool.write("gone", b"gone");
    pool.write("a/film", b"film");
    let gone = hold(&pool, "gone");
    fs::remove_file(pool.at("gone")).unwrap();
    let turns = || {
        fs::rename(pool.at("a/film"), pool.at("z/film")).unwrap();
        fs::rename(pool.at("z/film"), pool.at("a/film")).unwrap();
    };
    beside(turns, || {
        for _ in 0..3 {
            forget();
            check_stale(&pool, &gone);
        }
    });
}

#[test]
fn a_handle_of_what_is_renamed_all_the_time_is_never_stale() {
    needs!(mounting(), drop_caches());
    let pool = with_many_names();
    pool.write("a/film", b"film");
    fs::create_dir(pool.at("a/dir")).unwrap();
    let held = hold(&pool, "a/film");
    let turns = || {
        for name in ["film", "dir"] {
            // Into directories that no search has seen, too.
            fs::create_dir_all(pool.at("z/new/er")).unwrap();
            fs::rename(pool.at("a").join(name), pool.at("z/new/er").join(name)).unwrap();
            fs::rename(pool.at("z/new/er").join(name), pool.at("a").join(name)).unwrap();
            fs::remove_dir(pool.at("z/new/er")).unwrap();
            fs::remove_dir(pool.at("z/new")).unwrap();
        }
    };
    beside(turns, || {
        for _ in 0..40 {
            forget();
            let answer = open(&pool, &held, OFlags::PATH).err();
            assert!(matches!(answer, None | Some(Errno::NOMEM)), "{answer:?}");
        }
    });
    check(&pool, &held);
}

/// State of the index as shown by `fsstack nfs check`.
pub(crate) fn index(pool: &Pool) -> String {
    let mut answer = vec![0; 100];
    let len = rustix::fs::getxattr(pool.path(), c"user.fsstack.index", &mut answer[..]).unwrap();
    answer.truncate(len);
    String::from_utf8(answer).unwrap()
}

/// The index has existing objects: removed ones that cannot be opened by number leave nothing behind.
#[test]
fn the_index_forgets_what_is_removed_where_handles_are_looked_for() {
    needs!(mounting(), drop_caches());
    let pool = lab::pool().tmpfs_branch("x", MiB(8)).tmpfs_branch("y", MiB(100)).option("create=ff");
    let mut pool = pool.option("write-path=stacked").option("nfs-export").mount();
    let objects = |pool: &Pool, n: usize| assert_eq!(index(pool), format!("complete, {n} objects"));
    pool.mkdir("d");
    let moved = ["d/linked", "d/removed", "d/replaced", "d/replaced too", "small"];
    moved.iter().for_each(|name| pool.write(name, b""));
    pool.branch("x").fill_until_free(MiB(2));
    for name in &moved[..4] {
        fs::write(pool.at(name), lab::zeros(MiB(4))).unwrap();
        assert_eq!(pool.holders(name), ["y"]);
    }
    objects(&pool, 5); // with the directory, which has a copy on `y` now
    fs::hard_link(pool.at("d/linked"), pool.at("d/linked too")).unwrap();
    let mut linked = hold(&pool, "d/linked");
    linked.content = None;
    let gone = ["d/removed", "d/replaced", "d/replaced too", "d"].map(|name| hold(&pool, name));
    fs::remove_file(pool.at("d/linked")).unwrap();
    fs::remove_file(pool.at("d/removed")).unwrap();
    objects(&pool, 4);
    // By an object on its own branch, and by one on another.
    fs::write(pool.branch("y").path().join("d/new"), "new").unwrap();
    fs::rename(pool.at("d/new"), pool.at("d/replaced")).unwrap();
    objects(&pool, 3);
    fs::rename(pool.at("small"), pool.at("d/replaced too")).unwrap();
    objects(&pool, 2);
    fs::rename(pool.at("d/linked too"), pool.at("linked")).unwrap();
    sh(pool.path(), "rm -r d");
    objects(&pool, 1);
    gone.iter().for_each(|held| check_stale(&pool, held));
    check(&pool, &linked);
    pool.remount();
    objects(&pool, 1);
    check(&pool, &linked);
    fs::remove_file(pool.at("linked")).unwrap();
    objects(&pool, 0);
    // Directories that replace another.
    sh(pool.branch("x").path(), "mkdir e f; echo > e/one");
    sh(pool.branch("y").path(), "mkdir f; echo > two");
    fs::rename(pool.at("two"), pool.at("e/two")).unwrap();
    sh(pool.path(), "ls f");
    objects(&pool, 2);
    sh(pool.path(), "mv -T e f");
    objects(&pool, 1);
    sh(pool.path(), "rm f/one f/two; rmdir f");
    objects(&pool, 0);
    pool.remount();
    objects(&pool, 0);
}
