//! Changes of a file by number reach that file, whatever its name means by then.

use fsstack_engine::Caller;
use fsstack_engine::ops::Change;
use fsstack_sys::{Errno, OFlags};

use crate::test_bed::TestBed;

/// Replaces a file that the pool knows by another, with both alive.
fn replaced() -> (TestBed, fsstack_pool::Ino) {
    let pool = TestBed::new(2);
    let ino = pool.write("film", "old");
    pool.put(0, "new", "new");
    std::fs::rename(pool.on(0, "film"), pool.on(0, "elsewhere")).unwrap();
    std::fs::rename(pool.on(0, "new"), pool.on(0, "film")).unwrap();
    (pool, ino)
}

#[test]
fn a_replaced_file_is_never_touched_in_place_of_the_old_one() {
    let (pool, ino) = replaced();
    let before = pool.snapshot();
    assert_eq!(pool.getattr(ino).unwrap_err(), Errno::STALE);
    assert_eq!(pool.open(ino, OFlags::RDWR | OFlags::TRUNC).unwrap_err(), Errno::STALE);
    assert_eq!(pool.setattr(ino, Change { mode: Some(0), ..Change::default() }).unwrap_err(), Errno::STALE);
    assert_eq!(pool.setattr(ino, Change { size: Some(0), ..Change::default() }).unwrap_err(), Errno::STALE);
    assert_eq!(
        pool.union.setxattr(ino, c"user.a", b"b", 0, false, Caller::DAEMON).unwrap_err().errno(),
        Errno::STALE
    );
    assert_eq!(pool.link_ino(ino, "link").unwrap_err(), Errno::STALE);
    assert_eq!(pool.snapshot(), before);
}

#[test]
fn a_lookup_finds_the_new_file_and_the_old_one_by_its_new_name() {
    let (pool, ino) = replaced();
    assert_ne!(pool.ino("film"), ino);
    assert_eq!(pool.read("film").unwrap(), "new");
    assert_eq!(pool.ino("elsewhere"), ino);
    assert_eq!(pool.read_ino(ino).unwrap(), "old");
}
