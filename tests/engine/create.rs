//! Creating files: where the policy says, whose they are, and never twice.

use fsstack_engine::Caller;
use fsstack_engine::ops::WriteTerms;
use fsstack_engine::settings::Settings;
use fsstack_lab::needs;
use fsstack_pool::BranchMode::{NoCreate, ReadOnly, ReadWrite};
use fsstack_pool::Floor;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{Errno, OFlags};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use crate::test_bed::{TestBed, settings};

#[test]
fn the_policy_decides_and_branches_that_take_nothing_are_passed_over() {
    for (modes, taken) in [
        ([ReadWrite, ReadWrite], 0),
        ([NoCreate, ReadWrite], 1),
        ([ReadOnly, ReadWrite], 1),
        ([ReadWrite, ReadOnly], 0),
    ] {
        let pool = TestBed::with(&modes, settings());
        pool.write("film", "x");
        assert_eq!(pool.holders("film"), [taken], "{modes:?}");
    }
}

#[test]
fn a_skeleton_is_made_where_the_parent_is_missing() {
    let pool = TestBed::with(&[NoCreate, ReadWrite], settings());
    pool.put_dir(0, "a/b/c");
    pool.write("a/b/c/film", "x");
    assert_eq!(pool.holders("a/b/c/film"), [1]);
    assert_eq!(pool.names("a/b/c"), ["film"]);
}

#[test]
fn a_branch_with_another_object_in_place_of_the_parent_is_passed_over() {
    let pool = TestBed::with(&[NoCreate, ReadWrite, ReadWrite], settings());
    pool.put_dir(0, "d/below");
    pool.put_dir(0, "e");
    pool.put(1, "d", "a file");
    std::os::unix::fs::symlink("/etc", pool.on(1, "e")).unwrap();
    pool.put(1, "other", "x");
    for path in ["d/film", "d/below/film", "e/film"] {
        pool.write(path, "x");
        assert_eq!(pool.holders(path), [2]);
    }
    pool.mkdir("e/dir").unwrap();
    for dir in ["d", "e"] {
        assert_eq!(pool.rename("other", &format!("{dir}/other")), Err(Errno::XDEV));
        assert_eq!(pool.link("other", &format!("{dir}/other")).unwrap_err(), Errno::XDEV);
    }
    // No other branch is left for it.
    let pool = TestBed::with(&[NoCreate, ReadWrite], settings());
    pool.put_dir(0, "d");
    pool.put(1, "d", "a file");
    assert_eq!(pool.create("d/film").unwrap_err(), Errno::NOTDIR);
}

#[test]
fn the_most_specific_reason_is_reported() {
    let full = Settings { floor: Floor::Bytes(u64::MAX), ..settings() };
    for (modes, settings, want) in [
        ([ReadOnly, ReadOnly], settings(), Errno::ROFS),
        ([ReadWrite, ReadOnly], full.clone(), Errno::NOSPC),
        ([NoCreate, ReadWrite], full, Errno::NOSPC),
    ] {
        let pool = TestBed::with(&modes, settings);
        assert_eq!(pool.create("film").unwrap_err(), want, "{modes:?}");
        assert_eq!(pool.mkdir("dir").unwrap_err(), want, "{modes:?}");
        assert!(pool.snapshot().is_empty());
    }
}

#[test]
fn a_name_on_any_branch_is_eexist() {
    for at in 0..3 {
        let pool = TestBed::new(3);
        pool.put(at, "film", "x");
        assert_eq!(pool.create("film").unwrap_err(), Errno::EXIST);
        assert_eq!(pool.mkdir("film").unwrap_err(), Errno::EXIST);
        assert_eq!(pool.holders("film"), [at]);
        // Without O_EXCL the file must be looked up and opened: permissions were checked for a create only.
        assert_eq!(pool.create_with("film", 0o644, OFlags::RDWR).unwrap_err(), Errno::STALE);
        assert_eq!(pool.holders("film"), [at]);
    }
}

/// The kernel locks the directory during LOOKUP and CREATE of a name; the policy places the file at random.
#[test]
fn one_of_ten_threads_wins_over_several_branches() {
    let pool = TestBed::with(&[ReadWrite; 3], Settings { create: "rand".parse().unwrap(), ..settings() });
    let directory = std::sync::Mutex::new(());
    for round in 0..20 {
        let (union, name) = (&pool.union, crate::test_bed::buf(&format!("film{round}")));
        let flags = OFlags::RDWR | OFlags::EXCL;
        let create = || {
            let _locked = directory.lock().unwrap();
            match union.lookup(fsstack_pool::Ino::ROOT, name.as_name()) {
                Ok(entry) => union.forget(entry.ino, 1),
                Err(error) => assert_eq!(error.errno(), Errno::NOENT),
            }
            union.create(fsstack_pool::Ino::ROOT, name.as_name(), 0o644, flags, Caller::DAEMON)
        };
        let lines: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..10).map(|_| scope.spawn(create)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let won: Vec<_> = lines.iter().filter_map(|lines| lines.as_ref().ok()).collect();
        for made in &won {
            union.release(made.opened.handle);
            union.forget(made.entry.ino, 1);
        }
        assert_eq!((won.len(), pool.holders(&format!("film{round}")).len()), (1, 1));
        assert!(
            lines.iter().filter_map(|lines| lines.as_ref().err()).all(|error| error.errno() == Errno::EXIST)
        );
    }
}

const ALICE: Caller = Caller { uid: 1234, gid: 1235, group: None, umask: 0o027, pid: 0, mapped: false };

#[test]
fn new_objects_belong_to_the_caller_under_the_callers_umask() {
    needs!(root());
    let pool = TestBed::with(&[NoCreate, ReadWrite], settings());
    pool.put_dir(0, "d");
    std::os::unix::fs::chown(pool.on(0, "d"), Some(7), Some(8)).unwrap();
    pool.act_as(ALICE);
    pool.create_with("d/file", 0o666, OFlags::RDWR).unwrap();
    pool.make("d/dir", fsstack_engine::ops::New::Dir(0o777)).unwrap();
    pool.make("d/fifo", fsstack_engine::ops::New::Node(0o10666, 0)).unwrap();
    pool.make("d/link", fsstack_engine::ops::New::Symlink(c"x")).unwrap();
    for (name, mode) in [("d/file", 0o640), ("d/dir", 0o750), ("d/fifo", 0o640), ("d/link", 0o777)] {
        let meta = pool.on(1, name).symlink_metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (1234, 1235, mode), "{name}");
    }
    let skeleton = pool.on(1, "d").metadata().unwrap();
    assert_eq!((skeleton.uid(), skeleton.gid()), (7, 8), "a skeleton belongs to the directory's owner");
    let unnamed = pool.tmpfile("d", OFlags::RDWR).unwrap();
    assert_eq!(pool.getattr(unnamed.ino).unwrap().stat.uid, 1234);
}

#[test]
fn a_setgid_directory_gives_its_group() {
    needs!(root());
    let pool = TestBed::new(2);
    pool.put_dir(0, "d");
    std::os::unix::fs::chown(pool.on(0, "d"), None, Some(77)).unwrap();
    std::fs::set_permissions(pool.on(0, "d"), std::os::unix::fs::PermissionsExt::from_mode(0o2777)).unwrap();
    pool.act_as(ALICE);
    pool.create_with("d/file", 0o2666, OFlags::RDWR).unwrap();
    pool.mkdir("d/dir").unwrap();
    let (file, dir) = (pool.stat("d/file").stat, pool.stat("d/dir").stat);
    assert_eq!((file.gid, dir.gid), (77, 77));
    assert_eq!(dir.mode & 0o7777, 0o2750);
}

/// `system.posix_acl_default` that gives the owner all, the group (masked) and others nothing.
fn default_acl() -> Vec<u8> {
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries =
        [entry(1, 7, none), entry(2, 5, 4321), entry(4, 0, none), entry(16, 5, none), entry(32, 0, none)];
    [2_u32.to_le_bytes().to_vec(), entries.concat()].concat()
}

#[test]
fn a_default_acl_replaces_the_umask_and_goes_with_the_skeleton() {
    needs!(root());
    let pool = TestBed::with(&[NoCreate, ReadWrite], settings());
    pool.put_dir(0, "d");
    let dir = std::fs::File::open(pool.on(0, "d")).unwrap();
    if let Err(error) = xattr::set(On::Fd(dir.as_fd()), c"system.posix_acl_default", &default_acl(), 0) {
        return fsstack_lab::Skip::because(format!("no ACLs under /tmp: {error}")).announce();
    }
    pool.act_as(Caller { umask: 0o077, ..ALICE });
    let file = pool.create_with("d/file", 0o666, OFlags::RDWR).unwrap();
    assert_eq!(pool.holders("d/file"), [1]);
    assert_eq!(
        pool.getattr(file.ino).unwrap().stat.mode & 0o7777,
        0o640,
        "the mask is the ACL's, not the umask"
    );
    let mut acl = [0; 256];
    assert!(pool.union.getxattr(file.ino, c"system.posix_acl_access", Caller::DAEMON, &mut acl).unwrap() > 4);
}

#[test]
fn an_unnamed_file_leaves_nothing() {
    let pool = TestBed::new(2);
    pool.mkdir("d").unwrap();
    let file = pool.tmpfile("d", OFlags::RDWR).unwrap();
    assert_eq!(pool.names("d"), Vec::<String>::new());
    pool.union.write(file.handle, 0, b"x", WriteTerms::default()).unwrap();
    assert_eq!(pool.read_handle(file), "x");
    pool.close(file);
    assert!(pool.union.held().files == 0);
}

#[test]
fn a_branch_that_turns_read_only_is_passed_over() {
    use fsstack_lab::{Branch, Kind, Layout, MiB};
    needs!(root());
    let home = tempfile::tempdir().unwrap();
    let turns = Branch::make("turns", Kind::Tmpfs(MiB(8)), Layout::Sparse, home.path()).unwrap();
    let other = home.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let pool = TestBed::at(&[turns.path().to_owned(), other], &[ReadWrite, ReadWrite], settings());
    pool.write("before", "x");
    let old = pool.ino("before");
    // The pool checks a branch's mount once a second, so the create itself finds out.
    turns.remount_ro();
    pool.write("file", "x");
    pool.mkdir("dir").unwrap();
    pool.make("link", fsstack_engine::ops::New::Symlink(c"x")).unwrap();
    pool.tmpfile("", OFlags::RDWR).unwrap();
    assert_eq!(pool.holders("before"), [0]);
    for name in ["file", "dir", "link"] {
        assert_eq!(pool.holders(name), [1], "{name}");
    }
    assert_eq!(pool.open(old, OFlags::RDWR).unwrap_err(), Errno::ROFS);
    assert_eq!(pool.read_ino(old).unwrap(), "x");
}
