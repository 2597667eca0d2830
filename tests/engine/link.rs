//! Hard links: made on the file's branch; one inode under every name.

use fsstack_engine::ops::{Change, WriteTerms};
use fsstack_pool::BranchMode::{NoCreate, ReadOnly, ReadWrite};
use fsstack_sys::{Errno, OFlags};

use crate::test_bed::{TestBed, settings};

#[test]
fn a_link_keeps_the_branch_and_the_parent_is_made_there() {
    let pool = TestBed::new(2);
    pool.put_dir(0, "d");
    pool.put(1, "film", "x");
    pool.link("film", "d/also").unwrap();
    assert_eq!(pool.holders("d/also"), [1]);
    assert_eq!(pool.read("d/also").unwrap(), "x");
}

#[test]
fn names_of_one_file_have_one_number_and_one_set_of_attributes() {
    let pool = TestBed::new(2);
    let ino = pool.write("a", "x");
    let made = pool.link("a", "b").unwrap();
    assert_eq!((made.ino, made.attr.stat.nlink), (ino, 2));
    assert_eq!((pool.ino("a"), pool.ino("b")), (ino, ino));
    pool.setattr(pool.ino("b"), Change { mode: Some(0o600), ..Change::default() }).unwrap();
    let (a, b) = (pool.find("a").unwrap().attr.stat, pool.find("b").unwrap().attr.stat);
    assert_eq!(a, b);
    assert_eq!(a.mode & 0o7777, 0o600);
}

#[test]
fn the_other_names_live_on() {
    let pool = TestBed::new(2);
    let ino = pool.write("n0", "x");
    for n in 1..12 {
        pool.link("n0", &format!("n{n}")).unwrap();
    }
    for n in 0..11 {
        pool.unlink(&format!("n{n}")).unwrap();
        assert_eq!(pool.getattr(ino).unwrap().stat.nlink, 11 - n, "after {n}");
        assert_eq!(pool.read_ino(ino).unwrap(), "x");
    }
    assert_eq!(pool.ino("n11"), ino);
    pool.unlink("n11").unwrap();
    // Like a descriptor opened with O_PATH: the object exists until the kernel forgets it.
    assert_eq!(pool.getattr(ino).unwrap().stat.nlink, 0);
}

#[test]
fn a_taken_name_and_a_directory_are_refused() {
    let pool = TestBed::new(2);
    pool.put(0, "film", "x");
    pool.put(1, "taken", "y");
    pool.put_dir(0, "d");
    let before = pool.snapshot();
    assert_eq!(pool.link("film", "taken").unwrap_err(), Errno::EXIST);
    assert_eq!(pool.link("d", "e").unwrap_err(), Errno::PERM);
    assert_eq!(pool.snapshot(), before);
}

#[test]
fn a_read_only_branch_refuses_and_one_that_takes_nothing_new_links() {
    let pool = TestBed::with(&[ReadOnly, NoCreate, ReadWrite], settings());
    pool.put(0, "fixed", "x");
    pool.put(1, "full", "y");
    let before = pool.snapshot();
    assert_eq!(pool.link("fixed", "a").unwrap_err(), Errno::ROFS);
    assert_eq!(pool.snapshot(), before);
    pool.link("full", "b").unwrap();
    assert_eq!(pool.holders("b"), [1]);
}

#[test]
fn a_symlink_is_linked_itself() {
    let pool = TestBed::new(1);
    pool.make("s", fsstack_engine::ops::New::Symlink(c"nowhere")).unwrap();
    let made = pool.link("s", "t").unwrap();
    assert!(made.attr.stat.is_symlink());
    assert_eq!(pool.union.readlink(made.ino).unwrap(), b"nowhere");
}

#[test]
fn an_unlinked_open_file_cannot_get_a_name_again_but_an_unnamed_one_can() {
    let pool = TestBed::new(2);
    let file = pool.create("film").unwrap();
    pool.unlink("film").unwrap();
    assert_eq!(pool.link_ino(file.ino, "again").unwrap_err(), Errno::NOENT);
    pool.put_dir(1, "d");
    let unnamed = pool.tmpfile("d", OFlags::RDWR).unwrap();
    pool.union.write(unnamed.handle, 0, b"x", WriteTerms::default()).unwrap();
    assert_eq!(pool.getattr(unnamed.ino).unwrap().stat.nlink, 0);
    let made = pool.link_ino(unnamed.ino, "d/named").unwrap();
    assert_eq!((made.ino, made.attr.stat.nlink), (unnamed.ino, 1));
    assert_eq!(pool.read("d/named").unwrap(), "x");
    pool.close(unnamed);
    assert_eq!(pool.read_ino(unnamed.ino).unwrap(), "x");
}
