//! Making directories, symlinks, fifos and sockets.

use fsstack_engine::Caller;
use fsstack_engine::ops::New;
use fsstack_pool::BranchMode::{NoCreate, ReadWrite};
use fsstack_sys::{Errno, Kind};

use crate::test_bed::{TestBed, settings};

#[test]
fn each_kind_is_made_and_found() {
    let pool = TestBed::new(2);
    for (name, new, kind) in [
        ("dir", New::Dir(0o755), Kind::Dir),
        ("fifo", New::Node(0o010_644, 0), Kind::Fifo),
        ("socket", New::Node(0o140_644, 0), Kind::Socket),
        ("file", New::Node(0o100_600, 0), Kind::File),
        ("symlink", New::Symlink(c"../x"), Kind::Symlink),
    ] {
        let ino = pool.make(name, new).unwrap();
        let found = pool.find(name).unwrap();
        assert_eq!((found.ino, found.attr.stat.kind()), (ino, kind), "{name}");
    }
    assert_eq!(pool.union.readlink(pool.ino("symlink")).unwrap(), b"../x");
    assert_eq!(pool.union.readlink(pool.ino("file")).unwrap_err().errno(), Errno::INVAL);
}

#[test]
fn devices_keep_their_number() {
    fsstack_lab::needs!(root());
    let pool = TestBed::new(1);
    let made = pool.make("null", New::Node(0o020_666, rustix::fs::makedev(1, 3)));
    if made == Err(Errno::PERM) {
        return fsstack_lab::Skip::because("this machine lets nobody make devices").announce();
    }
    let stat = pool.getattr(made.unwrap()).unwrap().stat;
    assert_eq!((stat.kind(), stat.rdev_major, stat.rdev_minor), (Kind::Char, 1, 3));
}

#[test]
fn a_directory_made_on_one_branch_takes_files_on_another() {
    let pool = TestBed::with(&[NoCreate, ReadWrite], settings());
    pool.put(0, "old/x", "");
    pool.mkdir("old/new").unwrap();
    assert_eq!(pool.holders("old/new"), [1]);
    assert_eq!(pool.names("old"), ["new", "x"]);
}

#[test]
fn a_skeleton_copies_mode_owner_times_and_attributes() {
    use std::os::unix::fs::MetadataExt;
    let pool = TestBed::with(&[NoCreate, ReadWrite], settings());
    pool.put(0, "d/sub/x", "");
    let (d, sub) = (pool.ino("d"), pool.ino("d/sub"));
    pool.union.setxattr(d, c"user.colour", b"green", 0, false, Caller::DAEMON).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    for path in ["d/sub", "d"] {
        std::fs::set_permissions(pool.on(0, path), std::os::unix::fs::PermissionsExt::from_mode(0o1751))
            .unwrap();
        let dir = std::fs::File::open(pool.on(0, path)).unwrap();
        dir.set_times(std::fs::FileTimes::new().set_modified(old).set_accessed(old)).unwrap();
    }
    pool.mkdir("d/sub/made").unwrap();
    let (model, copy) = (pool.on(0, "d").metadata().unwrap(), pool.on(1, "d").metadata().unwrap());
    assert_eq!((copy.mode(), copy.uid(), copy.gid()), (model.mode(), model.uid(), model.gid()));
    assert_eq!(
        (copy.mtime(), copy.mtime_nsec()),
        (1_000_000_000, 123_456_789),
        "a skeleton below changed nothing"
    );
    let mut value = [0; 16];
    let file = std::fs::File::open(pool.on(1, "d")).unwrap();
    let on = fsstack_sys::xattr::On::Fd(std::os::fd::AsFd::as_fd(&file));
    assert_eq!(fsstack_sys::xattr::get(on, c"user.colour", &mut value).unwrap(), 5);
    assert_eq!(pool.ino("d/sub"), sub);
}

#[test]
fn each_make_is_one_lookup() {
    let pool = TestBed::new(2);
    for (name, new) in [("d", New::Dir(0o755)), ("f", New::Node(0o10600, 0)), ("s", New::Symlink(c"x"))] {
        let name = crate::test_bed::buf(name);
        let root = fsstack_pool::Ino::ROOT;
        let made = pool.union.make(root, name.as_name(), new, fsstack_engine::Caller::DAEMON).unwrap();
        assert_eq!(pool.union.held().inodes, 1);
        pool.union.forget(made.ino, 1);
        assert_eq!(pool.union.held().inodes, 0);
    }
}
