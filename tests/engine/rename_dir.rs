//! Renaming directories, which may be on several branches.

use fsstack_pool::BranchMode::{ReadOnly, ReadWrite};
use fsstack_pool::Ino;
use fsstack_sys::Errno;
use fsstack_sys::at::RenameFlags;

use crate::test_bed::{TestBed, settings};

#[test]
fn a_directory_moves_on_every_branch() {
    let pool = TestBed::new(3);
    pool.put(0, "d/a", "0");
    pool.put(2, "d/sub/c", "2");
    pool.put_dir(1, "into");
    let (dir, sub) = (pool.ino("d"), pool.ino("d/sub"));
    pool.rename("d", "into/e").unwrap();
    assert_eq!(pool.holders("into/e"), [0, 2]);
    assert!(pool.holders("d").is_empty());
    assert_eq!(pool.names("into/e"), ["a", "sub"]);
    assert_eq!(pool.read("into/e/sub/c").unwrap(), "2");
    assert_eq!((pool.ino("into/e"), pool.ino("into/e/sub")), (dir, sub));
    // Its content is found by number too.
    assert_eq!(pool.lookup(sub, "c").unwrap().attr.stat.size, 1);
}

#[test]
fn a_full_target_is_enotempty_whichever_branch_and_nothing_changes() {
    for (sources, full) in [(vec![0], 1), (vec![1], 0), (vec![0, 1], 2), (vec![0, 2], 2), (vec![2], 0)] {
        for flags in [RenameFlags::empty(), RenameFlags::NOREPLACE] {
            let pool = TestBed::new(3);
            sources.iter().for_each(|at| pool.put_dir(*at, "d"));
            pool.put_dir(0, "e");
            pool.put(full, "e/inside", "x");
            let before = pool.snapshot();
            let error = pool.rename_with("d", "e", flags).unwrap_err();
            let want = if flags.is_empty() { Errno::NOTEMPTY } else { Errno::EXIST };
            assert_eq!(error, want, "{sources:?} over {full}");
            assert_eq!(pool.snapshot(), before, "{sources:?} over {full}");
        }
    }
}

#[test]
fn an_empty_target_is_replaced_on_all_branches() {
    for (sources, targets) in [(vec![0], vec![1]), (vec![1], vec![0, 1, 2]), (vec![0, 2], vec![1, 2])] {
        let pool = TestBed::new(3);
        sources.iter().for_each(|at| pool.put(*at, &format!("d/f{at}"), "x"));
        targets.iter().for_each(|at| pool.put_dir(*at, "e"));
        let dir = pool.ino("d");
        let names = pool.names("d");
        pool.rename("d", "e").unwrap();
        assert_eq!(pool.holders("e"), sources);
        assert_eq!(pool.names("e"), names);
        assert_eq!(pool.ino("e"), dir);
        assert_eq!(pool.find("d").unwrap_err(), Errno::NOENT);
    }
}

#[test]
fn a_copy_on_a_read_only_branch_refuses_and_nothing_changes() {
    for (sources, targets) in [(vec![0, 1], vec![]), (vec![1], vec![]), (vec![0], vec![1])] {
        let pool = TestBed::with(&[ReadWrite, ReadOnly], settings());
        sources.iter().for_each(|at| pool.put_dir(*at, "d"));
        targets.iter().for_each(|at| pool.put_dir(*at, "e"));
        let before = pool.snapshot();
        assert_eq!(pool.rename("d", "e").unwrap_err(), Errno::ROFS, "{sources:?} {targets:?}");
        assert_eq!(pool.snapshot(), before);
    }
}

#[test]
fn exchanged_directories_swap_all_their_copies() {
    let pool = TestBed::new(3);
    pool.put(0, "a/from-a0", "");
    pool.put(1, "a/from-a1", "");
    pool.put(1, "b/from-b1", "");
    pool.put(2, "b/from-b2", "");
    let (a, b) = (pool.ino("a"), pool.ino("b"));
    pool.rename_with("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(pool.names("a"), ["from-b1", "from-b2"]);
    assert_eq!(pool.names("b"), ["from-a0", "from-a1"]);
    assert_eq!((pool.ino("a"), pool.ino("b")), (b, a));
}

#[test]
fn a_directory_is_renamed_below_a_thread_that_works_in_it() {
    let pool = TestBed::new(2);
    pool.put(1, "d/sub/x", "x");
    let sub = pool.ino("d/sub");
    pool.mkdir("e").unwrap();
    pool.rename("d", "e/d").unwrap();
    let name = crate::test_bed::buf("new");
    let flags = fsstack_sys::OFlags::RDWR;
    let made = pool.union.create(sub, name.as_name(), 0o644, flags, fsstack_engine::Caller::DAEMON).unwrap();
    pool.union.release(made.opened.handle);
    pool.union.forget(made.entry.ino, 1);
    assert_eq!(pool.names("e/d/sub"), ["new", "x"]);
    assert_eq!(pool.holders("d"), Vec::<usize>::new());
}

#[test]
fn a_directory_whose_hint_was_pushed_out_keeps_its_number_and_name() {
    // The copy that the number comes from is random, as branch ids are.
    (0..8).for_each(|_| rename_without_hint());
}

fn rename_without_hint() {
    let pool = TestBed::new(2);
    pool.put(0, "d/a", "0");
    pool.put(1, "d/b", "1");
    let (dir, b) = (pool.ino("d"), pool.ino("d/b"));
    let (from, to) = (crate::test_bed::buf("d"), crate::test_bed::buf("e"));
    pool.push_out("d");
    let rename = |from, to| pool.union.rename((Ino::ROOT, from), (Ino::ROOT, to), RenameFlags::empty());
    rename(from.as_name(), to.as_name()).unwrap();
    assert_eq!(pool.lookup(dir, "b").unwrap().ino, b);
    assert_eq!(pool.ino("e"), dir);
    assert_eq!(pool.union.getattr(b, None).unwrap().stat.size, 1);
    let mut path = vec![0; 4096];
    let len = pool
        .union
        .getxattr(dir, c"user.mergerfs.relpath", fsstack_engine::Caller::DAEMON, &mut path)
        .unwrap();
    assert_eq!(&path[..len], b"/e");
}

#[test]
fn a_file_hidden_by_the_directory_goes_along_or_stays_but_never_shows() {
    let pool = TestBed::new(2);
    pool.put(0, "d/a", "0");
    pool.put(1, "d", "hidden file");
    pool.rename("d", "e").unwrap();
    assert_eq!(pool.names("e"), ["a"]);
    assert_eq!(pool.find("d").unwrap_err(), Errno::NOENT);
}

#[test]
fn a_file_that_an_empty_target_hides_stays_hidden() {
    let pool = TestBed::new(2);
    pool.put(0, "s/x", "x");
    pool.put_dir(0, "t");
    pool.put(1, "t", "hidden");
    pool.rename("s", "t").unwrap();
    assert_eq!(pool.names("t"), ["x"]);
    assert!(pool.holders("s").is_empty());
    assert_eq!(pool.holders("t"), [0, 1]);
}

#[test]
fn a_hidden_file_in_the_way_of_a_directory_is_enotdir_and_nothing_is_changed() {
    // It would be uncovered, or is in the way of a copy of the source.
    for sources in [&[1][..], &[2], &[0, 1], &[0, 1, 2]] {
        let pool = TestBed::new(3);
        sources.iter().for_each(|at| pool.put(*at, "s/x", "x"));
        pool.put_dir(0, "t");
        pool.put(1, "t", "hidden");
        let before = pool.snapshot();
        assert_eq!(pool.rename("s", "t").unwrap_err(), Errno::NOTDIR, "{sources:?}");
        assert_eq!(pool.snapshot(), before, "{sources:?}");
    }
}
