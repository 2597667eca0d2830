//! The ioctls that reach a branch: a short list.

use fsstack_pool::BranchMode::{ReadOnly, ReadWrite};
use fsstack_sys::ioctl::{FS_IOC_FSGETXATTR, FS_IOC_GETFLAGS, FS_IOC_GETVERSION, FS_IOC_SETFLAGS};
use fsstack_sys::{Errno, OFlags};

use crate::test_bed::{TestBed, settings};

const NODUMP: u32 = 0x40;

#[test]
fn everything_else_is_enotty() {
    let pool = TestBed::new(1);
    let file = pool.create("film").unwrap();
    // Shut an XFS down, trim, exchange extents, freeze, clone, and a terminal's size.
    for command in [0x8004_587d, 0xc018_5879, 0xc040_586d, 0xc004_5877, 0x4004_9409, 0x5413] {
        let answer = pool.union.ioctl(file.ino, file.handle, command, &[0; 64]).unwrap_err();
        assert_eq!(answer.errno(), Errno::NOTTY, "{command:x}");
    }
}

#[test]
fn inode_flags_of_a_file_and_of_all_copies_of_a_directory() {
    let pool = TestBed::new(2);
    (0..2).for_each(|at| pool.put_dir(at, "d"));
    let file = pool.create("film").unwrap();
    let dir = pool.ino("d");
    let handle = pool.opendir(dir);
    for (ino, handle) in [(file.ino, file.handle), (dir, handle)] {
        let (flags, len) = match pool.union.ioctl(ino, handle, FS_IOC_GETFLAGS, &[]) {
            Err(error) if error.errno() == Errno::NOTTY || error.errno() == Errno::OPNOTSUPP => {
                return fsstack_lab::Skip::because("no inode flags under /tmp").announce();
            }
            answer => answer.unwrap(),
        };
        assert_eq!(len, 4, "more than programs have room for");
        let flags = u32::from_ne_bytes(*flags.first_chunk().unwrap()) | NODUMP;
        pool.union.ioctl(ino, handle, FS_IOC_SETFLAGS, &flags.to_ne_bytes()).unwrap();
        let (now, _) = pool.union.ioctl(ino, handle, FS_IOC_GETFLAGS, &[]).unwrap();
        assert_eq!(u32::from_ne_bytes(*now.first_chunk().unwrap()), flags);
        assert_eq!(pool.union.ioctl(ino, handle, FS_IOC_FSGETXATTR, &[]).unwrap().1, 28);
    }
    for at in 0..2 {
        let copy = std::fs::File::open(pool.on(at, "d")).unwrap();
        let flags = fsstack_sys::ioctl::getflags(std::os::fd::AsFd::as_fd(&copy)).unwrap();
        assert_eq!(flags & NODUMP, NODUMP, "branch {at}");
    }
    let short = pool.union.ioctl(file.ino, file.handle, FS_IOC_SETFLAGS, &[0]).unwrap_err();
    assert_eq!(short.errno(), Errno::INVAL);
}

#[test]
fn a_version_is_an_int_as_the_file_system_writes_it() {
    let pool = TestBed::new(1);
    let file = pool.create("film").unwrap();
    let of_branch = std::fs::File::open(pool.on(0, "film")).unwrap();
    let Ok(version) = fsstack_sys::ioctl::getversion(std::os::fd::AsFd::as_fd(&of_branch)) else {
        return fsstack_lab::Skip::because("no versions of inodes under /tmp").announce();
    };
    let (answer, len) = pool.union.ioctl(file.ino, file.handle, FS_IOC_GETVERSION, &[]).unwrap();
    assert_eq!(&answer[..len], version.to_ne_bytes());
}

#[test]
fn a_read_only_branch_refuses_new_flags() {
    let pool = TestBed::with(&[ReadOnly, ReadWrite], settings());
    pool.put(0, "film", "x");
    let file = pool.open(pool.ino("film"), OFlags::RDONLY).unwrap();
    let answer = pool.union.ioctl(file.ino, file.handle, FS_IOC_SETFLAGS, &NODUMP.to_ne_bytes()).unwrap_err();
    assert_eq!(answer.errno(), Errno::ROFS);
}
