//! A drain goes on beneath an upgrade, under its number.

use fsstack_lab::{Pool, needs, until};

use super::refused::{ANSWERS, refuses, script, stand_in};
use super::{jobs, two_disks, upgrade};
use crate::command::{at, branch, output_of, remount, run};
use fsstack_lab::shell::Finished;

/// A pool whose branch `a` has twenty files of a MiB.
fn filled(options: &[&str]) -> Pool {
    let pool = two_disks(options);
    (0..20).for_each(|n| pool.write(n.to_string(), &vec![n; 1 << 20]));
    pool
}

/// The only job is the drain with this number, and it goes on.
#[track_caller]
fn goes_on(pool: &Pool, number: u64) {
    let jobs = jobs(pool);
    let at_work = ["counting", "moving", "waiting", "done"];
    let is_it =
        jobs.len() == 1 && jobs[0]["id"] == number && at_work.contains(&jobs[0]["state"].as_str().unwrap());
    assert!(is_it, "{jobs:?}");
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
            assert!(jobs.len() == 1 && jobs[0]["id"] == 2 && jobs[0]["state"] == "paused", "{jobs:?}");
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

/// While the pool may not be written the drain waits, and comes back as it was. The command that follows it may find no job meanwhile.
#[test]
fn it_waits_for_a_pool_that_was_made_read_only() {
    needs!(mounting(), loop_devices());
    let pool = filled(&[]);
    output_of(&["balance", &at(&pool), "--dry-run"]);
    let _may_have_ended = drain_beside(&pool, || {
        output_of(&["job", "pause", &at(&pool), "2"]);
        remount(&pool, "ro");
        (0..2).for_each(|_| drop(upgrade(&pool)));
        assert_eq!(jobs(&pool).len(), 0);
        remount(&pool, "rw");
        let jobs = jobs(&pool);
        assert!(jobs.len() == 1 && jobs[0]["id"] == 2 && jobs[0]["state"] == "paused", "{jobs:?}");
        output_of(&["job", "resume", &at(&pool), "2"]);
    });
}
