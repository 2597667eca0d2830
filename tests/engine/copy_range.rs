//! Copying inside the pool: on one branch, and across file systems with holes kept.

use fsstack_engine::Caller;
use fsstack_engine::ops::{Whence, WriteTerms};
use fsstack_lab::needs;
use fsstack_pool::BranchMode::ReadWrite;
use fsstack_sys::{Call, Errno, OFlags, count};

use crate::test_bed::{File, TestBed, distinct_homes, settings};

/// Writes 1 MiB of hole, data and 2 MiB of hole, then copies it to `target`.
fn copy_with_holes(pool: &TestBed, source: File, target: File) {
    pool.union.write(source.handle, 1 << 20, &[1; 100_000], WriteTerms::default()).unwrap();
    pool.union.write(source.handle, 4 << 20, &[2; 50_000], WriteTerms::default()).unwrap();
    // Old content of the target must read as zeros afterwards.
    pool.union.write(target.handle, 0, &[9; 3 << 20], WriteTerms::default()).unwrap();
    let size = (4 << 20) + 50_000;
    let mut done = 0;
    while done < size {
        let from = (source.handle, done);
        let copied = pool.union.copy_range(from, (target.handle, done), size - done, Caller::DAEMON).unwrap();
        assert!(copied > 0);
        done += copied;
    }
    let (mut a, mut b) = (vec![0; 5 << 20], vec![0; 5 << 20]);
    let read = pool.union.read(source.handle, 0, &mut a).unwrap();
    assert_eq!(pool.union.read(target.handle, 0, &mut b).unwrap(), read);
    assert!(a == b, "the copy differs");
    let end = pool.union.copy_range((source.handle, size), (target.handle, size), 1 << 20, Caller::DAEMON);
    assert_eq!(end.unwrap(), 0);
}

#[test]
fn on_one_branch() {
    let pool = TestBed::new(1);
    copy_with_holes(&pool, pool.create("a").unwrap(), pool.create("b").unwrap());
}

/// Copies within a branch are the branch's own, which NFS clients use through COPY.
#[test]
fn on_one_branch_nothing_travels_through_the_daemon() {
    let pool = TestBed::new(2);
    let (source, target) = (pool.create("a").unwrap(), pool.create("b").unwrap());
    pool.union.write(source.handle, 0, &[1; 100_000], WriteTerms::default()).unwrap();
    let copy = || pool.union.copy_range((source.handle, 0), (target.handle, 0), 100_000, Caller::DAEMON);
    let (copied, made) = count::scope(copy);
    assert_eq!(copied.unwrap(), 100_000);
    assert!(made.of(Call::CopyRange) >= 1, "{made:?}");
    assert_eq!((made.of(Call::Read), made.of(Call::Write)), (0, 0), "{made:?}");
}

#[test]
fn across_branches_holes_stay_holes() {
    let homes = match distinct_homes() {
        Err(skip) => return skip.announce(),
        Ok(homes) => homes,
    };
    let pool = TestBed::over(homes, &[ReadWrite, ReadWrite], settings());
    pool.put(1, "b", "");
    let source = pool.create("a").unwrap();
    let target = pool.open(pool.ino("b"), OFlags::RDWR).unwrap();
    copy_with_holes(&pool, source, target);
    assert_eq!(pool.holders("b"), [1]);
    assert_eq!(pool.union.seek(target.handle, 0, Whence::Data).unwrap(), 1 << 20);
}

#[test]
fn one_call_copies_as_much_of_a_sparse_file_across_branches_as_within_one() {
    let pool = TestBed::new(2);
    pool.put(1, "b", "");
    let source = pool.create("a").unwrap();
    let target = pool.open(pool.ino("b"), OFlags::RDWR).unwrap();
    let size = (5 << 30) + 1;
    pool.union.write(source.handle, size - 1, b"x", WriteTerms::default()).unwrap();
    let copied = |at| {
        pool.union.copy_range((source.handle, at), (target.handle, at), size - at, Caller::DAEMON).unwrap()
    };
    // The kernel's own maximum.
    assert_eq!(copied(0), 0x7fff_f000);
    assert_eq!(copied(2 * 0x7fff_f000), size - 2 * 0x7fff_f000);
    assert_eq!(pool.getattr(target.ino).unwrap().stat.size, size);
    assert_eq!(pool.holders("b"), [1]);
}

#[test]
fn a_copy_by_others_strips_the_set_id_bits() {
    let pool = TestBed::new(1);
    let (source, target) = (pool.create("a").unwrap(), pool.create("b").unwrap());
    pool.union.write(source.handle, 0, b"x", WriteTerms::default()).unwrap();
    let change = fsstack_engine::ops::Change { mode: Some(0o4755), ..Default::default() };
    pool.setattr(target.ino, change).unwrap();
    let alice = Caller { uid: 1234, ..Caller::DAEMON };
    assert_eq!(pool.union.copy_range((source.handle, 0), (target.handle, 0), 1, alice).unwrap(), 1);
    assert_eq!(pool.getattr(target.ino).unwrap().stat.mode & 0o7777, 0o755);
}

#[test]
fn within_one_file() {
    let pool = TestBed::new(1);
    let file = pool.create("a").unwrap();
    pool.union.write(file.handle, 0, b"abc", WriteTerms::default()).unwrap();
    assert_eq!(pool.union.copy_range((file.handle, 0), (file.handle, 3), 3, Caller::DAEMON).unwrap(), 3);
    assert_eq!(pool.read_handle(file), "abcabc");
    pool.close(file);
    let failure = pool.union.copy_range((file.handle, 0), (file.handle, 3), 3, Caller::DAEMON).unwrap_err();
    assert_eq!(failure.errno(), Errno::BADF);
}

/// An open handle may still write, a new one may not: across branches the daemon would have to write.
#[test]
fn immutable_files_are_not_copied_into() {
    needs!(root());
    let homes = match distinct_homes() {
        Err(skip) => return skip.announce(),
        Ok(homes) => homes,
    };
    let pool = TestBed::over(homes, &[ReadWrite, ReadWrite], settings());
    // XFS lets an open immutable file be written, ext4 does not.
    pool.put(0, "a", "aaaa");
    pool.put(1, "b", "bbbb");
    let source = pool.open(pool.ino("a"), OFlags::RDONLY).unwrap();
    let target = pool.open(pool.ino("b"), OFlags::RDWR).unwrap();
    let copy = |target: File| {
        let failure = pool.union.copy_range((source.handle, 0), (target.handle, 0), 2, Caller::DAEMON);
        failure.map_err(|error| error.errno())
    };
    let set = |what: &str| {
        fsstack_lab::shell::command("chattr").arg(what).arg(pool.on(1, "b")).run().unwrap();
    };
    set("+i");
    let failure = copy(target);
    set("-i");
    assert_eq!(failure, Err(Errno::PERM));
    assert_eq!(pool.read_handle(target), "bbbb");
    // A handle opened for appending, which has dropped O_APPEND, may still only append.
    pool.close(target);
    set("+a");
    let appender = pool.open(target.ino, OFlags::WRONLY | OFlags::APPEND).unwrap();
    let failure = copy(appender);
    set("-a");
    assert_eq!(failure, Err(Errno::PERM));
    assert_eq!(pool.read_ino(target.ino).unwrap(), "bbbb");
}

/// A write by such a handle is, and on a local disk these calls are too.
#[test]
fn what_a_synced_handle_is_given_is_on_disk() {
    let pool = TestBed::new(2);
    pool.put(1, "b", "");
    let source = pool.create("a").unwrap();
    pool.union.write(source.handle, 0, &[1; 100_000], WriteTerms::default()).unwrap();
    for (flags, call) in [(OFlags::SYNC, Call::Fsync), (fsstack_sys::O_DSYNC, Call::Fsync)] {
        let target = pool.open(pool.ino("b"), OFlags::RDWR | flags).unwrap();
        let copy = || pool.union.copy_range((source.handle, 0), (target.handle, 0), 100_000, Caller::DAEMON);
        let (copied, made) = count::scope(copy);
        assert_eq!((copied.unwrap(), made.of(call)), (100_000, 1), "a copy: {made:?}");
        let allocate = || pool.union.fallocate(target.handle, 0, 0, 200_000, Caller::DAEMON);
        let (allocated, made) = count::scope(allocate);
        allocated.unwrap();
        assert_eq!(made.of(call), 1, "space: {made:?}");
        pool.close(target);
    }
}
