//! Lookup counts: additions by each operation, and their removal by FORGET.

use fsstack_engine::Caller;
use fsstack_engine::ops::{New, WriteTerms};
use fsstack_pool::Ino;
use fsstack_sys::OFlags;

use crate::test_bed::{TestBed, buf};

#[test]
fn each_answer_with_an_entry_adds_exactly_one() {
    let pool = TestBed::new(2);
    pool.put(1, "there", "x");
    let (union, root) = (&pool.union, Ino::ROOT);
    let there = buf("there");
    let first = union.lookup(root, there.as_name()).unwrap().ino;
    for (what, count) in [("lookup", 3_u64), ("link", 2)] {
        for n in 0..count {
            let got = match what {
                "lookup" => union.lookup(root, there.as_name()),
                _ => union.link(first, root, buf(&format!("link{n}")).as_name()),
            };
            assert_eq!(got.unwrap().ino, first);
        }
    }
    let dir = union.opendir(root, fsstack_sys::OFlags::empty()).unwrap();
    let mut names = Plus(0);
    union.readdir(dir, 0, Some(std::time::Duration::ZERO), &mut names).unwrap();
    union.releasedir(dir);
    assert_eq!(names.0, 3, "three names of one file");
    union.create(root, there.as_name(), 0o644, OFlags::RDWR, Caller::DAEMON).unwrap_err();
    let held = 1 + 3 + 2 + 3;
    union.forget(first, held - 1);
    assert_eq!(union.held().inodes, 1, "one lookup is left");
    union.forget(first, 1);
    assert_eq!(union.held().inodes, 0);
}

struct Plus(u64);

impl fsstack_engine::ops::Sink for Plus {
    fn fits(&self, _: usize) -> bool {
        true
    }
    fn put(&mut self, _: &fsstack_engine::answer::Listed<'_>, entry: Option<&fsstack_engine::answer::Entry>) {
        self.0 += u64::from(entry.is_some());
    }
}

#[test]
fn a_refused_operation_adds_none() {
    let pool = TestBed::new(2);
    let (union, root) = (&pool.union, Ino::ROOT);
    pool.put(1, "there", "x");
    let (there, missing) = (buf("there"), buf("missing"));
    union.lookup(root, missing.as_name()).unwrap_err();
    union.make(root, there.as_name(), New::Dir(0o755), Caller::DAEMON).unwrap_err();
    union.create(root, there.as_name(), 0o644, OFlags::RDWR | OFlags::EXCL, Caller::DAEMON).unwrap_err();
    assert_eq!(union.held(), fsstack_engine::TableCounts::default());
}

#[test]
fn a_forgotten_directory_lets_go_of_its_parents_and_descriptors() {
    let pool = TestBed::new(2);
    pool.put(1, "a/b/c/d/film", "x");
    pool.find("a/b/c/d/film").unwrap();
    assert!(pool.union.held().dir_fds > 0);
    pool.let_go();
}

#[test]
fn a_parent_that_the_kernel_forgot_is_still_the_way_to_its_child() {
    let pool = TestBed::new(2);
    pool.put(1, "a/b/film", "x");
    let film = pool.ino("a/b/film");
    pool.forget(pool.ino("a"));
    pool.forget(pool.ino("a/b"));
    pool.rename("a", "z").unwrap();
    assert_eq!(pool.read_ino(film).unwrap(), "x");
}

#[test]
fn an_open_file_outlives_its_lookups() {
    let pool = TestBed::new(1);
    let file = pool.create("film").unwrap();
    pool.forget(file.ino);
    assert_eq!(pool.union.write(file.handle, 0, b"x", WriteTerms::default()).unwrap(), 1);
    assert_eq!(pool.read_handle(file), "x");
    assert_eq!(pool.read("film").unwrap(), "x");
}

#[test]
fn everything_goes_with_the_mount() {
    let pool = TestBed::new(2);
    for n in 0..100 {
        pool.put(n % 2, &format!("d{}/film{n}", n % 5), "x");
    }
    for n in 0..100 {
        pool.find(&format!("d{}/film{n}", n % 5)).unwrap();
    }
    let file = pool.open(pool.ino("d0/film0"), OFlags::RDONLY).unwrap();
    pool.opendir(Ino::ROOT);
    pool.union.destroy();
    let held = pool.union.held();
    assert_eq!((held.inodes, held.files, held.dirs, held.dir_fds), (0, 0, 0, 0));
    pool.close(file);
}
