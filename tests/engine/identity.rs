//! Numbers: stable over remounts and branch orders, unchanged by rename, unique per file.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use fsstack_lab::needs;
use fsstack_pool::BranchMode::{NoCreate, ReadWrite};
use fsstack_pool::Ino;
use fsstack_sys::xattr::{self, On};

use crate::test_bed::{TestBed, settings};

/// Attribute with a branch's id.
const ID: &CStr = c"trusted.fsstack.branch";

fn numbers(pool: &TestBed, paths: &[&str]) -> BTreeMap<String, (Ino, u64)> {
    let number = |path: &&str| {
        let entry = pool.find(path).unwrap();
        assert_eq!(entry.ino, entry.attr.ino);
        ((*path).to_owned(), (entry.ino, entry.generation))
    };
    paths.iter().map(number).collect()
}

const PATHS: [&str; 7] = ["f0", "f1", "f2", "one", "two", "two/in", "made"];

fn pool() -> TestBed {
    let pool = TestBed::new(3);
    pool.put(0, "f0", "");
    pool.put(1, "f1", "");
    pool.put(2, "f2", "");
    pool.put_dir(2, "one");
    pool.put_dir(1, "two");
    pool.put(2, "two/in", "");
    pool.mkdir("made").unwrap();
    // The pool gives a branch a copy of a directory that it made.
    pool.rename("f2", "made/f2").unwrap();
    pool.rename("made/f2", "f2").unwrap();
    assert_eq!(pool.holders("made"), [0, 2]);
    pool
}

#[test]
fn numbers_are_the_same_after_a_remount() {
    let mut pool = pool();
    let before = numbers(&pool, &PATHS);
    pool.remount(|_| ());
    assert_eq!(numbers(&pool, &PATHS), before);
}

#[test]
fn numbers_are_the_same_in_another_order_of_branches() {
    let mut pool = pool();
    let before = numbers(&pool, &PATHS);
    for _ in 0..3 {
        pool.remount(|branches| branches.rotate_left(1));
        assert_eq!(numbers(&pool, &PATHS), before);
        pool.remount(|branches| branches.reverse());
        assert_eq!(numbers(&pool, &PATHS), before);
    }
}

#[test]
fn a_directory_keeps_its_number_when_its_first_copy_is_out_of_the_pool() {
    let mut pool = pool();
    let before = numbers(&pool, &["made"]);
    pool.remount(|branches| drop(branches.remove(0)));
    assert_eq!(numbers(&pool, &["made"]), before);
}

#[test]
fn a_directory_keeps_its_number_as_it_gains_copies() {
    let mut pool = TestBed::new(3);
    pool.put(1, "f1", "");
    pool.put(2, "f2", "");
    pool.mkdir("d").unwrap();
    pool.mkdir("d/sub").unwrap();
    let before = numbers(&pool, &["d", "d/sub"]);
    pool.rename("f1", "d/sub/f1").unwrap();
    pool.rename("f2", "d/sub/f2").unwrap();
    assert_eq!(pool.holders("d/sub"), [0, 1, 2]);
    assert_eq!(numbers(&pool, &["d", "d/sub"]), before);
    pool.remount(|_| ());
    assert_eq!(numbers(&pool, &["d", "d/sub"]), before);
}

#[test]
fn a_rename_keeps_the_number() {
    let mut pool = pool();
    let file = numbers(&pool, &["f1"])["f1"];
    let dir = numbers(&pool, &["two"])["two"];
    pool.rename("f1", "made/g1").unwrap();
    pool.rename("two", "made/zwei").unwrap();
    assert_eq!(numbers(&pool, &["made/g1"])["made/g1"], file);
    assert_eq!(numbers(&pool, &["made/zwei"])["made/zwei"], dir);
    pool.remount(|_| ());
    assert_eq!(numbers(&pool, &["made/g1"])["made/g1"], file);
    assert_eq!(numbers(&pool, &["made/zwei"])["made/zwei"], dir);
}

#[test]
fn a_number_used_again_has_another_generation() {
    let pool = TestBed::new(1);
    pool.put(0, "f", "");
    let first = pool.find("f").unwrap();
    for _ in 0..1000 {
        pool.unlink("f").unwrap();
        pool.put(0, "f", "");
        let next = pool.find("f").unwrap();
        if next.ino == first.ino {
            assert_ne!(next.generation, first.generation);
            return;
        }
    }
    fsstack_lab::Skip::because("the file system under /tmp did not use an inode number again").announce();
}

#[test]
fn no_two_objects_share_a_number() {
    let pool = TestBed::new(3);
    let mut seen = BTreeMap::new();
    for at in 0..3 {
        for n in 0..50 {
            let path = format!("d{at}/n{n}");
            pool.put(at, &path, "");
            assert_eq!(seen.insert(pool.ino(&path), path), None);
        }
    }
    assert!(seen.keys().all(|ino| ino.0 > Ino::ROOT.0));
}

#[test]
fn the_root_is_one_and_of_generation_nought() {
    let pool = TestBed::new(2);
    let root = pool.getattr(Ino::ROOT).unwrap();
    assert_eq!(root.ino, Ino::ROOT);
    assert!(root.stat.is_dir());
}

#[test]
fn a_branch_copied_with_its_id_gets_another_and_keeps_it() {
    needs!(root());
    let mut pool = TestBed::new(2);
    let id = |pool: &TestBed, at: usize| {
        let mut value = [0; 16];
        let root = fs::File::open(pool.branch(at)).unwrap();
        assert_eq!(xattr::get(On::Fd(root.as_fd()), ID, &mut value).unwrap(), 16);
        value
    };
    let first = id(&pool, 0);
    let copy = fs::File::open(pool.branch(1)).unwrap();
    xattr::set(On::Fd(copy.as_fd()), ID, &first, 0).unwrap();
    pool.remount(|_| ());
    assert_eq!(id(&pool, 0), first);
    assert_ne!(id(&pool, 1), first);
    pool.put(0, "f0", "");
    pool.put(1, "f1", "");
    let before = numbers(&pool, &["f0", "f1"]);
    // It is stored: the number stays in another order, and without the branch that had the id first.
    pool.remount(|branches| branches.reverse());
    assert_eq!(numbers(&pool, &["f0", "f1"]), before);
    pool.remount(|branches| branches.retain(|branch| branch.path.join("f1").exists()));
    assert_eq!(numbers(&pool, &["f1"])["f1"], before["f1"]);
}

/// Without NFS clients no index protects the number of a removed copy: the branch's next object may get it.
#[test]
fn a_directory_that_lost_its_first_copy_does_not_keep_a_number_that_is_free() {
    needs!(root());
    let mut pool = TestBed::with(&[NoCreate, ReadWrite, NoCreate], settings());
    pool.put_dir(0, "dir");
    pool.write("dir/file", "on the other branch");
    let (first, own) = (pool.ino("dir"), fs::metadata(pool.on(1, "dir")).unwrap().ino());
    let lost = pool.on(0, "dir");
    let mut away = None;
    pool.remount(|specs| away = Some(specs.remove(0)));
    assert_eq!(pool.ino("dir"), first, "its first copy may be there still");
    fs::remove_dir(lost).unwrap();
    pool.remount(|specs| specs.insert(0, away.unwrap()));
    let by_number = pool.union.pool().branches[0].by_number.is_some();
    if by_number {
        assert_eq!(pool.ino("dir").0 & ((1 << 48) - 1), own, "that of the copy that is left");
    }
    let number = pool.ino("dir");
    pool.remount(|_| {});
    assert_eq!(pool.ino("dir"), number);
}
