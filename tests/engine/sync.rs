//! Syncs of files, of directories on all branches, and of the whole pool.

use std::fs;

use fsstack_pool::{Handle, Ino};
use fsstack_sys::{Call, Errno, count};

use crate::test_bed::TestBed;

#[test]
fn files_directories_and_the_pool() {
    let pool = TestBed::new(3);
    (0..3).for_each(|at| pool.put_dir(at, "d"));
    let file = pool.create("d/film").unwrap();
    let dir = pool.ino("d");
    for data_only in [false, true] {
        let (done, made) = count::scope(|| pool.union.fsync(file.handle, data_only));
        done.unwrap();
        assert_eq!(made.of(Call::Fsync), 1, "the branch is asked, each time");
        let (done, made) = count::scope(|| pool.union.fsyncdir(dir, Handle(0), data_only));
        done.unwrap();
        assert_eq!(made.of(Call::Fsync), 3, "every copy of a directory");
    }
    let (done, made) = count::scope(|| pool.union.syncfs());
    done.unwrap();
    assert!(made.of(Call::Syncfs) >= 1);
    assert_eq!(pool.union.fsyncdir(file.ino, Handle(0), false).unwrap_err().errno(), Errno::NOTDIR);
    pool.union.fsyncdir(Ino::ROOT, Handle(0), false).unwrap();
}

#[test]
fn a_copy_of_a_directory_that_is_gone_does_not_count() {
    let pool = TestBed::new(3);
    (0..3).for_each(|at| pool.put_dir(at, "d/e"));
    let dir = pool.ino("d/e");
    fs::remove_dir(pool.on(1, "d/e")).unwrap();
    let (done, made) =
        count::scope(|| pool.union.fsyncdir(dir, Handle(0), false).map_err(|error| error.errno()));
    assert_eq!((done, made.of(Call::Fsync)), (Ok(()), 2));
    [0, 2].into_iter().for_each(|at| fs::remove_dir(pool.on(at, "d/e")).unwrap());
    // The directories are still open, and are synced.
    pool.union.fsyncdir(dir, Handle(0), false).unwrap();
    let gone = TestBed::new(2);
    (0..2).for_each(|at| gone.put_dir(at, "d/e"));
    let dir = gone.ino("d/e");
    (0..2).for_each(|at| fs::remove_dir(gone.on(at, "d/e")).unwrap());
    assert_eq!(gone.union.fsyncdir(dir, Handle(0), false).map_err(|error| error.errno()), Err(Errno::STALE));
}
