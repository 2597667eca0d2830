//! Renaming files: on their branch, over any target, without uncovering hidden copies.

use std::fs;
use std::os::fd::AsFd;

use fsstack_engine::ops::WriteTerms;
use fsstack_lab::Skip;
use fsstack_pool::BranchMode::{NoCreate, ReadOnly, ReadWrite};
use fsstack_pool::Ino;
use fsstack_sys::Errno;
use fsstack_sys::at::RenameFlags;
use fsstack_sys::ioctl::{FS_APPEND_FL, getflags, setflags};

use crate::test_bed::{TestBed, buf, settings};

#[test]
fn a_file_keeps_its_branch_and_the_parent_is_made_there() {
    let pool = TestBed::new(3);
    pool.put_dir(0, "deep/er");
    pool.put(2, "film", "x");
    std::fs::set_permissions(pool.on(0, "deep/er"), std::os::unix::fs::PermissionsExt::from_mode(0o2750))
        .unwrap();
    pool.rename("film", "deep/er/movie").unwrap();
    assert_eq!(pool.holders("deep/er/movie"), [2]);
    assert!(pool.holders("film").is_empty());
    assert_eq!(pool.read("deep/er/movie").unwrap(), "x");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(pool.on(2, "deep/er")).unwrap());
    assert_eq!(mode & 0o7777, 0o2750, "a skeleton has the mode of what it copies");
    assert_eq!(pool.find("film").unwrap_err(), Errno::NOENT);
}

#[test]
fn a_target_is_replaced_whichever_branches_it_is_on() {
    for source in 0..3_usize {
        for targets in [vec![0], vec![1], vec![2], vec![0, 1], vec![1, 2], vec![0, 2], vec![0, 1, 2]] {
            let pool = TestBed::new(3);
            pool.put(source, "new", "new");
            targets.iter().for_each(|at| pool.put(*at, "d/old", "old"));
            pool.rename("new", "d/old").unwrap();
            assert_eq!(pool.read("d/old").unwrap(), "new", "{source} over {targets:?}");
            assert_eq!(pool.find("new").unwrap_err(), Errno::NOENT);
            assert_eq!(pool.holders("d/old"), [source], "{source} over {targets:?}");
            assert_eq!(pool.names("d"), ["old"]);
        }
    }
}

#[test]
fn a_hidden_copy_of_the_source_never_comes_to_light() {
    for hidden in 1..3 {
        let pool = TestBed::new(3);
        pool.put(0, "film", "shown");
        pool.put(hidden, "film", "hidden");
        pool.rename("film", "movie").unwrap();
        assert_eq!(pool.find("film").unwrap_err(), Errno::NOENT);
        assert_eq!(pool.read("movie").unwrap(), "shown");
        assert!(pool.holders("film").is_empty());
    }
}

#[test]
fn hidden_copies_on_both_ends_never_come_to_light() {
    let pool = TestBed::new(3);
    pool.put(1, "from", "shown");
    pool.put(2, "from", "hidden");
    pool.put(0, "to", "old");
    pool.put(2, "to", "old hidden");
    pool.rename("from", "to").unwrap();
    assert_eq!(pool.read("to").unwrap(), "shown");
    assert_eq!((pool.holders("from"), pool.holders("to")), (vec![], vec![1]));
}

#[test]
fn noreplace_sees_every_branch() {
    for target in 0..3 {
        let pool = TestBed::new(3);
        pool.put(1, "from", "x");
        pool.put(target, "to", "y");
        let before = pool.snapshot();
        let refused = pool.rename_with("from", "to", RenameFlags::NOREPLACE);
        assert_eq!(refused.unwrap_err(), Errno::EXIST, "target on {target}");
        assert_eq!(pool.snapshot(), before);
    }
    let pool = TestBed::new(2);
    pool.put(1, "from", "x");
    pool.rename_with("from", "to", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(pool.read("to").unwrap(), "x");
}

#[test]
fn noreplace_of_a_directory_leaves_no_false_memory() {
    let pool = TestBed::new(2);
    pool.put_dir(0, "d");
    pool.put(1, "film", "x");
    pool.rename_with("d", "to", RenameFlags::NOREPLACE).unwrap();
    let (from, to) = (buf("film"), buf("to"));
    let over =
        pool.union.rename((Ino::ROOT, from.as_name()), (Ino::ROOT, to.as_name()), RenameFlags::empty());
    assert_eq!(over.unwrap_err().errno(), Errno::ISDIR, "the name is a directory's by now");
    assert_eq!(pool.holders("film"), [1]);
}

#[test]
fn exchange_on_one_branch_and_on_two() {
    for (a, b) in [(0, 0), (0, 1), (1, 0)] {
        let pool = TestBed::new(2);
        pool.put(a, "d/a", "was a");
        pool.put(b, "b", "was b");
        let (ino_a, ino_b) = (pool.ino("d/a"), pool.ino("b"));
        pool.rename_with("d/a", "b", RenameFlags::EXCHANGE).unwrap();
        assert_eq!(pool.read("d/a").unwrap(), "was b");
        assert_eq!(pool.read("b").unwrap(), "was a");
        assert_eq!((pool.ino("d/a"), pool.ino("b")), (ino_b, ino_a), "numbers go with the files");
        assert_eq!(pool.getattr(ino_a).unwrap().stat.size, 5);
    }
}

#[test]
fn exchange_of_a_file_with_a_directory() {
    for at in 0..2 {
        let pool = TestBed::new(2);
        pool.put(at, "film", "x");
        pool.put(0, "d/a", "0");
        pool.put(1, "d/b", "1");
        pool.rename_with("film", "d", RenameFlags::EXCHANGE).unwrap();
        assert_eq!(pool.read("d").unwrap(), "x");
        assert_eq!(pool.names("film"), ["a", "b"]);
    }
}

#[test]
fn exchange_wants_both_names() {
    let pool = TestBed::new(2);
    pool.put(0, "a", "x");
    let before = pool.snapshot();
    assert_eq!(pool.rename_with("a", "b", RenameFlags::EXCHANGE).unwrap_err(), Errno::NOENT);
    assert_eq!(pool.rename_with("b", "a", RenameFlags::EXCHANGE).unwrap_err(), Errno::NOENT);
    assert_eq!(pool.snapshot(), before);
}

#[test]
fn whiteouts_are_refused() {
    let pool = TestBed::new(1);
    pool.put(0, "a", "x");
    assert_eq!(pool.rename_with("a", "b", RenameFlags::WHITEOUT).unwrap_err(), Errno::INVAL);
}

#[test]
fn a_read_only_branch_that_holds_either_name_refuses_and_nothing_changes() {
    // The read-only branch; branches of the source; branches of the target.
    for (fixed, sources, targets) in [
        (0, vec![0], vec![]),
        (0, vec![0, 1], vec![]),
        (1, vec![0, 1], vec![]),
        (0, vec![1], vec![0]),
        (1, vec![0], vec![1]),
        (1, vec![0], vec![0, 1]),
    ] {
        let mut modes = [ReadWrite; 2];
        modes[fixed] = ReadOnly;
        let pool = TestBed::with(&modes, settings());
        sources.iter().for_each(|at| pool.put(*at, "from", "x"));
        targets.iter().for_each(|at| pool.put(*at, "to", "y"));
        let before = pool.snapshot();
        let error = pool.rename("from", "to").unwrap_err();
        assert_eq!(error, Errno::ROFS, "{fixed} {sources:?} {targets:?}");
        assert_eq!(pool.snapshot(), before, "{fixed} {sources:?} {targets:?}");
    }
}

#[test]
fn a_branch_that_takes_nothing_new_renames() {
    let pool = TestBed::with(&[NoCreate, ReadWrite], settings());
    pool.put(0, "from", "x");
    pool.put_dir(1, "d");
    pool.rename("from", "d/to").unwrap();
    assert_eq!(pool.holders("d/to"), [0]);
}

#[test]
fn two_names_of_one_file_stay() {
    let pool = TestBed::new(2);
    pool.write("a", "x");
    pool.link("a", "b").unwrap();
    pool.rename("a", "b").unwrap();
    assert_eq!(pool.names(""), ["a", "b"]);
    assert_eq!(pool.stat("a").stat.nlink, 2);
}

#[test]
fn a_file_over_a_directory_and_a_directory_over_a_file_are_refused() {
    for (file, dir) in [(0, 0), (0, 1), (1, 0)] {
        let pool = TestBed::new(2);
        pool.put(file, "file", "x");
        pool.put_dir(dir, "dir");
        let before = pool.snapshot();
        assert_eq!(pool.rename("file", "dir").unwrap_err(), Errno::ISDIR, "{file} {dir}");
        assert_eq!(pool.rename("dir", "file").unwrap_err(), Errno::NOTDIR, "{file} {dir}");
        assert_eq!(pool.snapshot(), before);
    }
}

#[test]
fn an_open_file_follows_its_name_and_one_that_is_replaced_goes_on() {
    let pool = TestBed::new(2);
    let moved = pool.create("a").unwrap();
    let replaced = pool.create("b").unwrap();
    pool.union.write(moved.handle, 0, b"moved", WriteTerms::default()).unwrap();
    pool.union.write(replaced.handle, 0, b"replaced", WriteTerms::default()).unwrap();
    pool.rename("a", "b").unwrap();
    assert_eq!(pool.ino("b"), moved.ino);
    assert_eq!(pool.read_handle(replaced), "replaced");
    assert_eq!(pool.getattr(replaced.ino).unwrap().stat.nlink, 0);
    pool.close(moved);
    assert_eq!(pool.read_ino(moved.ino).unwrap(), "moved", "found by its new name");
}

#[test]
fn a_rename_of_a_missing_name_is_enoent() {
    let pool = TestBed::new(2);
    pool.put(0, "to", "x");
    let (from, to) = (buf("from"), buf("to"));
    let error =
        pool.union.rename((Ino::ROOT, from.as_name()), (Ino::ROOT, to.as_name()), RenameFlags::empty());
    assert_eq!(error.unwrap_err().errno(), Errno::NOENT);
    assert_eq!(pool.read("to").unwrap(), "x");
}

#[test]
fn a_branch_that_is_mounted_read_only_refuses_before_anything_is_changed() {
    use fsstack_lab::{Branch, Kind, Layout, MiB};
    fsstack_lab::needs!(root());
    let home = tempfile::tempdir().unwrap();
    let fixed = Branch::make("fixed", Kind::Tmpfs(MiB(8)), Layout::Sparse, home.path()).unwrap();
    let other = home.path().join("other");
    std::fs::create_dir(&other).unwrap();
    for path in [fixed.path(), &other] {
        std::fs::write(path.join("from"), "x").unwrap();
    }
    fixed.remount_ro();
    let pool = TestBed::at(&[fixed.path().to_owned(), other], &[ReadWrite, ReadWrite], settings());
    let before = pool.snapshot();
    assert_eq!(pool.rename("from", "to").unwrap_err(), Errno::ROFS);
    assert_eq!(pool.unlink("from").unwrap_err(), Errno::ROFS);
    assert_eq!(pool.snapshot(), before);
}

#[test]
fn a_directory_that_the_target_hides_stays_hidden() {
    for source in 0..2 {
        let pool = TestBed::new(3);
        pool.put(source, "s", "new");
        pool.put(0, "t", "old");
        pool.put_dir(2, "t");
        pool.rename("s", "t").unwrap();
        assert_eq!(pool.read("t").unwrap(), "new", "{source}");
        assert!(pool.holders("s").is_empty());
        assert_eq!(pool.holders("t"), [source, 2]);
    }
}

#[test]
fn a_hidden_directory_in_the_way_of_a_file_is_eisdir_and_nothing_is_changed() {
    // It is in the way, or would be uncovered.
    for source in [1, 2] {
        let pool = TestBed::new(3);
        pool.put(source, "s", "new");
        pool.put(0, "t", "old");
        pool.put_dir(1, "t");
        let before = pool.snapshot();
        assert_eq!(pool.rename("s", "t").unwrap_err(), Errno::ISDIR, "{source}");
        assert_eq!(pool.snapshot(), before, "{source}");
    }
}

/// A directory that is append-only while this exists.
struct AppendOnly(std::fs::File, u32);

impl AppendOnly {
    /// None: the file system under /tmp has no such directories.
    fn new(dir: &std::path::Path) -> Option<Self> {
        let dir = std::fs::File::open(dir).unwrap();
        let flags = getflags(dir.as_fd()).ok()?;
        setflags(dir.as_fd(), flags | FS_APPEND_FL).ok()?;
        Some(Self(dir, flags))
    }
}

impl Drop for AppendOnly {
    fn drop(&mut self) {
        setflags(self.0.as_fd(), self.1).unwrap();
    }
}

/// Nothing is changed by a rename over several branches of which a later step would be refused.
#[test]
fn append_only_directories_refuse_before_anything_is_changed() {
    let checked =
        |what: &str, fill: &dyn Fn(&TestBed), fixed: &[(usize, &str)], act: &dyn Fn(&TestBed) -> Errno| {
            let pool = TestBed::new(2);
            fill(&pool);
            let dirs: Option<Vec<_>> =
                fixed.iter().map(|(at, dir)| AppendOnly::new(&pool.on(*at, dir))).collect();
            let Some(dirs) = dirs else {
                return Skip::because("no append-only directories under /tmp").announce();
            };
            let before = [0, 1].map(|at| tree(&pool.on(at, "")));
            assert_eq!(act(&pool), Errno::PERM, "{what}");
            drop(dirs);
            assert_eq!([0, 1].map(|at| tree(&pool.on(at, ""))), before, "{what}");
        };
    let rename =
        |from: &'static str, to: &'static str| move |pool: &TestBed| pool.rename(from, to).unwrap_err();
    let files = |pool: &TestBed| {
        pool.put(0, "q/f", "old");
        pool.put(1, "p/x", "new");
    };
    checked("out of one, over a file of another branch", &files, &[(1, "p")], &rename("p/x", "q/f"));
    let swapped = |pool: &TestBed| {
        pool.put(0, "p/x", "new");
        pool.put(1, "q/f", "old");
        pool.put_dir(0, "q");
    };
    checked(
        "into one, over a file of a later branch",
        &swapped,
        &[(0, "q"), (1, "q")],
        &rename("p/x", "q/f"),
    );
    let within = |pool: &TestBed| {
        pool.put(0, "d/f", "old");
        pool.put(1, "d/x", "new");
    };
    checked("within one", &within, &[(0, "d"), (1, "d")], &rename("d/x", "d/f"));
    let exchange = |pool: &TestBed| pool.rename_with("d/x", "d/f", RenameFlags::EXCHANGE).unwrap_err();
    checked("an exchange", &within, &[(0, "d"), (1, "d")], &exchange);
    let dirs = |pool: &TestBed| {
        pool.put_dir(0, "q/t");
        pool.put_dir(1, "q");
        pool.put(1, "s/file", "x");
    };
    checked("a directory over one of another branch", &dirs, &[(0, "q"), (1, "q")], &rename("s", "q/t"));
}

/// The files below `dir`, with their contents.
fn tree(dir: &std::path::Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(tree(&path)),
            false => all.push(format!("{}: {}", path.display(), std::fs::read_to_string(&path).unwrap())),
        }
    }
    all.sort();
    all
}

/// The kernel looks the name up again and comes back.
#[test]
fn a_file_that_was_moved_to_a_later_branch_out_of_band_is_looked_up_and_renamed() {
    let pool = TestBed::new(2);
    pool.put(0, "film", "text");
    pool.ino("film");
    fs::rename(pool.on(0, "film"), pool.on(1, "film")).unwrap();
    let (from, to) = (buf("film"), buf("other"));
    let renamed =
        pool.union.rename((Ino::ROOT, from.as_name()), (Ino::ROOT, to.as_name()), RenameFlags::empty());
    assert_eq!(renamed.unwrap_err().errno(), Errno::STALE);
    pool.ino("film");
    pool.rename("film", "other").unwrap();
    assert_eq!((pool.holders("other"), pool.read("other").unwrap()), (vec![1], "text".into()));
}
