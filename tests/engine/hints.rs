//! Entries of the location cache are evicted: only speed may depend on them.

use fsstack_pool::Ino;
use fsstack_sys::at::RenameFlags;

use crate::test_bed::{TestBed, buf};

#[test]
fn a_removed_file_is_there_until_the_kernel_forgets_it() {
    let pool = TestBed::new(2);
    let film = pool.write("film", "frames");
    pool.push_out("film");
    pool.unlink("film").unwrap();
    assert_eq!(pool.getattr(film).unwrap().stat.nlink, 0);
    assert_eq!(pool.read_ino(film).unwrap(), "frames");
}

#[test]
fn exchanged_files_keep_their_numbers() {
    let pool = TestBed::new(2);
    let (a, b) = (pool.write("a", "of a"), pool.write("b", "of b"));
    pool.push_out("a");
    pool.push_out("b");
    let (at_a, at_b) = (buf("a"), buf("b"));
    let (from, to) = ((Ino::ROOT, at_a.as_name()), (Ino::ROOT, at_b.as_name()));
    pool.union.rename(from, to, RenameFlags::EXCHANGE).unwrap();
    assert_eq!(pool.read_ino(a).unwrap(), "of a");
    assert_eq!(pool.read_ino(b).unwrap(), "of b");
    assert_eq!(pool.read("a").unwrap(), "of b");
}

#[test]
fn exchanged_directories_keep_their_numbers() {
    let pool = TestBed::new(2);
    let (a, b) = (pool.mkdir("a").unwrap(), pool.mkdir("b").unwrap());
    pool.put(0, "a/of-a", "");
    pool.put(0, "b/of-b", "");
    pool.put_dir(1, "b");
    pool.push_out("a");
    pool.push_out("b");
    let (at_a, at_b) = (buf("a"), buf("b"));
    let (from, to) = ((Ino::ROOT, at_a.as_name()), (Ino::ROOT, at_b.as_name()));
    pool.union.rename(from, to, RenameFlags::EXCHANGE).unwrap();
    // The kernel continues with the numbers it knows: objects made in them are found under the new names.
    for (dir, new) in [(a, "new-in-a"), (b, "new-in-b")] {
        let name = buf(new);
        let new = fsstack_engine::ops::New::Dir(0o755);
        let made = pool.union.make(dir, name.as_name(), new, fsstack_engine::Caller::DAEMON).unwrap();
        pool.union.forget(made.ino, 1);
    }
    assert_eq!(pool.names("b"), ["new-in-a", "of-a"]);
    assert_eq!(pool.names("a"), ["new-in-b", "of-b"]);
    assert_eq!((pool.ino("a"), pool.ino("b")), (b, a));
}
