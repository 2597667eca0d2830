//! File handles of what lies on other file systems than ext4 and XFS: btrfs, which opens objects by number too, and those
//! that do not, where they are looked for.

use std::fs;

use fsstack_lab::{self as lab, MiB, Pool, ground, needs};

use crate::handles::{check, check_stale, fill, forget, hold_all, over};
use crate::script::sh;

/// All that may happen to the objects of the first branch.
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
    // Behind the pool's back, and while there is no pool.
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

/// On a tmpfs, or on a volume of GlusterFS where that is what the tests' branches are on.
#[test]
fn handles_of_what_must_be_looked_for() {
    needs!(mounting(), drop_caches());
    whatever_happens(first(match ground::is_gluster() {
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
    // What was remembered leads elsewhere now.
    fs::rename(pool.at("d"), pool.at("m/100/d")).unwrap();
    pool.remount();
    held.iter().rev().for_each(|held| check(&pool, held));
}
