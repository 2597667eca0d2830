//! Bulk copy: a place is promised, filled past the pool, and gets its name in one step.

use std::fs;
use std::sync::{Arc, Mutex};

use fsstack_engine::live::{BadChange, Removal};
use fsstack_pool::BranchIx;
use fsstack_sys::Errno;

use crate::ground::Ground;

fn refused<T: std::fmt::Debug>(answer: fsstack_engine::Result<T>) -> Errno {
    answer.unwrap_err().errno()
}

#[test]
fn nothing_is_seen_until_it_is_whole() {
    let pool = Ground::new(2);
    pool.put_dir(1, "d");
    let told = Arc::new(Mutex::new(Vec::new()));
    let teller = told.clone();
    pool.union.set_teller(Box::new(move |dir, name| teller.lock().unwrap().push((dir, name.to_owned()))));
    let dir = pool.ino("d");
    assert_eq!(pool.find("d/film").map(drop), Err(Errno::NOENT), "the kernel may remember that");
    let place = pool.union.reserve(b"/d/film", 5).unwrap();
    assert_eq!(place.branch, BranchIx(0));
    assert_eq!(place.target, pool.on(0, "d/film"));
    fs::write(&place.staging, "whole").unwrap();
    assert!(pool.names("d").is_empty() && pool.names("") == ["d"], "the staging folder is hidden");
    assert_eq!(pool.union.status().branches[0].reserved, 5);
    assert_eq!(pool.union.reservations(), 1);
    pool.union.commit(place.id).unwrap();
    assert_eq!(pool.read("d/film").unwrap(), "whole");
    assert_eq!(*told.lock().unwrap(), [(dir, c"film".to_owned())]);
    assert_eq!(pool.union.status().branches[0].reserved, 0);
    assert_eq!(refused(pool.union.commit(place.id)), Errno::NOENT);
    assert_eq!(pool.holders(".fsstack.moving"), [0_usize; 0], "nothing is left over");
    assert_eq!(pool.create("d/film").map(drop), Err(Errno::EXIST));
}

#[test]
fn a_name_that_came_meanwhile_is_kept() {
    let pool = Ground::new(1);
    let place = pool.union.reserve(b"film", 1).unwrap();
    pool.write("film", "first");
    assert_eq!(refused(pool.union.commit(place.id)), Errno::EXIST);
    assert_eq!(pool.read("film").unwrap(), "first");
    assert_eq!(pool.names(""), ["film"]);
    assert_eq!(refused(pool.union.reserve(b"film", 1)), Errno::EXIST);
    assert_eq!(refused(pool.union.reserve(b"none/film", 1)), Errno::NOENT);
    assert_eq!(refused(pool.union.reserve(b"", 1)), Errno::EXIST);
    assert_eq!(pool.holders(".fsstack.moving"), [0_usize; 0]);
}

#[test]
fn the_file_follows_its_directory() {
    let pool = Ground::new(1);
    pool.mkdir("d").unwrap();
    let place = pool.union.reserve(b"d/film", 0).unwrap();
    pool.rename("d", "renamed").unwrap();
    pool.union.commit(place.id).unwrap();
    assert_eq!(pool.names("renamed"), ["film"]);
    let place = pool.union.reserve(b"renamed/second", 0).unwrap();
    pool.unlink("renamed/film").unwrap();
    pool.rmdir("renamed").unwrap();
    assert_eq!(refused(pool.union.commit(place.id)), Errno::NOENT);
    assert!(pool.names("").is_empty());
}

#[test]
fn what_is_promised_counts_as_taken_and_keeps_the_branch() {
    let pool = Ground::new(2);
    let free = |at: usize| pool.union.status().branches[at].space.unwrap().available;
    let most = free(0) / 2 + (1 << 20);
    let first = pool.union.reserve(b"first", most).unwrap();
    assert_eq!(first.branch, BranchIx(0));
    let second = pool.union.reserve(b"second", most).unwrap();
    assert_eq!(second.branch, BranchIx(1), "the first has no room for both");
    assert_eq!(refused(pool.union.reserve(b"third", u64::MAX)), Errno::NOSPC);
    let stays = pool.union.remove_branch(BranchIx(0), Removal::IfIdle).unwrap_err();
    assert!(matches!(stays, BadChange::InUse { open: 1, .. }), "{stays}");
    pool.union.abandon(first.id);
    pool.union.abandon(second.id);
    pool.union.abandon(second.id);
    assert!(!first.staging.exists());
    assert_eq!(pool.union.reservations(), 0);
    pool.union.remove_branch(BranchIx(0), Removal::IfIdle).unwrap();
    let last = pool.union.reserve(b"last", 1).unwrap();
    pool.union.destroy();
    assert!(!last.staging.exists(), "the mount's end leaves nothing");
}
