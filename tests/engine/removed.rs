//! A removed object stays until the kernel forgets it: programs that have it by O_PATH, or as working directory, see it as on
//! any file system, and its number is not used again meanwhile.

use fsstack_engine::settings::Settings;
use fsstack_pool::{BranchMode, Ino};
use fsstack_sys::Errno;

use crate::test_bed::{TestBed, settings};

/// More than a removed file keeps where space is short.
const LARGE: usize = 1 << 20;

fn is_there(pool: &TestBed, ino: Ino) {
    pool.getattr(ino).expect("the kernel has not forgotten it");
    pool.forget(ino);
}

#[test]
fn a_directory_that_a_directory_replaces_stays() {
    for pushed_out in [false, true] {
        let pool = TestBed::new(2);
        let old = pool.mkdir("old").unwrap();
        pool.mkdir("new").unwrap();
        if pushed_out {
            pool.push_out("old");
        }
        pool.rename("new", "old").unwrap();
        is_there(&pool, old);
    }
}

#[test]
fn a_directory_that_is_removed_stays() {
    for pushed_out in [false, true] {
        let pool = TestBed::new(2);
        let dir = pool.mkdir("dir").unwrap();
        if pushed_out {
            pool.push_out("dir");
        }
        pool.rmdir("dir").unwrap();
        is_there(&pool, dir);
    }
}

#[test]
fn a_file_that_is_removed_or_replaced_stays() {
    for (size, replaced) in [(0, false), (0, true), (LARGE, false), (LARGE, true)] {
        let pool = TestBed::new(2);
        let film = pool.write("film", &"x".repeat(size));
        pool.write("new", "new");
        if replaced {
            pool.rename("new", "film").unwrap();
        } else {
            pool.unlink("film").unwrap();
        }
        assert_eq!(pool.getattr(film).unwrap().stat.nlink, 0);
        pool.forget(film);
    }
}

#[test]
fn a_large_file_gives_its_space_back_at_once_where_there_is_little() {
    let short = Settings { passthrough_headroom: u64::MAX / 2, ..settings() };
    let pool = TestBed::with(&[BranchMode::ReadWrite], short);
    let film = pool.write("film", &"x".repeat(LARGE));
    pool.unlink("film").unwrap();
    assert_eq!(pool.getattr(film).unwrap_err(), Errno::STALE);
    pool.forget(film);
}

/// They do not count among the open directories, and are not closed with those.
#[test]
fn removed_directories_take_no_room_of_open_ones() {
    let few = Settings { dir_fds: 16, ..settings() };
    let pool = TestBed::with(&[BranchMode::ReadWrite], few);
    let removed: Vec<Ino> = (0..100).map(|n| pool.mkdir(&format!("d{n}")).unwrap()).collect();
    (0..100).for_each(|n| pool.rmdir(&format!("d{n}")).unwrap());
    pool.mkdir("other").unwrap();
    for n in 0..100 {
        pool.mkdir(&format!("other/{n}")).unwrap();
        pool.write(&format!("other/{n}/film"), "");
    }
    let open = pool.union.held().dir_fds;
    assert!(open <= 20, "{open} directories are open");
    removed.into_iter().for_each(|ino| is_there(&pool, ino));
}
