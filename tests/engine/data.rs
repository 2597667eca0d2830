//! Reading, writing, allocating, holes.

use fsstack_engine::Caller;
use fsstack_engine::ops::{Change, Whence, WriteTerms};
use fsstack_lab::{Branch, Kind, Layout, MiB, needs};
use fsstack_pool::BranchMode::ReadWrite;
use fsstack_sys::{Errno, OFlags};

use crate::test_bed::{File, TestBed, settings};

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

/// ext4 keeps 5 percent of a disk for root, by the user that the writing thread acts as.
#[test]
fn the_reserve_of_ext4_is_not_taken_by_others() {
    needs!(root(), loops());
    let home = tempfile::tempdir().unwrap();
    let disk = Branch::make("disk", Kind::Ext4(MiB(64)), Layout::Sparse, home.path()).unwrap();
    let pool = TestBed::at(&[disk.path().to_owned()], &[ReadWrite], settings());
    let stranger = Caller { uid: 1234, gid: 1235, ..Caller::DAEMON };
    // Made by root, so the thread does not act as the user yet.
    let [film, own] = ["film", "own"].map(|name| pool.write(name, "x"));
    pool.setattr(film, Change { uid: Some(stranger.uid), ..Change::default() }).unwrap();
    let left = || rustix::fs::statvfs(disk.path()).map(|stat| stat.f_bfree * stat.f_frsize).unwrap();
    let fill = |file: File| {
        let mut written = 0;
        loop {
            match pool.union.write(file.handle, written, &[1; 65536], WriteTerms::default()) {
                Ok(more) => written += more as u64,
                Err(error) => break assert_eq!(error.errno(), Errno::NOSPC),
            }
        }
    };
    pool.act_as(stranger);
    let file = pool.open(film, OFlags::RDWR).unwrap();
    fill(file);
    let allocated = pool.union.fallocate(file.handle, 0, 1 << 30, 1 << 20, stranger);
    assert_eq!(allocated.unwrap_err().errno(), Errno::NOSPC);
    let reserve = left();
    assert!(MiB(2).bytes() < reserve, "{reserve} bytes are left");
    pool.act_as(Caller::DAEMON);
    fill(pool.open(own, OFlags::RDWR).unwrap());
    assert!(left() + MiB(1).bytes() < reserve, "root's own is full with {} of {reserve} bytes left", left());
}

/// The kernel does not know that others have cut the file, and puts each append behind the end that it knows.
#[test]
fn an_append_behind_the_end_of_a_file_that_was_cut_goes_to_its_end() {
    let pool = TestBed::with(&[ReadWrite], settings());
    let file = pool.create("log").unwrap();
    let appends = WriteTerms { appends: true, ..WriteTerms::default() };
    for (offset, line) in [(0, "first"), (1000, "second"), (1006, "third"), (11, "fourth")] {
        assert_eq!(pool.union.write(file.handle, offset, line.as_bytes(), appends).unwrap(), line.len());
    }
    assert_eq!(pool.read_handle(file), "firstsecondthirdfourth");
}
