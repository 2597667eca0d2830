//! `fsstack upgrade` of a pool that has a keeper: the daemon ends, and the keeper becomes the new program.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use fsstack_lab::{Pool, needs};

use super::{crash, daemon, pool};
use crate::command::{at, json, output_of, refused};
use crate::hung_branches::until;
use crate::open_files::{go_on, work_goes_on};
use crate::script::ways;

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

/// The program says that it can take the pool over, but it is a script, which cannot be run by its descriptor.
#[test]
fn a_program_that_cannot_be_run_leaves_the_pool_to_the_one_before() {
    needs!(mounting());
    let pool = pool(&[]);
    let script = pool.path().with_file_name("program");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o755).open(&script).unwrap();
    file.write_all(b"#!/bin/sh\nexit 0\n").unwrap();
    drop(file);
    let open =
        File::options().read(true).write(true).create(true).truncate(true).open(pool.at("file")).unwrap();
    fs::remove_file(pool.at("file")).unwrap();
    let keeper = pool.daemon();
    for text in [b"once", b"more"] {
        let (code, line) = refused(&["upgrade", &at(&pool), "--program", script.to_str().unwrap()]);
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
