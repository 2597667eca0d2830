//! Entries of the location cache are evicted: only speed may depend on them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use fsstack_lab::{self as lab, MiB, needs};
use fsstack_pool::{BranchMode, Ino};
use fsstack_sys::at::RenameFlags;

use crate::test_bed::{TestBed, buf, wary};

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

/// The kernel takes another generation of a number that it knows for another directory, and fails all calls on the open one.
#[test]
fn a_directory_is_the_same_when_a_new_copy_has_the_number_of_its_first_one() {
    needs!(mounting(), loops());
    for found_by_a_lookup in [true, false] {
        let disks = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).unmounted();
        let paths = ["a", "b"].map(|name| disks.branch(name).path().to_owned());
        let pool = TestBed::at(&paths, &[BranchMode::ReadWrite; 2], wary());
        pool.put_dir(0, "d");
        // The clock of birth times may not advance for milliseconds.
        std::thread::sleep(Duration::from_millis(20));
        pool.put_dir(1, "d");
        let before = pool.find("d").unwrap();
        let inode = |path: &str| fs::metadata(pool.on(0, path)).unwrap().ino();
        let first = inode("d");
        fs::remove_dir(pool.on(0, "d")).unwrap();
        pool.find("d").unwrap();
        // XFS frees an inode some time after its removal.
        let mut made = 0;
        lab::until("the number is used again", || {
            made += 1;
            let new = format!("new{made}");
            pool.put_dir(0, &new);
            inode(&new) == first
        });
        fs::rename(pool.on(0, &format!("new{made}")), pool.on(0, "d")).unwrap();
        if found_by_a_lookup {
            pool.find("d").unwrap();
        } else {
            let (dir, name) = (before.ino, buf("file"));
            let new = fsstack_engine::ops::New::Dir(0o755);
            let file = pool.union.make(dir, name.as_name(), new, fsstack_engine::Caller::DAEMON).unwrap();
            pool.union.forget(file.ino, 1);
        }
        fs::remove_dir(pool.on(1, "d")).unwrap();
        pool.push_out("d");
        let now = pool.find("d").unwrap();
        assert_eq!((now.ino, now.generation), (before.ino, before.generation), "{found_by_a_lookup}");
        pool.let_go();
    }
}
