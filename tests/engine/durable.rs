//! Order of durable changes over several branches, each with its own journal.

use std::fs;

use fsstack_engine::Caller;
use fsstack_engine::ops::{Change, SetTime};
use fsstack_engine::settings::{Settings, Synced};
use fsstack_pool::BranchMode::{NoCreate, ReadWrite};
use fsstack_pool::{Handle, Ino};
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{Call, count};

use crate::test_bed::{File, TestBed, settings};

/// New objects go to the second branch.
fn test_bed() -> TestBed {
    TestBed::with(&[NoCreate, ReadWrite], settings())
}

fn syncs(pool: &TestBed, file: File) -> u64 {
    let (done, made) = count::scope(|| pool.union.fsync(file.handle, false));
    done.unwrap();
    made.of(Call::Fsync)
}

#[test]
fn a_name_that_left_another_branch_is_synced_before_its_replacement() {
    let pool = test_bed();
    pool.put(0, "file", "old");
    pool.unlink("file").unwrap();
    let file = pool.create("file").unwrap();
    assert_eq!(pool.holders("file"), [1]);
    assert_eq!([syncs(&pool, file), syncs(&pool, file)], [2, 1], "a file");

    pool.put_dir(0, "dir");
    pool.rmdir("dir").unwrap();
    pool.mkdir("dir").unwrap();
    let file = pool.create("dir/file").unwrap();
    assert_eq!([syncs(&pool, file), syncs(&pool, file)], [2, 1], "the directory that it is in");

    pool.put(0, "was", "a file");
    pool.unlink("was").unwrap();
    pool.mkdir("was").unwrap();
    let file = pool.create("was/file").unwrap();
    assert_eq!([syncs(&pool, file), syncs(&pool, file)], [2, 1], "a file that is a directory now");

    pool.put(0, "above/from/old", "old");
    pool.rename("above/from", "above/to").unwrap();
    let (file, made) = count::scope(|| pool.create("above/to/new"));
    let file = file.unwrap();
    assert_eq!(pool.holders("above/to"), [0, 1]);
    assert_eq!(made.of(Call::Fsync), 1, "a directory that was renamed, before it gets another copy");
    assert_eq!(syncs(&pool, file), 1, "the rename is on disk by then");
    pool.put(0, "above/to/sub/old", "old");
    let file = pool.create("above/to/sub/new").unwrap();
    pool.rename("above/to", "above/from").unwrap();
    assert_eq!(syncs(&pool, file), 1, "a rename on several branches is on disk when it is answered");
}

#[test]
fn rights_that_a_directory_lost_are_on_disk_before_what_is_below_it() {
    let pool = test_bed();
    pool.put_dir(0, "dir");
    let file = pool.create("dir/file").unwrap();
    assert_eq!(syncs(&pool, file), 1);
    let dir = pool.ino("dir");
    let mode = Change { mode: Some(0o700), ..Change::default() };
    pool.setattr(dir, mode).unwrap();
    assert_eq!([syncs(&pool, file), syncs(&pool, file)], [2, 1], "its mode");
    pool.union.setxattr(dir, c"user.a", b"b", 0, false, Caller::DAEMON).unwrap();
    assert_eq!([syncs(&pool, file), syncs(&pool, file)], [2, 1], "an attribute");
    let times = Change { mtime: Some(SetTime::Now), ..Change::default() };
    pool.setattr(dir, times).unwrap();
    assert_eq!(syncs(&pool, file), 1, "times let nobody in");
}

/// A drain removes copies.
#[test]
fn a_directory_whose_attributes_changed_is_given_to_a_branch_though_a_copy_is_gone() {
    let pool = TestBed::with(&[NoCreate, NoCreate, ReadWrite], settings());
    pool.put_dir(0, "dir");
    pool.put_dir(1, "dir");
    let mode = Change { mode: Some(0o700), ..Change::default() };
    pool.setattr(pool.ino("dir"), mode).unwrap();
    fs::remove_dir(pool.on(0, "dir")).unwrap();
    pool.create("dir/file").unwrap();
    assert_eq!(pool.holders("dir"), [1, 2]);
}

#[test]
fn a_renamed_file_has_its_new_name_on_disk_before_another_branch_gets_the_old_one() {
    let pool = test_bed();
    let synced_by = |act: &dyn Fn()| count::scope(act).1.of(Call::Fsync);
    pool.put(0, "log", "old");
    pool.rename("log", "log.1").unwrap();
    assert_eq!(synced_by(&|| pool.create("other").map(drop).unwrap()), 0);
    assert_eq!(synced_by(&|| pool.create("log").map(drop).unwrap()), 1, "the first of its name");
    pool.unlink("log").unwrap();
    assert_eq!(synced_by(&|| pool.mkdir("log").map(drop).unwrap()), 0, "on disk by now");
    pool.rename("log.1", "log.2").unwrap();
    assert_eq!(synced_by(&|| pool.rename("log", "log.1").unwrap()), 1, "by a rename");
}

#[test]
fn exchanged_files_have_their_new_names_on_disk_before_another_branch_gets_either() {
    for name in ["a", "b"] {
        let pool = test_bed();
        ["a", "b"].iter().for_each(|name| pool.put(0, name, name));
        pool.rename_with("a", "b", RenameFlags::EXCHANGE).unwrap();
        pool.unlink(name).unwrap();
        let made = count::scope(|| pool.create(name).map(drop).unwrap()).1;
        assert_eq!(made.of(Call::Fsync), 1, "the other file had the name {name}");
    }
}

#[test]
fn an_fsync_costs_nothing_more_where_one_branch_took_part_or_another_name_went() {
    let pool = test_bed();
    for _ in 0..2 {
        let file = pool.create("file").unwrap();
        assert_eq!(syncs(&pool, file), 1);
        pool.create("tmp").unwrap();
        pool.rename("tmp", "file").unwrap();
        pool.unlink("file").unwrap();
    }
    pool.put(0, "other", "old");
    pool.unlink("other").unwrap();
    let file = pool.create("file").unwrap();
    assert_eq!(syncs(&pool, file), 1, "another name");
    (0..9).for_each(|n| pool.put(0, &format!("many{n}"), "old"));
    (0..9).for_each(|n| pool.unlink(&format!("many{n}")).unwrap());
    assert_eq!([syncs(&pool, file), syncs(&pool, file)], [2, 1], "too many to tell");
}

#[test]
fn an_fsync_of_the_directory_or_of_the_pool_is_enough() {
    let pool = test_bed();
    for sync in [
        (|pool: &TestBed| pool.union.fsyncdir(Ino::ROOT, Handle(0), false).unwrap()) as fn(&TestBed),
        |pool| pool.union.syncfs().unwrap(),
    ] {
        pool.put(0, "file", "old");
        pool.unlink("file").unwrap();
        let file = pool.create("file").unwrap();
        sync(&pool);
        assert_eq!(syncs(&pool, file), 1);
        pool.unlink("file").unwrap();
    }
}

#[test]
fn hidden_copies_are_surely_gone_before_what_hides_them_goes() {
    let pool = TestBed::new(2);
    let syncs = |act: &dyn Fn()| count::scope(act).1.of(Call::Fsync);
    pool.put(0, "plain", "shown");
    pool.ino("plain");
    assert_eq!(syncs(&|| pool.unlink("plain").unwrap()), 0, "nothing is hidden");
    pool.put(1, "later", "shown");
    pool.ino("later");
    assert_eq!(syncs(&|| pool.unlink("later").unwrap()), 0, "nothing is hidden");
    for at in 0..2 {
        ["gone", "log"].iter().for_each(|name| pool.put(at, name, &format!("{name} {at}")));
    }
    pool.ino("gone");
    assert_eq!(syncs(&|| pool.unlink("gone").unwrap()), 1);
    assert_eq!(syncs(&|| pool.rename("log", "log.1").unwrap()), 1);
    assert_eq!(pool.holders("log.1"), [0]);
}

#[test]
fn names_are_synced_before_the_answer_if_the_mount_says_so() {
    let pool = TestBed::with(&[NoCreate, ReadWrite], Settings { synced: Synced::Names, ..settings() });
    pool.put(0, "d/old", "old");
    pool.ino("d");
    let syncs = |act: &dyn Fn()| count::scope(act).1.of(Call::Fsync);
    assert_eq!(
        syncs(&|| _ = pool.create("d/file").unwrap()),
        2,
        "the copy of the directory, and the way to it"
    );
    assert_eq!(syncs(&|| _ = pool.create("d/more").unwrap()), 1);
    assert_eq!(syncs(&|| _ = pool.mkdir("d/sub").unwrap()), 1);
    assert_eq!(syncs(&|| _ = pool.link("d/file", "d/link").unwrap()), 1);
    assert_eq!(syncs(&|| pool.rename("d/link", "d/sub/link").unwrap()), 2);
    assert_eq!(syncs(&|| pool.unlink("d/old").unwrap()), 1);
    assert_eq!(syncs(&|| pool.unlink("d/sub/link").unwrap()), 1);
    assert_eq!(syncs(&|| pool.rmdir("d/sub").unwrap()), 1);
}
