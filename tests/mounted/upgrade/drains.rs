//! A drain goes on beneath an upgrade, under its number.

use std::fs;
use std::thread::{self, JoinHandle};

use fsstack_lab::shell::Finished;
use fsstack_lab::{self as lab, Pool, needs, until};

use super::refused::{ANSWERS, refuses, script, stand_in};
use super::{jobs, two_disks, upgrade};
use crate::command::{at, branch, output_of, refused, remount, run};

/// A pool whose branch `a` has twenty files of a MiB.
fn filled(options: &[&str]) -> Pool {
    let pool = two_disks(options);
    (0..20).for_each(|n| pool.write(n.to_string(), &vec![n; 1 << 20]));
    pool
}

/// The last job is the drain with this number, and it goes on.
#[track_caller]
fn goes_on(pool: &Pool, number: u64) {
    let job = jobs(pool).pop().unwrap();
    let at_work = ["counting", "moving", "waiting", "done"];
    assert!(job["id"] == number && at_work.contains(&job["state"].as_str().unwrap()), "{job}");
}

/// Drains `a` while `meanwhile` runs, once it moves files. Returns how the command has ended that follows the drain.
fn drain_beside(pool: &Pool, meanwhile: impl FnOnce()) -> Finished {
    let drained = std::thread::scope(|scope| {
        let drain = scope.spawn(|| run(&["branch", "drain", &at(pool), &branch(pool, "a"), "--rate", "2M"]));
        until("the drain moves", || {
            jobs(pool).last().is_some_and(|job| job["kind"] == "drain" && job["state"] == "moving")
        });
        meanwhile();
        drain.join().unwrap()
    });
    until("the drain is done", || jobs(pool).last().unwrap()["state"] == "done");
    for n in 0..20 {
        assert_eq!(pool.holders(n.to_string()), ["b"], "{n}");
        assert!(pool.read(n.to_string()) == vec![n; 1 << 20], "{n}");
    }
    output_of(&["branch", "remove", &at(pool), &branch(pool, "a")]);
    drained
}

/// Like [`drain_beside`]; the command follows the drain to its end.
#[track_caller]
fn followed_beside(pool: &Pool, meanwhile: impl FnOnce()) {
    let Finished { code, stderr, .. } = drain_beside(pool, meanwhile);
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn it_goes_on_in_the_next_program() {
    needs!(mounting(), loop_devices());
    let pool = filled(&[]);
    followed_beside(&pool, || {
        for _ in 0..2 {
            upgrade(&pool);
            goes_on(&pool, 1);
        }
    });
}

#[test]
fn it_goes_on_where_the_next_program_fails() {
    needs!(mounting(), loop_devices());
    let pool = filled(&[]);
    followed_beside(&pool, || {
        // It cannot be run: this program goes on.
        refuses(&pool, &script(&pool, ANSWERS), "cannot be run");
        goes_on(&pool, 1);
        // It becomes this program again.
        refuses(&pool, &stand_in(&pool, "stand-in"), "the stand-in says no");
        goes_on(&pool, 1);
    });
}

/// The drain is the second job, and pauses over several upgrades.
fn pauses_over_upgrades(pool: &Pool) {
    output_of(&["balance", &at(pool), "--dry-run"]);
    followed_beside(pool, || {
        output_of(&["job", "pause", &at(pool), "2"]);
        for _ in 0..3 {
            output_of(&["upgrade", &at(pool)]);
            let jobs = jobs(pool);
            assert!(jobs[0]["state"] == "planned" && jobs[1]["state"] == "paused", "{jobs:?}");
        }
        output_of(&["job", "resume", &at(pool), "2"]);
        goes_on(pool, 2);
    });
}

#[test]
fn it_pauses_still_where_it_has_paused() {
    needs!(mounting(), loop_devices());
    pauses_over_upgrades(&filled(&[]));
}

#[test]
fn it_pauses_still_with_a_keeper() {
    needs!(mounting(), loop_devices());
    pauses_over_upgrades(&filled(&["restart=keep"]));
}

/// While the pool may not be written the drain is parked, and can be paused and called off; the command follows it over that.
#[test]
fn it_waits_for_a_pool_that_was_made_read_only() {
    needs!(mounting(), loop_devices());
    let pool = filled(&[]);
    output_of(&["balance", &at(&pool), "--dry-run"]);
    followed_beside(&pool, || {
        let is = |state: &str| {
            let job = jobs(&pool).pop().unwrap();
            assert!(job["id"] == 2 && job["kind"] == "drain" && job["state"] == state, "{job}");
        };
        output_of(&["job", "pause", &at(&pool), "2"]);
        remount(&pool, "ro");
        (0..2).for_each(|_| drop(upgrade(&pool)));
        is("paused");
        output_of(&["job", "resume", &at(&pool), "2"]);
        is("parked");
        drop(upgrade(&pool));
        is("parked");
        let (code, line) = refused(&["branch", "mode", &at(&pool), &branch(&pool, "a"), "RW"]);
        assert!(code == 1 && line.contains("job 2"), "{line}");
        output_of(&["job", "pause", &at(&pool), "2"]);
        remount(&pool, "rw");
        is("paused");
        output_of(&["job", "resume", &at(&pool), "2"]);
    });
}

#[test]
fn one_that_was_called_off_while_it_waited_does_not_come_back() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").option("transport=dev").mount();
    let follower = counting(&pool, &[]);
    remount(&pool, "ro");
    drop(upgrade(&pool));
    output_of(&["job", "cancel", &at(&pool), "1"]);
    let Finished { code, stderr, .. } = follower.join().unwrap();
    assert!(code == 1 && stderr.contains("job 1 was cancelled"), "{stderr}");
    remount(&pool, "rw");
    assert_eq!(jobs(&pool)[0]["state"], "cancelled");
    pool.remount();
    assert_eq!(jobs(&pool).len(), 0);
}

/// Directories that a drain counts for a while.
const DIRS: usize = 6000;

/// Has a command follow the drain of `a` with these options, which pauses while it counts.
fn counting(pool: &Pool, options: &[&str]) -> JoinHandle<Finished> {
    let top = pool.branch("a").path().to_owned();
    (0..DIRS).for_each(|n| fs::create_dir(top.join(n.to_string())).unwrap());
    let words = ["branch", "drain", &at(pool), &branch(pool, "a")];
    let words: Vec<String> = words.iter().chain(options).map(|word| (*word).to_owned()).collect();
    let follower = thread::spawn(move || run(&words.iter().map(String::as_str).collect::<Vec<_>>()));
    until("it has begun", || jobs(pool).len() == 1);
    assert!(output_of(&["job", "pause", &at(pool), "1"]).contains("paused"));
    follower
}

/// The count begins anew, under its number.
#[test]
fn a_dry_run_and_a_drain_that_counts_go_on() {
    needs!(mounting());
    for (restart, options, end) in [
        ("restart=off", &["--dry-run"][..], "planned"),
        ("restart=keep", &["--dry-run"], "planned"),
        ("restart=off", &[], "done"),
        ("restart=keep", &[], "done"),
    ] {
        let pool =
            lab::pool().tmp_branch("a").tmp_branch("b").option("transport=dev").option(restart).mount();
        let follower = counting(&pool, options);
        for _ in 0..2 {
            output_of(&["upgrade", &at(&pool)]);
            let jobs = jobs(&pool);
            assert!(jobs.len() == 1 && jobs[0]["id"] == 1 && jobs[0]["state"] == "paused", "{jobs:?}");
        }
        output_of(&["job", "resume", &at(&pool), "1"]);
        let Finished { code, stdout, stderr, .. } = follower.join().unwrap();
        assert!(code == 0 && stdout.contains(end), "{stdout}{stderr}");
    }
}
