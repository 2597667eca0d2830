//! Removing directories: every branch is checked before any is changed.

use fsstack_lab::needs;
use fsstack_pool::BranchMode::{ReadOnly, ReadWrite};
use fsstack_sys::Errno;

use crate::fixed_beside::FixedBeside;
use crate::test_bed::{TestBed, settings};

#[test]
fn an_entry_on_any_branch_is_enotempty_and_nothing_is_removed() {
    for full in 0..3 {
        let pool = TestBed::new(3);
        (0..3).for_each(|at| pool.put_dir(at, "d"));
        pool.put(full, "d/x", "");
        let before = pool.snapshot();
        assert_eq!(pool.rmdir("d").unwrap_err(), Errno::NOTEMPTY, "{full}");
        assert_eq!(pool.snapshot(), before);
    }
}

#[test]
fn an_empty_directory_goes_from_all_branches() {
    let pool = TestBed::new(3);
    (0..3).for_each(|at| pool.put_dir(at, "p/d"));
    pool.rmdir("p/d").unwrap();
    assert!(pool.holders("p/d").is_empty());
    assert_eq!(pool.holders("p"), [0, 1, 2]);
    assert_eq!(pool.rmdir("p/d").unwrap_err(), Errno::NOENT);
}

#[test]
fn a_copy_on_a_read_only_branch_keeps_all_copies() {
    for modes in [[ReadOnly, ReadWrite], [ReadWrite, ReadOnly]] {
        let pool = TestBed::with(&modes, settings());
        (0..2).for_each(|at| pool.put_dir(at, "d"));
        let before = pool.snapshot();
        assert_eq!(pool.rmdir("d").unwrap_err(), Errno::ROFS);
        assert_eq!(pool.snapshot(), before);
    }
}

#[test]
fn an_only_copy_on_a_read_only_branch_stays() {
    for modes in [&[ReadOnly][..], &[ReadOnly, ReadWrite], &[ReadWrite, ReadOnly]] {
        let pool = TestBed::with(modes, settings());
        let at = modes.iter().position(|mode| *mode == ReadOnly).unwrap();
        pool.put_dir(at, "p/d");
        let before = pool.snapshot();
        assert_eq!(pool.rmdir("p/d").unwrap_err(), Errno::ROFS, "{modes:?}");
        assert_eq!(pool.snapshot(), before);
    }
}

#[test]
fn a_directory_goes_beside_a_branch_that_is_mounted_read_only() {
    needs!(root());
    for fixed in 0..3 {
        let beside = FixedBeside::new();
        let pool = beside.pool_with_third(fixed);
        let others = (0..3).filter(|at| *at != fixed);
        others.clone().for_each(|at| pool.put_dir(at, "d/dir"));
        pool.rmdir("d/dir").unwrap();
        assert!(pool.holders("d/dir").is_empty(), "{fixed}");
        assert_eq!(pool.rmdir("d/dir").unwrap_err(), Errno::NOENT);
        others.for_each(|at| pool.put_dir(at, "d/sub"));
        let before = pool.snapshot();
        assert_eq!(pool.rmdir("d/sub").unwrap_err(), Errno::ROFS);
        assert_eq!(pool.snapshot(), before);
    }
}

#[test]
fn a_file_is_enotdir() {
    for branches in 1..3 {
        let pool = TestBed::new(branches);
        pool.put(branches - 1, "film", "x");
        assert_eq!(pool.rmdir("film").unwrap_err(), Errno::NOTDIR);
        assert_eq!(pool.read("film").unwrap(), "x");
    }
}

#[test]
fn nothing_is_made_in_a_removed_directory() {
    let pool = TestBed::new(2);
    let dir = pool.mkdir("d").unwrap();
    pool.find("d").unwrap();
    pool.rmdir("d").unwrap();
    let name = crate::test_bed::buf("x");
    let new = fsstack_engine::ops::New::Dir(0o755);
    let error = pool.union.make(dir, name.as_name(), new, fsstack_engine::Caller::DAEMON).unwrap_err();
    assert!(matches!(error.errno(), Errno::NOENT | Errno::STALE), "{error}");
    assert!(pool.snapshot().is_empty());
}

#[test]
fn a_directory_of_the_same_name_made_later_is_another() {
    let pool = TestBed::new(2);
    let first = pool.mkdir("d").unwrap();
    pool.rmdir("d").unwrap();
    pool.put(1, "d/x", "");
    assert_ne!(pool.ino("d"), first);
    assert_eq!(pool.names("d"), ["x"]);
}

#[test]
fn an_only_copy_with_an_entry_stays_and_gets_other_copies_as_before() {
    let pool = TestBed::new(2);
    let dir = pool.mkdir("d").unwrap();
    let at = pool.holders("d")[0];
    pool.put(at, "d/x", "");
    assert_eq!(pool.rmdir("d").unwrap_err(), Errno::NOTEMPTY);
    // Renaming a file of the other branch into it makes a copy there.
    let other = 1 - at;
    pool.put(other, "y", "y");
    let (from, to) = (crate::test_bed::buf("y"), crate::test_bed::buf("y"));
    let flags = fsstack_sys::at::RenameFlags::empty();
    let root = fsstack_pool::Ino::ROOT;
    pool.union.rename((root, from.as_name()), (dir, to.as_name()), flags).unwrap();
    assert_eq!(pool.holders("d"), [0, 1]);
    assert_eq!(pool.rmdir("d").unwrap_err(), Errno::NOTEMPTY);
    assert_eq!(pool.read("d/y").unwrap(), "y");
}

#[test]
fn a_copy_that_came_behind_the_pools_back_keeps_the_directory_once_it_is_asked_for() {
    let pool = TestBed::with(&[ReadWrite; 2], crate::test_bed::wary());
    pool.mkdir("d").unwrap();
    let at = pool.holders("d")[0];
    pool.put(1 - at, "d/x", "x");
    let before = pool.snapshot();
    assert_eq!(pool.rmdir("d").unwrap_err(), Errno::NOTEMPTY);
    assert_eq!(pool.snapshot(), before);
}

#[test]
fn creates_race_a_removal_and_none_is_lost() {
    let pool = TestBed::new(2);
    for round in 0..50 {
        let (dir, keep) = (format!("d{round}"), format!("k{round}"));
        let ino = pool.mkdir(&dir).unwrap();
        pool.put(1, &keep, "x");
        let union = &pool.union;
        let (from, to, name) =
            (crate::test_bed::buf(&keep), crate::test_bed::buf("x"), crate::test_bed::buf(&dir));
        let root = fsstack_pool::Ino::ROOT;
        let (renamed, removed) = std::thread::scope(|scope| {
            let flags = fsstack_sys::at::RenameFlags::empty();
            let rename =
                scope.spawn(move || union.rename((root, from.as_name()), (ino, to.as_name()), flags));
            let rmdir = scope.spawn(move || union.rmdir(root, name.as_name()));
            (rename.join().unwrap(), rmdir.join().unwrap())
        });
        assert!(renamed.is_ok() != removed.is_ok(), "{renamed:?} {removed:?}");
        if removed.is_ok() {
            assert!(pool.holders(&dir).is_empty(), "a skeleton was left");
            assert_eq!(pool.read(&keep).unwrap(), "x");
        } else {
            assert_eq!(pool.read(&format!("{dir}/x")).unwrap(), "x");
        }
    }
}
