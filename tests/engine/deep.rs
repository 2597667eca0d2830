//! Trees deeper than PATH_MAX, with fewer descriptors than directories.

use fsstack_engine::Caller;
use fsstack_engine::ops::{New, WriteTerms};
use fsstack_engine::settings::Settings;
use fsstack_pool::BranchMode::ReadWrite;
use fsstack_pool::Ino;
use fsstack_sys::OFlags;

use crate::test_bed::{TestBed, buf, settings};

const LEVELS: usize = 300;

/// The smallest limit, and the descriptors in use.
const MOST: usize = 16 + 2;

/// Removes a tree that no path can reach.
fn take_down(pool: &TestBed, dirs: &[Ino], name: &fsstack_pool::EntryNameBuf) {
    for dir in dirs.iter().rev().skip(1) {
        pool.union.rmdir(*dir, name.as_name()).unwrap();
    }
}

#[test]
fn three_hundred_levels_of_two_hundred_bytes() {
    let few = Settings { dir_fds: 16, ..settings() };
    let mut pool = TestBed::with(&[ReadWrite, ReadWrite], few);
    let name = buf(&"n".repeat(200));
    let mut dirs = vec![Ino::ROOT];
    for level in 0..LEVELS {
        let made = pool.union.make(dirs[level], name.as_name(), New::Dir(0o755), Caller::DAEMON).unwrap();
        dirs.push(made.ino);
        assert!(pool.union.held().dir_fds <= MOST, "{} descriptors", pool.union.held().dir_fds);
    }
    let film = buf("film");
    let bottom = *dirs.last().unwrap();
    let made = pool.union.create(bottom, film.as_name(), 0o644, OFlags::RDWR, Caller::DAEMON).unwrap();
    pool.union.write(made.opened.handle, 0, b"x", WriteTerms::default()).unwrap();
    pool.union.release(made.opened.handle);
    // Every level again in both directions: descriptors are closed and reopened.
    for dir in dirs.iter().rev().chain(&dirs) {
        assert!(pool.union.getattr(*dir, None).unwrap().stat.is_dir());
        let held = pool.union.held().dir_fds;
        assert!(held <= MOST, "{held} descriptors");
    }
    let opened = pool.union.open(made.entry.ino, OFlags::RDONLY, Caller::DAEMON).unwrap();
    let mut text = [0; 4];
    assert_eq!(pool.union.read(opened.handle, 0, &mut text).unwrap(), 1);
    pool.union.release(opened.handle);
    // A copy of the whole path on the other branch.
    pool.put(1, "other", "y");
    let other = buf("other");
    let flags = fsstack_sys::at::RenameFlags::empty();
    pool.union.rename((Ino::ROOT, other.as_name()), (bottom, other.as_name()), flags).unwrap();
    pool.union.unlink(bottom, other.as_name()).unwrap();
    pool.union.unlink(bottom, film.as_name()).unwrap();
    take_down(&pool, &dirs, &name);
    assert!(pool.snapshot().is_empty());
    pool.union.forget(made.entry.ino, 1);
    for dir in &dirs[1..] {
        pool.union.forget(*dir, 1);
    }
    pool.remount(|_| ());
}

#[test]
fn forgetting_the_bottom_of_a_very_deep_tree_frees_the_way_to_it() {
    let mut pool = TestBed::with(&[ReadWrite], Settings { dir_fds: 16, ..settings() });
    let name = buf("n");
    let mut dirs = vec![Ino::ROOT];
    for level in 0..5000 {
        let made = pool.union.make(dirs[level], name.as_name(), New::Dir(0o755), Caller::DAEMON).unwrap();
        dirs.push(made.ino);
    }
    // From the top: only the bottom keeps the path alive, and goes last.
    for dir in &dirs[1..4999] {
        pool.union.forget(*dir, 1);
    }
    assert!(pool.union.getattr(dirs[5000], None).unwrap().stat.is_dir());
    pool.union.forget(dirs[4999], 1);
    pool.union.forget(dirs[5000], 1);
    pool.remount(|_| ());
}

#[test]
fn more_directories_than_descriptors() {
    let pool = TestBed::with(&[ReadWrite, ReadWrite], Settings { dir_fds: 32, ..settings() });
    for n in 0..500 {
        pool.put(n % 2, &format!("d{n}/film"), "x");
    }
    for _ in 0..2 {
        for n in 0..500 {
            assert_eq!(pool.find(&format!("d{n}/film")).unwrap().attr.stat.size, 1);
        }
        assert!(pool.union.held().dir_fds <= 33, "{}", pool.union.held().dir_fds);
    }
}
