//! Lookups: the first branch wins, directories merge, a known name is one call to one branch.

use fsstack_pool::Ino;
use fsstack_sys::{Errno, Kind};

use crate::test_bed::{TestBed, wary};
use fsstack_pool::BranchMode::ReadWrite;

#[test]
fn the_first_branch_that_has_a_file_wins() {
    let pool = TestBed::new(3);
    pool.put(2, "film", "third");
    assert_eq!(pool.read("film").unwrap(), "third");
    let pool = TestBed::new(3);
    pool.put(1, "film", "second");
    pool.put(2, "film", "third");
    assert_eq!(pool.read("film").unwrap(), "second");
}

#[test]
fn directories_merge() {
    let pool = TestBed::new(3);
    pool.put(0, "d/a", "0");
    pool.put(1, "d/b", "1");
    pool.put(2, "d/sub/c", "2");
    assert_eq!(pool.names("d"), ["a", "b", "sub"]);
    assert_eq!(pool.read("d/b").unwrap(), "1");
    assert_eq!(pool.read("d/sub/c").unwrap(), "2");
}

#[test]
fn a_file_before_a_directory_of_the_same_name_wins() {
    let pool = TestBed::new(2);
    pool.put(0, "x", "file");
    pool.put(1, "x/inside", "hidden");
    assert_eq!(pool.find("x").unwrap().attr.stat.kind(), Kind::File);
    assert_eq!(pool.read("x").unwrap(), "file");
    let pool = TestBed::new(3);
    pool.put(0, "x/a", "0");
    pool.put(1, "x", "hidden file");
    pool.put(2, "x/b", "2");
    assert_eq!(pool.find("x").unwrap().attr.stat.kind(), Kind::Dir);
    assert_eq!(pool.names("x"), ["a", "b"]);
}

#[test]
fn a_missing_name_is_enoent_and_a_file_is_no_directory() {
    let pool = TestBed::new(2);
    pool.put(1, "film", "");
    assert_eq!(pool.find("nothing").unwrap_err(), Errno::NOENT);
    assert_eq!(pool.find("film/x").unwrap_err(), Errno::NOTDIR);
    assert_eq!(pool.lookup(Ino(99 << 48), "x").unwrap_err(), Errno::STALE);
}

#[test]
fn names_may_be_any_bytes_up_to_255() {
    let pool = TestBed::new(2);
    for name in ["new\nline", "\u{7f}\u{1}", &"n".repeat(255)] {
        pool.put(1, name, name);
        assert_eq!(pool.read(name).unwrap(), name);
    }
}

#[test]
fn the_same_name_looked_up_by_many_threads_is_one_inode() {
    let pool = TestBed::with(&[ReadWrite, ReadWrite], wary());
    pool.put(1, "d/film", "x");
    let union = &pool.union;
    let name = crate::test_bed::buf("d");
    let numbers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| union.lookup(Ino::ROOT, name.as_name()).unwrap().ino)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(numbers.iter().all(|ino| *ino == numbers[0]), "{numbers:?}");
    assert_eq!(union.held().inodes, 1);
    union.forget(numbers[0], 7);
    assert_eq!(union.held().inodes, 1);
    union.forget(numbers[0], 1);
    assert_eq!(union.held().inodes, 0);
}

#[test]
fn a_directory_shows_the_attributes_of_its_first_copy_and_the_newest_mtime() {
    let pool = TestBed::with(&[ReadWrite, ReadWrite], wary());
    pool.put_dir(0, "d");
    pool.put_dir(1, "d");
    std::fs::set_permissions(pool.on(0, "d"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    pool.put(1, "d/later", "");
    let newest = std::fs::metadata(pool.on(1, "d")).unwrap();
    let seen = pool.find("d").unwrap().attr.stat;
    assert_eq!(seen.mode & 0o7777, 0o700);
    assert_eq!(seen.mtime.sec, std::os::unix::fs::MetadataExt::mtime(&newest));
    assert_eq!(i64::from(seen.mtime.nsec), std::os::unix::fs::MetadataExt::mtime_nsec(&newest));
}
