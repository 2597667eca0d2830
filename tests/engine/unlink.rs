//! Removing files: every copy, or nothing.

use fsstack_engine::ops::WriteTerms;
use fsstack_lab::needs;
use fsstack_lab::shell::command;
use fsstack_pool::BranchMode::{ReadOnly, ReadWrite};
use fsstack_sys::{Errno, OFlags};

use crate::fixed_beside::FixedBeside;
use crate::test_bed::{TestBed, settings};

#[test]
fn every_copy_goes_and_none_comes_to_light() {
    let pool = TestBed::new(3);
    for at in 0..3 {
        pool.put(at, "d/film", "x");
    }
    pool.unlink("d/film").unwrap();
    assert_eq!(pool.find("d/film").unwrap_err(), Errno::NOENT);
    assert!(pool.holders("d/film").is_empty());
    assert_eq!(pool.unlink("d/film").unwrap_err(), Errno::NOENT);
}

#[test]
fn a_copy_on_a_read_only_branch_keeps_all_copies() {
    for modes in [[ReadOnly, ReadWrite, ReadWrite], [ReadWrite, ReadWrite, ReadOnly]] {
        let pool = TestBed::with(&modes, settings());
        for at in 0..3 {
            pool.put(at, "film", "x");
        }
        let before = pool.snapshot();
        assert_eq!(pool.unlink("film").unwrap_err(), Errno::ROFS);
        assert_eq!(pool.snapshot(), before);
    }
}

#[test]
fn a_file_that_only_writable_branches_have_goes_beside_a_read_only_branch() {
    let pool = TestBed::with(&[ReadOnly, ReadWrite], settings());
    pool.put(1, "film", "x");
    pool.unlink("film").unwrap();
    assert!(pool.holders("film").is_empty());
}

#[test]
fn a_file_goes_beside_a_branch_that_is_mounted_read_only() {
    needs!(root());
    for fixed in 0..2 {
        let beside = FixedBeside::new();
        let pool = beside.pool(fixed);
        pool.put(1 - fixed, "d/film", "x");
        assert_eq!(pool.unlink("d/none").unwrap_err(), Errno::NOENT);
        pool.unlink("d/film").unwrap();
        assert!(pool.holders("d/film").is_empty(), "{fixed}");
        // Its own file is shown, and stays.
        pool.put(1 - fixed, "d/kept", "x");
        let before = pool.snapshot();
        assert_eq!(pool.unlink("d/kept").unwrap_err(), Errno::ROFS);
        assert_eq!(pool.snapshot(), before);
    }
}

#[test]
fn a_directory_is_not_unlinked() {
    let pool = TestBed::new(2);
    pool.put_dir(0, "d");
    pool.put_dir(1, "d");
    let before = pool.snapshot();
    assert!(matches!(pool.unlink("d"), Err(Errno::ISDIR | Errno::PERM)));
    assert_eq!(pool.snapshot(), before);
}

#[test]
fn a_file_goes_where_a_later_branch_hides_a_directory() {
    let pool = TestBed::new(2);
    pool.put(0, "x", "file");
    pool.put(1, "x/inside", "kept");
    pool.find("x").unwrap();
    pool.unlink("x").unwrap();
    assert_eq!(pool.holders("x"), [1]);
    assert_eq!(pool.read("x/inside").unwrap(), "kept");
}

#[test]
fn an_unlinked_open_file_goes_on() {
    let pool = TestBed::new(2);
    let file = pool.create("film").unwrap();
    pool.union.write(file.handle, 0, b"still here", WriteTerms::default()).unwrap();
    pool.unlink("film").unwrap();
    assert_eq!(pool.read_handle(file), "still here");
    assert_eq!(pool.getattr(file.ino).unwrap().stat.nlink, 0);
    // Opened through /proc/self/fd, as the kernel would request it.
    let again = pool.open(file.ino, OFlags::RDWR).unwrap();
    assert_eq!(pool.union.write(again.handle, 0, b"STILL", WriteTerms::default()).unwrap(), 5);
    pool.close(file);
    assert_eq!(pool.read_handle(again), "STILL here");
    pool.close(again);
    // It is closed, but the kernel knows it, as with a descriptor opened with O_PATH.
    assert_eq!(pool.getattr(file.ino).unwrap().stat.nlink, 0);
}

#[test]
fn a_name_used_again_is_another_file() {
    let pool = TestBed::new(2);
    let first = pool.create("film").unwrap();
    pool.unlink("film").unwrap();
    let second = pool.write("film", "new");
    assert_ne!(first.ino, second);
    assert_eq!(pool.read_handle(first), "");
    assert_eq!(pool.read("film").unwrap(), "new");
}

#[test]
fn an_open_file_outlives_its_directory() {
    let pool = TestBed::new(2);
    pool.mkdir("d").unwrap();
    let file = pool.create("d/film").unwrap();
    pool.union.write(file.handle, 0, b"x", WriteTerms::default()).unwrap();
    pool.unlink("d/film").unwrap();
    pool.rmdir("d").unwrap();
    assert_eq!(pool.read_handle(file), "x");
    assert_eq!(pool.getattr(file.ino).unwrap().stat.size, 1);
}

#[test]
fn a_removal_that_is_refused_removes_no_copy() {
    needs!(root());
    let pool = TestBed::new(3);
    for at in 1..3 {
        for path in ["d/film", "fixed/film", "gone/film", "over/film", "into/film", "dirs/sub/film"] {
            pool.put(at, path, if at == 1 { "shown" } else { "hidden" });
        }
        std::fs::remove_file(pool.on(at, "dirs/sub/film")).unwrap();
    }
    pool.put(0, "over/new", "new");
    pool.put_dir(0, "d");
    // The shown object, its directory, a hidden object, the target of a rename, a directory.
    let fixed = [(1, "d/film"), (1, "fixed"), (2, "gone/film"), (1, "over/film"), (1, "dirs/sub")];
    let chattr = |how: &str| {
        for (at, path) in fixed {
            command("chattr").arg(how).arg(pool.on(at, path)).run().unwrap();
        }
    };
    chattr("+i");
    let before = pool.snapshot();
    let refused = [
        ("unlink", pool.unlink("d/film")),
        ("rename", pool.rename("d/film", "d/other")),
        ("unlink in a fixed directory", pool.unlink("fixed/film")),
        ("unlink of a fixed hidden file", pool.unlink("gone/film")),
        ("rename over", pool.rename("over/new", "over/film")),
        ("rename into a fixed directory", pool.rename("into/film", "fixed/other")),
        ("rmdir", pool.rmdir("dirs/sub")),
    ];
    let after = pool.snapshot();
    chattr("-i");
    for (how, answer) in refused {
        assert_eq!(answer, Err(Errno::PERM), "{how}");
    }
    assert_eq!(after, before);
    assert_eq!(pool.holders("dirs/sub"), [1, 2]);
    pool.rename("over/new", "over/film").unwrap();
    assert_eq!(pool.holders("over/film"), [0]);
    pool.unlink("d/film").unwrap();
    pool.rmdir("dirs/sub").unwrap();
    assert!(pool.holders("d/film").is_empty() && pool.holders("dirs/sub").is_empty());
}
