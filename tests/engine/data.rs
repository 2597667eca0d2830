//! Reading, writing, allocating, holes.

use fsstack_engine::Caller;
use fsstack_engine::ops::{Whence, WriteTerms};
use fsstack_sys::{Errno, OFlags};

use crate::test_bed::TestBed;

#[test]
fn reads_and_writes_are_whole_and_end_at_the_end() {
    let pool = TestBed::new(1);
    let file = pool.create("film").unwrap();
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect();
    assert_eq!(pool.union.write(file.handle, 5, &data, WriteTerms::default()).unwrap(), data.len());
    let mut back = vec![1; data.len() + 100];
    assert_eq!(pool.union.read(file.handle, 5, &mut back).unwrap(), data.len());
    assert!(back[..data.len()] == data);
    assert_eq!(pool.union.read(file.handle, 0, &mut back[..5]).unwrap(), 5);
    assert_eq!(&back[..5], [0; 5]);
    assert_eq!(pool.union.read(file.handle, 1 << 40, &mut back).unwrap(), 0);
}

#[test]
fn a_synchronous_handle_writes() {
    let pool = TestBed::new(1);
    for (name, flags) in [("one", OFlags::SYNC), ("two", fsstack_sys::O_DSYNC)] {
        let file = pool.create_with(name, 0o644, OFlags::RDWR | flags).unwrap();
        assert_eq!(pool.union.write(file.handle, 0, b"x", WriteTerms::default()).unwrap(), 1);
    }
}

#[test]
fn holes_are_found_and_punched() {
    let pool = TestBed::new(1);
    let file = pool.create("film").unwrap();
    pool.union.write(file.handle, 1 << 20, &[1; 65536], WriteTerms::default()).unwrap();
    let seek = |at, whence| pool.union.seek(file.handle, at, whence).map_err(|e| e.errno());
    assert_eq!(seek(0, Whence::Data), Ok(1 << 20));
    assert_eq!(seek(1 << 20, Whence::Hole), Ok((1 << 20) + 65536));
    assert_eq!(seek(2 << 20, Whence::Data), Err(Errno::NXIO));
    assert_eq!(seek(u64::MAX, Whence::Data), Err(Errno::NXIO));
    const PUNCH_KEEP_SIZE: u32 = 3;
    pool.union.fallocate(file.handle, PUNCH_KEEP_SIZE, 1 << 20, 65536, Caller::DAEMON).unwrap();
    assert_eq!(seek(0, Whence::Data), Err(Errno::NXIO));
    pool.union.fallocate(file.handle, 0, 0, 3 << 20, Caller::DAEMON).unwrap();
    assert_eq!(pool.getattr(file.ino).unwrap().stat.size, 3 << 20);
    assert_eq!(
        pool.union.fallocate(file.handle, 0x8000, 0, 1, Caller::DAEMON).unwrap_err().errno(),
        Errno::OPNOTSUPP
    );
}
