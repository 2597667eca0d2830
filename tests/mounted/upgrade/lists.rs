//! A balance or consolidation goes on beneath an upgrade, under its number.

use std::fs;

use fsstack_lab::shell::Finished;
use fsstack_lab::{self as lab, MiB, Pool, needs, until};

use super::refused::{ANSWERS, refuses, script, stand_in};
use super::{jobs, two_disks, upgrade};
use crate::command::{at, branch, output_of, remount, run};

const FILES: u8 = 20;

/// A pool whose branch `a` has twenty files of a MiB in a directory, and whose other branch has none.
fn filled(options: &[&str]) -> Pool {
    let pool = two_disks(options);
    fill(&pool);
    pool
}

fn fill(pool: &Pool) {
    pool.mkdir("d");
    (0..FILES).for_each(|n| pool.write(format!("d/{n}"), &vec![n; 1 << 20]));
}

/// The last job is this one, and is in one of these states.
#[track_caller]
fn is_last(pool: &Pool, (number, kind): (u64, &str), states: &[&str]) {
    let job = jobs(pool).pop().unwrap();
    assert!(job["id"] == number && job["kind"] == kind, "{job}");
    assert!(states.contains(&job["state"].as_str().unwrap()), "{job}");
}

const AT_WORK: [&str; 4] = ["counting", "moving", "waiting", "done"];

/// Runs `command`, whose job moves two MiB a second, and `meanwhile` once it moves files. All files are whole afterwards.
fn beside(pool: &Pool, command: &[&str], meanwhile: impl FnOnce()) -> Finished {
    let finished = std::thread::scope(|scope| {
        let job = scope.spawn(|| run(&[command, &["--rate", "2M"]].concat()));
        until("the job moves", || jobs(pool).last().is_some_and(|job| job["state"] == "moving"));
        meanwhile();
        job.join().unwrap()
    });
    until("the job is done", || jobs(pool).last().unwrap()["state"] == "done");
    for n in 0..FILES {
        assert!(pool.read(format!("d/{n}")) == vec![n; 1 << 20], "{n}");
    }
    finished
}

/// How many of the files are on `a`.
fn on_a(pool: &Pool) -> usize {
    (0..FILES).filter(|n| pool.holders(format!("d/{n}")) == ["a"]).count()
}

#[test]
fn a_balance_goes_on_in_the_next_program_and_takes_nothing_back() {
    needs!(mounting(), loop_devices());
    let pool = filled(&[]);
    let Finished { code, stderr, .. } = beside(&pool, &["balance", &at(&pool), "--until", "0.5%"], || {
        for _ in 0..2 {
            upgrade(&pool);
            is_last(&pool, (1, "balance"), &AT_WORK);
        }
    });
    assert_eq!(code, 0, "{stderr}");
    let left = on_a(&pool);
    assert!((8..=12).contains(&left), "{left} of {FILES} are on the branch");
    // Files that it has moved stay for a day, over upgrades too, though the other branch is fuller now.
    fs::write(pool.branch("b").path().join("other"), vec![1; 20 << 20]).unwrap();
    output_of(&["upgrade", &at(&pool)]);
    output_of(&["balance", &at(&pool), "d"]);
    assert_eq!(on_a(&pool), left);
}

#[test]
fn a_consolidation_goes_on_where_the_next_program_fails_and_in_another() {
    needs!(mounting(), loop_devices());
    let pool = filled(&[]);
    let to = branch(&pool, "b");
    let Finished { code, stderr, .. } = beside(&pool, &["consolidate", &at(&pool), "d", "--to", &to], || {
        refuses(&pool, &script(&pool, ANSWERS), "cannot be run");
        is_last(&pool, (1, "consolidate"), &AT_WORK);
        refuses(&pool, &stand_in(&pool, "stand-in"), "the stand-in says no");
        is_last(&pool, (1, "consolidate"), &AT_WORK);
        upgrade(&pool);
        is_last(&pool, (1, "consolidate"), &AT_WORK);
    });
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(on_a(&pool), 0);
}

/// It pauses where it has paused, also with a keeper, and waits while the pool may not be written.
#[test]
fn a_consolidation_pauses_and_waits_over_upgrades() {
    needs!(mounting(), loop_devices());
    let pool = filled(&["restart=keep"]);
    let to = branch(&pool, "b");
    let Finished { code, stderr, .. } = beside(&pool, &["consolidate", &at(&pool), "d", "--to", &to], || {
        output_of(&["job", "pause", &at(&pool), "1"]);
        for _ in 0..2 {
            output_of(&["upgrade", &at(&pool)]);
            is_last(&pool, (1, "consolidate"), &["paused"]);
        }
        remount(&pool, "ro");
        (0..2).for_each(|_| _ = output_of(&["upgrade", &at(&pool)]));
        is_last(&pool, (1, "consolidate"), &["paused"]);
        remount(&pool, "rw");
        is_last(&pool, (1, "consolidate"), &["paused"]);
        output_of(&["job", "resume", &at(&pool), "1"]);
    });
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(on_a(&pool), 0);
}

/// A branch that was drained, and shows it still, does not keep the job from going on.
#[test]
fn moves_by_rules_go_on_beside_a_branch_that_was_drained() {
    needs!(mounting(), loop_devices());
    let pool = ["a", "b", "c"].iter().fold(lab::pool(), |pool, name| pool.xfs_branch(name, MiB(300)));
    let pool = pool.option("restart=keep,write-path=stacked,create=ff").mount();
    fill(&pool);
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "c")]);
    output_of(&["rule", "set", &at(&pool), "/d", &format!("ff@{}", branch(&pool, "b"))]);
    let Finished { code, stderr, .. } = beside(&pool, &["balance", &at(&pool), "--rules"], || {
        output_of(&["upgrade", &at(&pool)]);
        is_last(&pool, (2, "rules"), &AT_WORK);
    });
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(on_a(&pool), 0);
}
