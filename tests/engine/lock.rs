//! Locks on the branch's file: between owners, and with programs outside the pool.

use fsstack_engine::ops::{LockKind, LockRequest, LockType};
use fsstack_sys::Errno;

use crate::test_bed::{File, TestBed};

fn range(owner: u64, how: LockType, start: u64, end: u64) -> LockRequest {
    LockRequest { owner, kind: LockKind::Range { start, end }, how }
}

fn lock(pool: &TestBed, file: File, request: LockRequest) -> Result<(), Errno> {
    pool.union.lock(file.handle, request, None).map_err(|e| e.errno())
}

#[test]
fn ranges_stand_between_owners() {
    let pool = TestBed::new(2);
    let file = pool.create("film").unwrap();
    lock(&pool, file, range(1, LockType::Write, 0, 9)).unwrap();
    assert_eq!(lock(&pool, file, range(2, LockType::Read, 5, 15)), Err(Errno::AGAIN));
    lock(&pool, file, range(2, LockType::Read, 10, 15)).unwrap();
    let other = pool.open(file.ino, fsstack_sys::OFlags::RDONLY).unwrap();
    let stands = pool.union.test_lock(other.handle, range(3, LockType::Write, 0, 0)).unwrap().unwrap();
    assert_eq!((stands.start, stands.end, stands.kind), (0, 9, LockType::Write));
    lock(&pool, file, range(1, LockType::Unlock, 0, 9)).unwrap();
    assert_eq!(pool.union.test_lock(other.handle, range(3, LockType::Write, 0, 0)).unwrap(), None);
    pool.union.unlock_all(file.handle, 2);
    lock(&pool, file, range(3, LockType::Write, 0, 100)).unwrap();
}

#[test]
fn whole_files_too_and_programs_outside_see_it() {
    let pool = TestBed::new(1);
    let file = pool.create("film").unwrap();
    let whole = |owner, how| LockRequest { owner, kind: LockKind::Whole, how };
    lock(&pool, file, whole(1, LockType::Write)).unwrap();
    assert_eq!(lock(&pool, file, whole(2, LockType::Read)), Err(Errno::AGAIN));
    let outside = std::fs::File::open(pool.on(0, "film")).unwrap();
    assert!(outside.try_lock().is_err());
    lock(&pool, file, whole(1, LockType::Unlock)).unwrap();
    outside.try_lock().unwrap();
    assert_eq!(lock(&pool, file, whole(2, LockType::Read)), Err(Errno::AGAIN));
}

#[test]
fn a_wait_ends_when_the_lock_is_free_or_the_caller_is_interrupted() {
    let pool = TestBed::new(1);
    let file = pool.create("film").unwrap();
    lock(&pool, file, range(1, LockType::Write, 0, 9)).unwrap();
    let asked = std::cell::Cell::new(0);
    let goes_on = || {
        asked.set(asked.get() + 1);
        asked.get() < 3
    };
    let error = pool.union.lock(file.handle, range(2, LockType::Write, 0, 9), Some(&goes_on)).unwrap_err();
    assert_eq!((error.errno(), asked.get()), (Errno::INTR, 3));
    let frees = || {
        pool.union.unlock_all(file.handle, 1);
        true
    };
    pool.union.lock(file.handle, range(2, LockType::Write, 0, 9), Some(&frees)).unwrap();
}

/// A process that closes any descriptor of a file loses its locks on it, but not those that its other threads still wait for.
#[test]
fn a_wait_outlasts_a_close_of_the_file_by_another_thread_of_the_owner() {
    let pool = TestBed::new(1);
    let file = pool.create("film").unwrap();
    for kind in [LockKind::Range { start: 0, end: 9 }, LockKind::Whole] {
        let write = |owner| LockRequest { owner, kind, how: LockType::Write };
        lock(&pool, file, write(1)).unwrap();
        lock(&pool, file, range(2, LockType::Write, 20, 29)).unwrap();
        let frees = || {
            pool.union.unlock_all(file.handle, 2);
            lock(&pool, file, range(3, LockType::Write, 20, 29)).expect("a close gives up locks at once");
            pool.union.unlock_all(file.handle, 3);
            pool.union.unlock_all(file.handle, 1);
            true
        };
        pool.union.lock(file.handle, write(2), Some(&frees)).unwrap();
        assert_eq!(lock(&pool, file, write(3)), Err(Errno::AGAIN), "{kind:?}");
        pool.union.unlock_all(file.handle, 2);
        lock(&pool, file, write(3)).unwrap();
        pool.union.unlock_all(file.handle, 3);
    }
}

/// The kernel's NFS server opens the file again to test an owner's locks, and closes it.
#[test]
fn an_owner_keeps_its_locks_when_a_handle_that_only_asked_is_closed() {
    let pool = TestBed::new(1);
    let file = pool.create("film").unwrap();
    lock(&pool, file, range(1, LockType::Write, 0, 9)).unwrap();
    for takes_one in [false, true] {
        let again = pool.open(file.ino, fsstack_sys::OFlags::RDWR).unwrap();
        assert_eq!(pool.union.test_lock(again.handle, range(1, LockType::Write, 20, 29)).unwrap(), None);
        if takes_one {
            lock(&pool, again, range(1, LockType::Write, 20, 29)).unwrap();
        }
        pool.close(again);
        assert_eq!(lock(&pool, file, range(2, LockType::Write, 5, 5)), Err(Errno::AGAIN));
    }
}

#[test]
fn locks_go_with_the_last_handle() {
    let pool = TestBed::new(1);
    let file = pool.create("film").unwrap();
    lock(&pool, file, range(1, LockType::Write, 0, 9)).unwrap();
    pool.close(file);
    let again = pool.open(file.ino, fsstack_sys::OFlags::RDWR).unwrap();
    lock(&pool, again, range(2, LockType::Write, 0, 9)).unwrap();
}

#[test]
fn a_part_of_what_was_locked_may_be_left() {
    let pool = TestBed::new(1);
    let file = pool.create("film").unwrap();
    lock(&pool, file, range(1, LockType::Write, 0, 9)).unwrap();
    lock(&pool, file, range(1, LockType::Unlock, 0, 5)).unwrap();
    assert_eq!(lock(&pool, file, range(2, LockType::Write, 0, 9)), Err(Errno::AGAIN));
    lock(&pool, file, range(2, LockType::Write, 0, 5)).unwrap();
}

#[test]
fn a_lock_that_comes_after_the_close_of_its_handle_is_given_up() {
    let pool = TestBed::new(1);
    let file = pool.create("film").unwrap();
    lock(&pool, file, range(1, LockType::Write, 0, 9)).unwrap();
    let other = pool.open(file.ino, fsstack_sys::OFlags::RDWR).unwrap();
    let closes = || {
        pool.close(other);
        pool.union.unlock_all(file.handle, 1);
        true
    };
    let late = pool.union.lock(other.handle, range(2, LockType::Write, 0, 9), Some(&closes));
    assert_eq!(late.unwrap_err().errno(), Errno::BADF);
    lock(&pool, file, range(3, LockType::Write, 0, 9)).unwrap();
}
