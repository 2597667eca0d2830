//! Branches that cannot hold a directory's ACL, or a binding flag.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use fsstack_engine::Caller;
use fsstack_engine::ops::{Change, New};
use fsstack_lab::shell::command;
use fsstack_lab::{Branch, Kind, Layout, MiB, needs};
use fsstack_pool::BranchMode::{self, NoCreate, ReadWrite};
use fsstack_pool::Ino;
use fsstack_sys::at::RenameFlags;
use fsstack_sys::ioctl::FS_IOC_SETFLAGS;
use fsstack_sys::{Errno, OFlags};

use crate::test_bed::{TestBed, settings};

/// `chattr +d`.
const NODUMP: u32 = 0x40;

/// A pool whose first branch is of the given kind, and whose second is on a disk.
struct Unlike {
    pool: TestBed,
    // Dropped in this order.
    _first: Branch,
    _home: tempfile::TempDir,
}

fn unlike(kind: Kind, modes: [BranchMode; 2]) -> Unlike {
    let home = tempfile::tempdir().unwrap();
    // A server acts as its callers, from the root down.
    fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
    let first = Branch::make("first", kind, Layout::Sparse, home.path()).unwrap();
    let disk: PathBuf = home.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let pool = TestBed::at(&[first.path().to_owned(), disk], &modes, settings());
    Unlike { pool, _first: first, _home: home }
}

fn run(program: &str, how: &[&str], on: &Path) {
    command(program).args(how).arg(on).run().unwrap();
}

/// Every kind of object that can be made in `d`.
fn make_all(pool: &TestBed, round: &str) -> Vec<String> {
    let names = ["file", "dir", "link", "fifo"].map(|kind| format!("d/{kind}{round}"));
    pool.create_with(&names[0], 0o666, OFlags::RDWR).unwrap();
    pool.make(&names[1], New::Dir(0o777)).unwrap();
    pool.make(&names[2], New::Symlink(c"x")).unwrap();
    pool.make(&names[3], New::Node(0o10666, 0)).unwrap();
    names.to_vec()
}

#[test]
fn a_directory_with_an_acl_is_not_given_to_a_branch_without() {
    needs!(root(), fuse(), program("mergerfs"), program("setfacl"));
    for acl in [["-m", "u:1001:rwx,g::-,m::rwx"], ["-dm", "g::-,o::-"]] {
        let Unlike { pool, .. } = &unlike(Kind::Bare, [ReadWrite, ReadWrite]);
        pool.put_dir(1, "d");
        run("setfacl", &acl, &pool.on(1, "d"));
        let shown = pool.stat("d").stat.mode;
        for name in make_all(pool, "") {
            assert_eq!(pool.holders(&name), [1], "{name} with {acl:?}");
        }
        pool.tmpfile("d", OFlags::RDWR).unwrap();
        assert_eq!(pool.holders("d"), [1]);
        assert_eq!(pool.stat("d").stat.mode, shown);
        assert_eq!(fs::read_dir(pool.branch(0)).unwrap().count(), 0, "nothing is left of the attempts");
        // It is refused below it too.
        pool.create("d/dir/deep").unwrap();
        assert_eq!(pool.holders("d/dir/deep"), [1]);
        for name in [c"system.posix_acl_access", c"system.posix_acl_default"] {
            pool.union.removexattr(pool.ino("d"), name, Caller::DAEMON).unwrap();
        }
        for name in make_all(pool, "2") {
            assert_eq!(pool.holders(&name), [0], "{name}: there is no ACL any more");
        }
    }
}

/// Neither extended attributes nor birth times; no birth times; an older ext; and a file system with volatile numbers.
#[test]
fn skeletons_and_what_is_made_in_them_are_right_on_branches_that_lack_something() {
    needs!(root(), fuse(), loops(), program("mergerfs"));
    let alice = Caller { uid: 1234, gid: 1235, group: None, umask: 0o027, pid: 0, mapped: false };
    for kind in [Kind::Bare, Kind::Served, Kind::Ext4(MiB(32)), Kind::Tmpfs(MiB(8))] {
        let Unlike { pool, .. } = &mut unlike(kind, [ReadWrite, ReadWrite]);
        pool.put_dir(1, "top/d");
        run("chown", &["0:8"], &pool.on(1, "top"));
        run("chown", &["9:77"], &pool.on(1, "top/d"));
        run("chmod", &["1757"], &pool.on(1, "top"));
        run("chmod", &["2777"], &pool.on(1, "top/d"));
        run("touch", &["-d", "2001-02-03 04:05:06.5"], &pool.on(1, "top"));
        let look = |at: usize, path: &str| {
            let meta = fs::symlink_metadata(pool.on(at, path)).unwrap();
            (meta.uid(), meta.gid(), meta.mode() & 0o7777)
        };
        pool.act_as(alice);
        let name = |name: &str| format!("top/d/{name}");
        pool.create_with(&name("file"), 0o666, OFlags::RDWR).unwrap();
        pool.make(&name("dir"), New::Dir(0o777)).unwrap();
        pool.make(&name("link"), New::Symlink(c"x")).unwrap();
        pool.make(&name("fifo"), New::Node(0o10666, 0)).unwrap();
        for dir in ["top", "top/d"] {
            assert_eq!(pool.holders(dir), [0, 1], "{kind:?}");
            assert_eq!(look(0, dir), look(1, dir), "{dir} on {kind:?}");
        }
        let changed = |at: usize| fs::metadata(pool.on(at, "top")).unwrap().modified().unwrap();
        assert_eq!(changed(0), changed(1), "{kind:?}");
        let made = [("file", 0o640), ("dir", 0o2750), ("link", 0o777), ("fifo", 0o640)];
        for (made, mode) in made {
            assert_eq!(pool.holders(&name(made)), [0], "{made} on {kind:?}");
            assert_eq!(look(0, &name(made)), (1234, 77, mode), "{made} on {kind:?}");
        }
        pool.act_as(Caller::DAEMON);
        let all = ["top", "top/d", "top/d/file", "top/d/dir", "top/d/link", "top/d/fifo"];
        let numbers = all.map(|path| pool.ino(path));
        pool.remount(|_| ());
        assert_eq!(all.map(|path| pool.ino(path)), numbers, "{kind:?}");
    }
}

#[test]
fn a_directory_that_promises_something_is_not_given_to_a_branch_that_does_not() {
    needs!(root(), program("chattr"));
    for promise in ["+S", "+D"] {
        let Unlike { pool, .. } = &unlike(Kind::Tmpfs(MiB(8)), [ReadWrite, ReadWrite]);
        pool.put_dir(1, "d");
        run("chattr", &[promise], &pool.on(1, "d"));
        for name in make_all(pool, "") {
            assert_eq!(pool.holders(&name), [1], "{name} with {promise}");
        }
        // Flags that are not binding are left out.
        pool.put_dir(1, "plain");
        run("chattr", &["+dA"], &pool.on(1, "plain"));
        pool.create("plain/file").unwrap();
        assert_eq!(pool.holders("plain/file"), [0]);
    }
}

#[test]
fn an_object_that_no_other_branch_takes_gets_the_reason() {
    needs!(root(), fuse(), program("mergerfs"), program("setfacl"));
    let Unlike { pool, .. } = &unlike(Kind::Bare, [ReadWrite, NoCreate]);
    pool.put_dir(1, "d");
    run("setfacl", &["-m", "u:1001:rwx"], &pool.on(1, "d"));
    let film = pool.write("film", "x");
    assert_eq!(pool.holders("film"), [0]);
    assert_eq!(pool.create("d/file").unwrap_err(), Errno::OPNOTSUPP);
    assert_eq!(pool.mkdir("d/dir").unwrap_err(), Errno::OPNOTSUPP);
    // A file stays on its branch; another branch could have the name, by a copy.
    let d = pool.ino("d");
    let name = |name: &str| fsstack_pool::EntryNameBuf::from_bytes(name.as_bytes()).unwrap();
    let (film_name, new) = (name("film"), name("new"));
    let renamed =
        pool.union.rename((Ino::ROOT, film_name.as_name()), (d, new.as_name()), RenameFlags::empty());
    assert_eq!(renamed.unwrap_err().errno(), Errno::XDEV);
    assert_eq!(pool.union.link(film, d, new.as_name()).unwrap_err().errno(), Errno::XDEV);
    pool.mkdir("tree").unwrap();
    let tree = name("tree");
    let renamed = pool.union.rename((Ino::ROOT, tree.as_name()), (d, new.as_name()), RenameFlags::empty());
    assert_eq!(renamed.unwrap_err().errno(), Errno::XDEV);
    assert_eq!((pool.holders("d"), pool.holders("film"), pool.holders("tree")), (vec![1], vec![0], vec![0]));
}

/// A branch gets a copy of D for a deeper directory while D is changed: the new copy has the change too.
#[test]
fn a_change_of_a_directory_is_on_the_copy_that_a_branch_is_given_meanwhile() {
    needs!(root());
    let pool = TestBed::new(2);
    // Copying attributes takes time.
    let dress = |dir: &Path| {
        let file = fs::File::open(dir).unwrap();
        for n in 0..40 {
            let name = std::ffi::CString::new(format!("user.n{n}")).unwrap();
            let on = fsstack_sys::xattr::On::Fd(std::os::fd::AsFd::as_fd(&file));
            fsstack_sys::xattr::set(on, &name, &[b'x'; 40], 0).unwrap();
        }
    };
    let union = &pool.union;
    let mut late = 0;
    for round in 0..240_u32 {
        let top = format!("D{round}");
        pool.put_dir(1, &format!("{top}/E"));
        dress(&pool.on(1, &top));
        let (dir, below) = (pool.ino(&top), pool.ino(&format!("{top}/E")));
        let handle = pool.opendir(dir);
        let start = Barrier::new(2);
        let start = &start;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                start.wait();
                std::thread::sleep(Duration::from_micros(u64::from(round % 60) * 10));
                match round % 3 {
                    0 => {
                        let change = Change { mode: Some(0o700), ..Change::default() };
                        union.setattr(dir, None, change, Caller::DAEMON).map(drop)
                    }
                    1 => union.setxattr(dir, c"user.n7", b"new", 0, false, Caller::DAEMON),
                    _ => union.ioctl(dir, handle, FS_IOC_SETFLAGS, &NODUMP.to_ne_bytes()).map(drop),
                }
                .unwrap();
            });
            start.wait();
            let name = fsstack_pool::EntryNameBuf::from_bytes(b"f").unwrap();
            let made = union.make(below, name.as_name(), New::Node(0o100_600, 0), Caller::DAEMON);
            pool.hold(&made.unwrap());
        });
        let look = |at: usize| {
            let copy = fs::File::open(pool.on(at, &top)).unwrap();
            let fd = std::os::fd::AsFd::as_fd(&copy);
            let value = fsstack_sys::xattr::get_vec(fsstack_sys::xattr::On::Fd(fd), c"user.n7").unwrap();
            let flags = fsstack_sys::ioctl::getflags(fd).unwrap_or(0) & NODUMP;
            (copy.metadata().unwrap().mode() & 0o7777, value, flags)
        };
        assert_eq!(pool.holders(&top), [0, 1]);
        late += u32::from(look(0) != look(1));
    }
    assert_eq!(late, 0, "rounds in which the change is missing on a copy");
}
