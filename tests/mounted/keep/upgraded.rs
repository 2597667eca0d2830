//! `fsstack upgrade` of a pool that has a keeper: the daemon ends, and the keeper becomes the new program.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use fsstack_lab::{self as lab, Kind, MiB, Pool, needs, until};
use rustix::process::Signal;

use super::{crash, daemon, pool};
use crate::command::{at, json, output_of, refused, run};
use crate::open_files::{go_on, work_goes_on};
use crate::script::{sh, ways};
use crate::upgrade::refused::{ANSWERS, copy_of_the_daemon, refuses, script};

/// Upgrades the pool to the program that serves it.
#[track_caller]
fn upgrade(pool: &Pool) {
    let (keeper, before) = (pool.daemon(), daemon(pool));
    let line = output_of(&["upgrade", &at(pool)]);
    assert!(line.contains(" -> ") && line.contains("pause"), "{line}");
    assert_eq!(pool.daemon().pid, keeper.pid, "another keeper");
    until("the daemon before ends", || !before.lives());
    assert_ne!(daemon(pool), before);
}

#[test]
fn open_files_go_on_in_every_write_path() {
    needs!(mounting());
    for way in ways() {
        go_on(&pool(way), way, upgrade);
    }
}

/// More upgrades than deaths that end a pool.
#[test]
fn writers_and_readers_notice_nothing_of_upgrades_and_deaths() {
    needs!(mounting());
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("log");
    let pool = pool(&[&format!("log={}", log.display())]);
    work_goes_on(&pool, 5, upgrade);
    work_goes_on(&pool, 2, crash);
    work_goes_on(&pool, 2, upgrade);
    let told = fs::read_to_string(&log).unwrap();
    assert_eq!(told.matches("took over from version").count(), 7, "{told}");
    assert!(told.contains("serves on"), "{told}");
    assert_eq!(json("status", &["status", &at(&pool)])["pools"][0]["restart"], "keep");
}

/// Two pools on one machine: what happens to one is nothing to the other.
#[test]
fn work_in_one_pool_goes_on_while_another_is_upgraded_and_dies() {
    needs!(mounting());
    let (changes, works) = (pool(&[]), pool(&[]));
    let (keeper, serves) = (works.daemon(), daemon(&works));
    let held = File::options().read(true).write(true).create_new(true).open(changes.at("file")).unwrap();
    for replace in [upgrade, crash] {
        work_goes_on(&works, 2, |_| {
            replace(&changes);
            held.write_all_at(b"bytes", 0).unwrap();
            assert_eq!(changes.read("file"), b"bytes");
        });
    }
    assert_eq!((works.daemon(), daemon(&works)), (keeper, serves));
    assert_eq!(json("status", &["status", &at(&changes)])["pools"][0]["restart"], "keep");
}

/// The program says that it can take the pool over, but it is a script, which cannot be run by its descriptor.
#[test]
fn a_program_that_cannot_be_run_leaves_the_pool_to_the_one_before() {
    needs!(mounting());
    let pool = pool(&[]);
    let script = script(&pool, ANSWERS);
    let open =
        File::options().read(true).write(true).create(true).truncate(true).open(pool.at("file")).unwrap();
    fs::remove_file(pool.at("file")).unwrap();
    let keeper = pool.daemon();
    for text in [b"once", b"more"] {
        let (code, line) = refused(&["upgrade", &at(&pool), "--program", &script]);
        assert_eq!(code, 1, "{line}");
        assert!(line.contains("cannot be run"), "{line}");
        assert!(keeper.lives());
        open.write_all_at(text, 0).unwrap();
    }
    upgrade(&pool);
    crash(&pool);
    let mut read = [0; 4];
    open.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"more");
}

/// The keeper would end, and the pool with it.
#[test]
fn a_program_that_does_not_know_the_pools_state_is_refused_by_name() {
    needs!(mounting());
    let pool = pool(&[]);
    let (keeper, serves) = (pool.daemon(), daemon(&pool));
    let program = fs::canonicalize("/bin/true").unwrap();
    refuses(&pool, program.to_str().unwrap(), &format!("{}: does not answer", program.display()));
    assert!(keeper.lives() && serves.lives());
    pool.write("file", b"x");
    upgrade(&pool);
    assert_eq!(pool.read("file"), b"x");
}

#[test]
fn the_next_upgrade_is_to_the_program_that_serves() {
    needs!(mounting());
    let pool = pool(&[]);
    let other = copy_of_the_daemon(&pool);
    let begins = |line: &str| line.starts_with(&format!("{other}: version"));
    assert!(begins(&output_of(&["upgrade", &at(&pool), "--program", &other])));
    refuses(&pool, &script(&pool, ANSWERS), "cannot be run");
    assert!(begins(&output_of(&["upgrade", &at(&pool)])));
    crash(&pool);
    assert!(begins(&output_of(&["upgrade", &at(&pool)])));
}

/// The daemon that waits for a request ends without having seen the signal.
#[test]
fn a_signal_that_comes_during_the_pause_ends_the_pool() {
    needs!(mounting(), loops());
    let builder = lab::pool().ext4_branch("a", MiB(64)).option("transport=dev").option("restart=keep");
    let pool = builder.mount();
    let keeper = pool.daemon();
    let branch = pool.branch("a").path().display().to_string();
    sh("/", &format!("fsfreeze -f {branch}"));
    std::thread::scope(|scope| {
        let hangs = scope.spawn(|| fs::create_dir(pool.at("d")));
        until("a request hangs", || {
            json("status", &["status", &at(&pool)])["pools"][0]["branches"][0]["inside"] != 0
        });
        let upgraded = scope.spawn(|| run(&["upgrade", &at(&pool)]));
        // Before the pause, in it, or after it: the end is the same.
        std::thread::sleep(Duration::from_millis(500));
        keeper.signal(Signal::TERM).unwrap();
        sh("/", &format!("fsfreeze -u {branch}"));
        hangs.join().unwrap().unwrap();
        drop(upgraded.join().unwrap());
    });
    until("the keeper ends", || !keeper.lives());
    assert!(lab::mounts::at(pool.path()).unwrap().is_none());
}

/// A mount that cannot store an id makes one: it is the pool's as long as it is mounted.
#[test]
fn the_pools_id_stays_where_branches_cannot_store_it() {
    needs!(mounting(), program("mergerfs"));
    let pool = lab::pool().branch("a", Kind::Bare).option("transport=dev").option("restart=keep").mount();
    let id = || json("status", &["status", &at(&pool)])["pools"][0]["pool_id"].to_string();
    let before = id();
    upgrade(&pool);
    assert_eq!(id(), before);
    crash(&pool);
    assert_eq!(id(), before);
}
