//! Jobs go on after a death, under their numbers, and the commands that follow them notice nothing.

use fsstack_lab::shell::Finished;
use fsstack_lab::{Pool, needs, until};
use serde_json::Value;

use super::{crash_and_serve, pool};
use crate::command::{at, branch, json, output_of, run};

const FILES: u8 = 12;

/// A pool whose branch `a` has twelve files of a MiB in a directory, and whose other branch has none.
fn filled() -> Pool {
    let pool = pool(&["write-path=stacked"]);
    pool.mkdir("d");
    (0..FILES).for_each(|n| pool.write(format!("d/{n}"), &vec![n; 1 << 20]));
    pool
}

fn jobs(pool: &Pool) -> Vec<Value> {
    json("jobs", &["job", "list", &at(pool)])["jobs"].as_array().unwrap().clone()
}

/// Numbers, kinds and states of the jobs.
fn shown(pool: &Pool) -> Vec<String> {
    let words = |job: &Value| format!("{} {} {}", job["id"], job["kind"], job["state"]).replace('"', "");
    jobs(pool).iter().map(words).collect()
}

/// Runs `command`, whose job moves two MiB a second, and `meanwhile` once it moves files.
fn beside(pool: &Pool, command: &[&str], meanwhile: impl FnOnce()) -> Finished {
    std::thread::scope(|scope| {
        let follows = scope.spawn(|| run(&[command, &["--rate", "2M"]].concat()));
        until("the job moves", || jobs(pool).last().is_some_and(|job| job["state"] == "moving"));
        meanwhile();
        follows.join().unwrap()
    })
}

fn to_b(pool: &Pool) -> [String; 5] {
    let pool_at = at(pool);
    ["consolidate".to_owned(), pool_at, "d".to_owned(), "--to".to_owned(), branch(pool, "b")]
}

#[track_caller]
fn is_on(pool: &Pool, branch: &str) {
    for n in 0..FILES {
        let name = format!("d/{n}");
        assert!(pool.holders(&name) == [branch] && pool.read(&name) == vec![n; 1 << 20], "{n}");
    }
}

#[test]
fn they_go_on_and_pause_as_before() {
    needs!(mounting());
    let pool = filled();
    output_of(&["balance", &at(&pool), "--dry-run"]);
    let command = to_b(&pool);
    let Finished { code, stderr, .. } = beside(&pool, &command.each_ref().map(String::as_str), || {
        crash_and_serve(&pool);
        until("the job moves again", || shown(&pool) == ["1 balance planned", "2 consolidate moving"]);
        output_of(&["job", "pause", &at(&pool), "2"]);
        crash_and_serve(&pool);
        assert_eq!(shown(&pool), ["1 balance planned", "2 consolidate paused"]);
        output_of(&["upgrade", &at(&pool)]);
        assert_eq!(shown(&pool), ["1 balance planned", "2 consolidate paused"]);
        output_of(&["job", "resume", &at(&pool), "2"]);
    });
    assert_eq!(code, 0, "{stderr}");
    is_on(&pool, "b");
}

/// How they ended is known all the same; the next one has a further number.
#[test]
fn those_that_ended_do_not_come_back() {
    needs!(mounting());
    let pool = filled();
    let command = to_b(&pool);
    let told = beside(&pool, &command.each_ref().map(String::as_str), || {
        output_of(&["job", "cancel", &at(&pool), "1"]);
        crash_and_serve(&pool);
    });
    assert!(told.code == 1 && told.stderr.contains("job 1 was cancelled"), "{}", told.stderr);
    output_of(&["consolidate", &at(&pool), "d", "--to", &branch(&pool, "a")]);
    output_of(&["upgrade", &at(&pool)]);
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "b")]);
    crash_and_serve(&pool);
    assert_eq!(shown(&pool), ["1 consolidate cancelled", "2 consolidate done", "3 drain done"]);
    assert_eq!(jobs(&pool)[1]["branch"], "/d");
    is_on(&pool, "a");
}

/// Its branch is not emptied by a mount either.
#[test]
fn a_drain_that_is_called_off_is_over_for_good() {
    needs!(mounting());
    let mut pool = filled();
    let (at, a) = (at(&pool), branch(&pool, "a"));
    let told = beside(&pool, &["branch", "drain", &at, &a], || {
        crash_and_serve(&pool);
        until("the job moves again", || shown(&pool) == ["1 drain moving"]);
        output_of(&["job", "cancel", &at, "1"]);
        crash_and_serve(&pool);
        assert_eq!(shown(&pool), ["1 drain cancelled"]);
    });
    assert_eq!(told.code, 1, "{}", told.stderr);
    pool.remount();
    assert_eq!(jobs(&pool).len(), 0);
}
