//! Changing attributes: of directories on all copies, of files with the bits that a change must clear.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::{Arc, Barrier};

use fsstack_engine::files::route::Route;
use fsstack_engine::ops::{Change, SetTime, WriteTerms};
use fsstack_engine::settings::{Settings, WritePath};
use fsstack_engine::{Caller, Pool, Union};
use fsstack_lab::needs;
use fsstack_pool::BranchMode::{ReadOnly, ReadWrite};
use fsstack_pool::{BranchSpec, Ino};
use fsstack_sys::{Errno, OFlags, Time, identity};

use crate::fixed_beside::FixedBeside;
use crate::passthrough_kernel::AllPassthrough;
use crate::test_bed::{TestBed, settings};

const ALICE: Caller = Caller { uid: 1234, gid: 1235, group: None, umask: 0, pid: 0, mapped: false };

fn mode(mode: u32) -> Change {
    Change { mode: Some(mode), ..Change::default() }
}

#[test]
fn a_directorys_attributes_change_on_all_copies() {
    let pool = TestBed::new(3);
    (0..3).for_each(|at| pool.put_dir(at, "d"));
    let time = Time { sec: 1_234_567_890, nsec: 987_654_321 };
    let change = Change { mode: Some(0o1711), mtime: Some(SetTime::At(time)), ..Change::default() };
    let answer = pool.setattr(pool.ino("d"), change).unwrap();
    assert_eq!((answer.stat.mode & 0o7777, answer.stat.mtime), (0o1711, time));
    for at in 0..3 {
        let meta = pool.on(at, "d").metadata().unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.mtime_nsec()), (0o1711, 987_654_321));
    }
    assert_eq!(
        pool.setattr(pool.ino("d"), Change { size: Some(0), ..Change::default() }).unwrap_err(),
        Errno::ISDIR
    );
}

#[test]
fn a_directorys_times_are_as_set_beside_a_copy_that_cannot_be_written() {
    let time = Time { sec: 1_000_000_000, nsec: 5 };
    let set = Some(SetTime::At(time));
    let change = Change { atime: set, mtime: set, ..Change::default() };
    let by_mode = TestBed::with(&[ReadWrite, ReadOnly], settings());
    (0..2).for_each(|at| by_mode.put_dir(at, "d"));
    let beside = identity::is_root().then(FixedBeside::new);
    let by_mount = beside.as_ref().map(|beside| beside.pool(1));
    for pool in [Some(&by_mode), by_mount.as_ref()].into_iter().flatten() {
        let dir = pool.ino("d");
        let answer = pool.setattr(dir, change).unwrap().stat;
        let found = pool.find("d").unwrap().attr.stat;
        for stat in [answer, pool.getattr(dir).unwrap().stat, found] {
            assert_eq!((stat.atime, stat.mtime), (time, time));
        }
        assert!(answer.ctime.sec > time.sec);
    }
    // None of it can be set: the latest change shows.
    let pool = TestBed::with(&[ReadOnly, ReadWrite], settings());
    (0..2).for_each(|at| pool.put_dir(at, "d"));
    pool.put(1, "d/new", "x");
    assert_eq!(pool.setattr(pool.ino("d"), change).unwrap_err(), Errno::ROFS);
    let written = pool.on(1, "d").metadata().unwrap();
    assert_eq!(
        pool.stat("d").stat.mtime,
        Time { sec: written.mtime(), nsec: u32::try_from(written.mtime_nsec()).unwrap() }
    );
}

#[test]
fn an_owner_changes_on_all_copies() {
    needs!(root());
    let pool = TestBed::new(2);
    (0..2).for_each(|at| pool.put_dir(at, "d"));
    pool.setattr(pool.ino("d"), Change { uid: Some(5), gid: Some(6), ..Change::default() }).unwrap();
    for at in 0..2 {
        let meta = pool.on(at, "d").metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid()), (5, 6));
    }
}

#[test]
fn times_may_be_now_or_left_alone() {
    let pool = TestBed::new(1);
    let ino = pool.write("film", "x");
    let (a, m) = (Time { sec: 1, nsec: 2 }, Time { sec: -3, nsec: 4 });
    let change = Change { atime: Some(SetTime::At(a)), mtime: Some(SetTime::At(m)), ..Change::default() };
    let stat = pool.setattr(ino, change).unwrap().stat;
    assert_eq!((stat.atime, stat.mtime), (a, m));
    let stat = pool.setattr(ino, Change { atime: Some(SetTime::Now), ..Change::default() }).unwrap().stat;
    assert!(stat.atime.sec > 1_000_000_000);
    assert_eq!(stat.mtime, m);
    let stat = pool.setattr(ino, Change { mtime: Some(SetTime::Omit), ..Change::default() }).unwrap().stat;
    assert_eq!(stat.mtime, m);
}

#[test]
fn a_size_may_be_huge_and_sparse() {
    let pool = TestBed::new(1);
    let ino = pool.write("film", "abc");
    let size = |size| Change { size: Some(size), ..Change::default() };
    assert_eq!(pool.setattr(ino, size(1 << 40)).unwrap().stat.size, 1 << 40);
    assert_eq!(pool.setattr(ino, size(2)).unwrap().stat.size, 2);
    assert_eq!(pool.read_ino(ino).unwrap(), "ab");
}

#[test]
fn an_unlinked_open_file_takes_every_change() {
    let pool = TestBed::new(2);
    let file = pool.create("film").unwrap();
    pool.union.write(file.handle, 0, b"abc", WriteTerms::default()).unwrap();
    pool.unlink("film").unwrap();
    for handle in [Some(file.handle), None] {
        let change =
            Change { mode: Some(0o600), size: Some(1), mtime: Some(SetTime::Now), ..Change::default() };
        let stat = pool.union.setattr(file.ino, handle, change, Caller::DAEMON).unwrap().stat;
        assert_eq!((stat.mode & 0o7777, stat.size, stat.nlink), (0o600, 1, 0));
    }
    pool.union.setxattr(file.ino, c"user.a", b"b", 0, false, Caller::DAEMON).unwrap();
    let mut value = [0; 4];
    assert_eq!(pool.union.getxattr(file.ino, c"user.a", Caller::DAEMON, &mut value).unwrap(), 1);
}

/// A write by a user who may not keep the file's set-id bits.
const STRIPS: WriteTerms = WriteTerms { strips: Some(ALICE), sync: None, appends: false, direct: false };

#[test]
fn a_write_by_others_strips_the_set_id_bits() {
    let pool = TestBed::new(1);
    for (before, after) in [(0o4755, 0o755), (0o2755, 0o755), (0o2745, 0o745), (0o6777, 0o777)] {
        let file = pool.create(&format!("f{before:o}")).unwrap();
        pool.setattr(file.ino, mode(before)).unwrap();
        pool.union.write(file.handle, 0, b"x", WriteTerms::default()).unwrap();
        assert_eq!(
            pool.getattr(file.ino).unwrap().stat.mode & 0o7777,
            before,
            "a privileged write keeps them"
        );
        pool.union.write(file.handle, 0, b"x", STRIPS).unwrap();
        assert_eq!(pool.getattr(file.ino).unwrap().stat.mode & 0o7777, after, "{before:o}");
    }
}

#[test]
fn a_file_that_is_opened_later_is_stripped_too() {
    let pool = TestBed::new(1);
    let ino = pool.write("film", "x");
    pool.setattr(ino, mode(0o6755)).unwrap();
    let file = pool.open(ino, OFlags::WRONLY).unwrap();
    pool.union.write(file.handle, 0, b"x", STRIPS).unwrap();
    assert_eq!(pool.getattr(ino).unwrap().stat.mode & 0o7777, 0o755);
    // Set again while it is open.
    pool.setattr(ino, mode(0o4755)).unwrap();
    pool.union.write(file.handle, 0, b"x", STRIPS).unwrap();
    assert_eq!(pool.getattr(ino).unwrap().stat.mode & 0o7777, 0o755);
}

#[test]
fn truncation_by_others_strips_them() {
    let pool = TestBed::new(1);
    let ino = pool.write("film", "abc");
    pool.setattr(ino, mode(0o4755)).unwrap();
    pool.act_as(ALICE);
    pool.setattr(ino, Change { size: Some(1), ..Change::default() }).unwrap();
    assert_eq!(pool.getattr(ino).unwrap().stat.mode & 0o7777, 0o755);
    pool.act_as(Caller::DAEMON);
    pool.setattr(ino, mode(0o4755)).unwrap();
    pool.setattr(ino, Change { size: Some(1), ..Change::default() }).unwrap();
    assert_eq!(pool.getattr(ino).unwrap().stat.mode & 0o7777, 0o4755, "root keeps them");
    pool.act_as(ALICE);
    let file = pool.open(ino, OFlags::WRONLY | OFlags::TRUNC).unwrap();
    assert_eq!(pool.getattr(file.ino).unwrap().stat.mode & 0o7777, 0o755, "O_TRUNC");
}

#[test]
fn fallocate_by_others_strips_them() {
    let pool = TestBed::new(1);
    let file = pool.create("film").unwrap();
    pool.setattr(file.ino, mode(0o4755)).unwrap();
    pool.union.fallocate(file.handle, 0, 0, 4096, ALICE).unwrap();
    assert_eq!(pool.getattr(file.ino).unwrap().stat.mode & 0o7777, 0o755);
}

#[test]
fn a_change_of_owner_strips_them() {
    needs!(root());
    let pool = TestBed::new(1);
    let ino = pool.write("film", "abc");
    pool.setattr(ino, mode(0o6755)).unwrap();
    pool.setattr(ino, Change { uid: Some(5), strips: true, ..Change::default() }).unwrap();
    assert_eq!(pool.getattr(ino).unwrap().stat.mode & 0o7777, 0o755);
    // Owner and mode in one request: the new mode counts.
    let change = Change { uid: Some(6), mode: Some(0o4711), ..Change::default() };
    assert_eq!(pool.setattr(ino, change).unwrap().stat.mode & 0o7777, 0o4711);
}

#[test]
fn a_read_only_branch_refuses_every_change() {
    let pool = TestBed::with(&[ReadOnly, ReadWrite], settings());
    pool.put(0, "film", "abc");
    pool.put_dir(0, "d");
    pool.put_dir(1, "d");
    let before = pool.snapshot();
    let (film, dir) = (pool.ino("film"), pool.ino("d"));
    let reader = pool.open(film, OFlags::RDONLY).unwrap();
    for open in [true, false] {
        for change in [mode(0o600), Change { size: Some(0), ..Change::default() }] {
            assert_eq!(pool.setattr(film, change).unwrap_err(), Errno::ROFS, "{change:?}, open: {open}");
        }
        let now = Change { mtime: Some(SetTime::Now), ..Change::default() };
        assert_eq!(pool.setattr(film, now).unwrap_err(), Errno::ROFS);
        assert_eq!(
            pool.union.setxattr(film, c"user.a", b"b", 0, false, Caller::DAEMON).unwrap_err().errno(),
            Errno::ROFS
        );
        assert_eq!(pool.union.removexattr(film, c"user.a", Caller::DAEMON).unwrap_err().errno(), Errno::ROFS);
        if open {
            pool.close(reader);
        }
    }
    assert_eq!(pool.setattr(dir, mode(0o700)).unwrap_err(), Errno::ROFS, "the copy that the pool shows");
    assert_eq!(pool.snapshot(), before);
}

#[test]
fn a_set_uid_bit_and_a_strangers_first_open_never_meet() {
    needs!(root());
    let home = tempfile::tempdir().unwrap();
    let specs = [BranchSpec::new(home.path().to_owned())];
    let settings = Settings { write_path: WritePath::Passthrough, ..settings() };
    let union = Union::new(Pool::open(&specs, settings).unwrap(), Arc::new(AllPassthrough));
    let name = crate::test_bed::buf("prog");
    std::fs::write(home.path().join("prog"), "").unwrap();
    for round in 0..500 {
        std::fs::set_permissions(home.path().join("prog"), PermissionsExt::from_mode(0o666)).unwrap();
        let ino = union.lookup(Ino::ROOT, name.as_name()).unwrap().ino;
        let both = Barrier::new(2);
        let (opened, refused) = std::thread::scope(|scope| {
            let opener = scope.spawn(|| {
                both.wait();
                union.open(ino, OFlags::WRONLY, ALICE).unwrap()
            });
            both.wait();
            let changed = union.setattr(ino, None, mode(0o4666), Caller::DAEMON);
            (opener.join().unwrap(), changed.map_err(|e| e.errno()).err())
        });
        // Either the bit is refused, or the stranger's writes go through the daemon, which clears it.
        let set = std::fs::metadata(home.path().join("prog")).unwrap().mode() & 0o4000 != 0;
        let past_us = matches!(opened.route, Route::Passthrough(_));
        assert!(!(set && past_us), "round {round}: {:?}, {refused:?}", opened.route);
        assert_eq!(refused, (!set).then_some(Errno::TXTBSY));
        union.release(opened.handle);
        union.forget(ino, 1);
    }
    union.destroy();
}

#[test]
fn a_truncation_by_name_to_the_present_size_keeps_the_times() {
    let pool = TestBed::new(1);
    let ino = pool.write("film", "text");
    let past = SetTime::At(Time { sec: 1_000_000_000, nsec: 0 });
    let mtime = |size, handle| {
        pool.setattr(ino, Change { mtime: Some(past), ..Change::default() }).unwrap();
        let change = Change { size: Some(size), ..Change::default() };
        pool.union.setattr(ino, handle, change, Caller::DAEMON).unwrap();
        pool.stat("film").stat.mtime.sec
    };
    assert_eq!(mtime(4, None), 1_000_000_000);
    assert!(mtime(0, None) > 1_000_000_000);
    assert!(mtime(0, None) > 1_000_000_000, "O_TRUNC of an empty file");
    assert!(mtime(5, None) > 1_000_000_000);
    let open = pool.open(ino, OFlags::RDWR).unwrap();
    assert_eq!(mtime(5, None), 1_000_000_000);
    assert!(mtime(5, Some(open.handle)) > 1_000_000_000, "ftruncate(2)");
    assert_eq!(pool.read("film").unwrap(), "\0".repeat(5));
    pool.close(open);
}
