//! Reading attributes: by number, by handle, of symlinks.

use fsstack_pool::Ino;
use fsstack_sys::Errno;

use crate::test_bed::TestBed;

#[test]
fn all_ways_to_ask_agree() {
    let pool = TestBed::new(2);
    pool.put_dir(0, "d");
    pool.put(1, "d/film", "x");
    let entry = pool.find("d/film").unwrap();
    let file = pool.open(entry.ino, fsstack_sys::OFlags::RDONLY).unwrap();
    let by_handle = pool.union.getattr(entry.ino, Some(file.handle)).unwrap();
    let while_open = pool.getattr(entry.ino).unwrap();
    pool.close(file);
    let by_number = pool.getattr(entry.ino).unwrap();
    for attr in [by_handle, while_open, by_number] {
        assert_eq!((attr.ino, attr.stat), (entry.ino, entry.attr.stat));
    }
    let dir = pool.find("d").unwrap();
    assert_eq!(pool.getattr(dir.ino).unwrap().stat, dir.attr.stat);
}

#[test]
fn birth_times_are_returned() {
    let pool = TestBed::new(1);
    let ino = pool.write("film", "x");
    let stat = pool.getattr(ino).unwrap().stat;
    match std::fs::metadata(pool.on(0, "film")).unwrap().created() {
        Ok(born) => {
            let born = born.duration_since(std::time::UNIX_EPOCH).unwrap();
            assert_eq!(u64::try_from(stat.btime.unwrap().sec).unwrap(), born.as_secs());
        }
        Err(_) => assert_eq!(stat.btime, None),
    }
}

#[test]
fn a_directory_on_several_branches_counts_no_subdirectories() {
    let pool = TestBed::new(2);
    pool.put_dir(0, "d/a");
    pool.put_dir(1, "d/b");
    assert_eq!(pool.stat("d").stat.nlink, 1, "find(1) trusts a count above 1");
    assert_eq!(pool.getattr(Ino::ROOT).unwrap().stat.nlink, 1);
}

#[test]
fn an_unknown_number_is_estale() {
    let pool = TestBed::new(1);
    let ino = pool.write("film", "x");
    pool.forget(ino);
    assert_eq!(pool.getattr(ino).unwrap_err(), Errno::STALE);
}
