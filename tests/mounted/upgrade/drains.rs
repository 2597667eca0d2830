//! A drain goes on beneath an upgrade, under its number.

use fsstack_lab::{self as lab, MiB, Pool, needs, until};
use serde_json::Value;

use super::refused::{ANSWERS, refuses, script, stand_in};
use super::upgrade;
use crate::command::{at, branch, json, output_of, run};

/// A pool whose branch `a` has twenty files of a MiB.
fn filled(options: &[&str]) -> Pool {
    let pool = lab::pool()
        .xfs_branch("a", MiB(300))
        .xfs_branch("b", MiB(300))
        .option("transport=dev")
        .option("write-path=stacked")
        .option("create=ff");
    let pool = options.iter().fold(pool, |pool, option| pool.option(option)).mount();
    (0..20).for_each(|n| pool.write(n.to_string(), &vec![n; 1 << 20]));
    pool
}

fn jobs(pool: &Pool) -> Vec<Value> {
    json("jobs", &["job", "list", &at(pool)])["jobs"].as_array().unwrap().clone()
}

#[track_caller]
fn until_moving(pool: &Pool) {
    until("the drain moves", || {
        let jobs = jobs(pool);
        jobs.len() == 1 && jobs[0]["id"] == 1 && jobs[0]["state"] == "moving"
    });
}

/// Drains `a` while `meanwhile` runs, once it moves files. The command has followed the drain to its end.
fn drain_beside(pool: &Pool, meanwhile: impl FnOnce()) {
    let drained = std::thread::scope(|scope| {
        let drain = scope.spawn(|| run(&["branch", "drain", &at(pool), &branch(pool, "a"), "--rate", "3M"]));
        until_moving(pool);
        meanwhile();
        drain.join().unwrap()
    });
    assert_eq!(drained.code, 0, "{}", drained.stderr);
    let jobs = jobs(pool);
    assert!(jobs.len() == 1 && jobs[0]["id"] == 1 && jobs[0]["state"] == "done", "{jobs:?}");
    for n in 0..20 {
        assert_eq!(pool.holders(n.to_string()), ["b"], "{n}");
        assert!(pool.read(n.to_string()) == vec![n; 1 << 20], "{n}");
    }
    output_of(&["branch", "remove", &at(pool), &branch(pool, "a")]);
}

#[test]
fn it_goes_on_in_the_next_program() {
    needs!(mounting(), loop_devices());
    let pool = filled(&[]);
    drain_beside(&pool, || {
        for _ in 0..2 {
            upgrade(&pool);
            until_moving(&pool);
        }
    });
}

#[test]
fn it_goes_on_where_the_next_program_fails() {
    needs!(mounting(), loop_devices());
    let pool = filled(&[]);
    drain_beside(&pool, || {
        // It cannot be run: this program goes on.
        refuses(&pool, &script(&pool, ANSWERS), "cannot be run");
        until_moving(&pool);
        // It becomes this program again.
        refuses(&pool, &stand_in(&pool, "stand-in"), "the stand-in says no");
        until_moving(&pool);
    });
}

#[test]
fn it_goes_on_with_a_keeper() {
    needs!(mounting(), loop_devices());
    let pool = filled(&["restart=keep"]);
    drain_beside(&pool, || {
        output_of(&["upgrade", &at(&pool)]);
        until_moving(&pool);
    });
}

#[test]
fn it_pauses_still_where_it_has_paused() {
    needs!(mounting(), loop_devices());
    let pool = filled(&[]);
    drain_beside(&pool, || {
        output_of(&["job", "pause", &at(&pool), "1"]);
        upgrade(&pool);
        let jobs = jobs(&pool);
        assert!(jobs.len() == 1 && jobs[0]["id"] == 1 && jobs[0]["state"] == "paused", "{jobs:?}");
        output_of(&["job", "resume", &at(&pool), "1"]);
    });
}
