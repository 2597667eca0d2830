//! Files and directories that have inode numbers of drained and removed files keep theirs, whatever branch leaves.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fsstack_lab::{self as lab, MiB, needs, until};

use super::*;
use crate::handles::{forget, forget_everywhere};

const OLD: usize = 50;
const NEW: usize = 60;

/// Bits of a number that are the branch's inode number.
const OWN: u64 = (1 << 48) - 1;

/// A pool of three branches, and the inode numbers that [`OLD`] files had on `a` before they went to `b`.
fn drained(options: &str) -> (Pool, HashSet<u64>) {
    let pool = ["a", "b", "c"].iter().fold(lab::pool(), |pool, name| pool.ext4_branch(name, MiB(64)));
    let pool = pool.option("create=ff,minfreespace=1M,entry-timeout=0").option(options).mount();
    (0..OLD).for_each(|n| pool.write(format!("old{n}"), b"old"));
    let own = |n| fs::metadata(pool.branch("a").path().join(format!("old{n}"))).unwrap().ino();
    let numbers = (0..OLD).map(own).collect();
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a"), "--to", &branch(&pool, "b")]);
    output_of(&["branch", "mode", &at(&pool), &branch(&pool, "a"), "RW"]);
    (pool, numbers)
}

/// Makes [`NEW`] files and a directory each; some have numbers in `again` on their branch. Returns the paths with their numbers.
fn made(pool: &Pool, again: &HashSet<u64>) -> Vec<(PathBuf, u64)> {
    let mut made = Vec::new();
    for n in 0..NEW {
        pool.write(format!("new{n}"), b"new");
        pool.mkdir(format!("dir{n}"));
        made.extend([format!("new{n}"), format!("dir{n}")].map(|name| pool.at(name)));
    }
    let made: Vec<_> = made.into_iter().map(with_number).collect();
    assert!(made.iter().any(|(path, _)| again.contains(&own(pool, path))), "no number was used again");
    made
}

/// The inode number on the branch `a`.
fn own(pool: &Pool, path: &Path) -> u64 {
    let name = path.strip_prefix(pool.path()).unwrap();
    fs::metadata(pool.branch("a").path().join(name)).unwrap().ino()
}

fn with_number(path: PathBuf) -> (PathBuf, u64) {
    let number = fs::metadata(&path).unwrap().ino();
    (path, number)
}

#[track_caller]
fn check(made: &[(PathBuf, u64)]) {
    let now = |(path, before): &(PathBuf, u64)| {
        let now = fs::metadata(path).unwrap().ino();
        (now != *before).then(|| format!("{}: {before:x} is {now:x}", path.display()))
    };
    let changed: Vec<_> = made.iter().filter_map(now).collect();
    assert!(changed.is_empty(), "{} of {}: {}", changed.len(), made.len(), changed[0]);
}

/// Drained files are removed on their branch, which then leaves the pool. Files that have their numbers on the drained branch
/// are open meanwhile, and move.
#[test]
fn files_that_have_numbers_of_files_removed_out_of_band_keep_them_when_the_branch_leaves() {
    needs!(mounting(), loops());
    let (pool, again) = drained("write-path=stacked");
    let old = |n| pool.branch("b").path().join(format!("old{n}"));
    (0..OLD).for_each(|n| fs::remove_file(old(n)).unwrap());
    let made = made(&pool, &again);
    let (path, _) =
        made.iter().find(|(path, _)| path.is_file() && again.contains(&own(&pool, path))).unwrap();
    let mut open = File::options().read(true).append(true).open(path).unwrap();
    open.lock().unwrap();
    output_of(&["branch", "remove", &at(&pool), &branch(&pool, "b")]);
    check(&made);
    let second = File::open(path).unwrap().try_lock();
    assert!(matches!(second, Err(TryLockError::WouldBlock)), "{second:?}");
    open.unlock().unwrap();
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a"), "--to", &branch(&pool, "c")]);
    open.write_all(b", changed").unwrap();
    open.sync_all().unwrap();
    drop(open);
    assert_eq!(fs::read(path).unwrap(), b"new, changed");
    check(&made);
}

/// Files that have gone with one whose number is used again are forgotten with it: a write to disk for each would hold up lookups.
#[test]
fn files_that_were_removed_together_are_forgotten_together() {
    needs!(mounting(), loops());
    let (pool, again) = drained("write-path=auto");
    let known = || indexed(&pool);
    assert_eq!(known(), OLD);
    let lives = with_number(pool.at("old30"));
    for n in (0..OLD).filter(|n| *n != 30) {
        fs::remove_file(pool.branch("b").path().join(format!("old{n}"))).unwrap();
    }
    // The kernel knows none of them.
    forget_everywhere(&pool);
    pool.write("new", b"new");
    let new = with_number(pool.at("new"));
    assert!(again.contains(&own(&pool, &new.0)), "no number was used again");
    assert!(known() < OLD / 2, "{} are known", known());
    check(&[new, lives]);
}

/// Number of objects in the index.
fn indexed(pool: &Pool) -> usize {
    let health = crate::handles_elsewhere::index(pool);
    let objects = health.split(' ').find_map(|word| word.parse::<usize>().ok());
    objects.unwrap_or_else(|| panic!("{health}"))
}

/// Number of findings of each kind.
fn findings(arguments: &[&str]) -> BTreeMap<String, usize> {
    let Finished { stdout, .. } = run(&[&["check"], arguments, &["--json"]].concat());
    let mut kinds = BTreeMap::new();
    for finding in checked("check", &stdout)["findings"].as_array().unwrap() {
        *kinds.entry(finding["kind"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    kinds
}

/// Files have numbers because of rows in the index, and some of the drained files are removed on their branch, where their inode
/// numbers are used again. One of these is open.
#[test]
fn check_finds_rows_whose_objects_are_gone_and_fix_removes_those_only() {
    needs!(mounting(), loops(), drop_caches());
    const LEFT: usize = 10;
    let (mut pool, again) = drained("write-path=stacked");
    let b = pool.branch("b").path().to_owned();
    let mut made = made(&pool, &again);
    made.extend((0..LEFT).map(|n| with_number(pool.at(format!("old{n}")))));
    let open = File::open(pool.at(format!("old{LEFT}"))).unwrap();
    let number = open.metadata().unwrap().ino();
    (LEFT..OLD).for_each(|n| fs::remove_file(b.join(format!("old{n}"))).unwrap());
    (LEFT..OLD).for_each(|n| fs::write(b.join(format!("other{n}")), b"").unwrap());
    let all = indexed(&pool);
    assert!(all > OLD, "no file has a number because of a row");
    let gone = OLD - LEFT - 1;
    let expected = BTreeMap::from([("stale-row".to_owned(), gone)]);
    // The kernel forgets all but the open one.
    until("all rows without an object are found", || {
        forget();
        findings(&[&at(&pool)]) == expected
    });
    assert_eq!(indexed(&pool), all);
    let Finished { code, stdout, .. } = run(&["check", &at(&pool)]);
    let line = stdout.lines().next().unwrap_or_default();
    let end = format!("that is no longer on {}; with --fix: the row is removed", b.display());
    assert!(line.starts_with("/: the index has a row of object ") && line.ends_with(&end), "{line}");
    assert_eq!((code, stdout.lines().count(), indexed(&pool)), (0, gone, all));
    let Finished { code, stdout, .. } = run(&["check", &at(&pool), "--fix"]);
    assert!(code == 0 && stdout.lines().all(|line| line.ends_with("fixed: the row is removed")), "{stdout}");
    assert_eq!((findings(&[&at(&pool)]), indexed(&pool)), (BTreeMap::new(), all - gone));
    check(&made);
    assert_eq!(open.metadata().unwrap().ino(), number);
    drop(open);
    is_killed(&mut pool);
    check(&made);
}

/// Directories whose later copies have inode numbers of drained files lose these copies, or are removed.
fn later_copies_leave_no_rows(options: &str) {
    const DIRS: usize = 20;
    needs!(mounting(), loops(), drop_caches());
    let (pool, again) = drained(options);
    let (id, a) = (at(&pool), branch(&pool, "a"));
    // An exported pool's root has one.
    let rows = indexed(&pool) - OLD;
    let mode = |mode| drop(output_of(&["branch", "mode", &id, &a, mode]));
    let new = |n| pool.at(format!("new{n}"));
    mode("NC");
    (0..DIRS).for_each(|n| pool.mkdir(format!("new{n}")));
    mode("RW");
    (0..DIRS).for_each(|n| pool.write(format!("new{n}/file"), b"new"));
    let copies: HashSet<_> = (0..DIRS).map(|n| own(&pool, &new(n))).collect();
    assert!(!copies.is_disjoint(&again), "no number was used again: {again:?} {copies:?}");
    forget_everywhere(&pool);
    let made: Vec<_> = (0..DIRS).map(|n| with_number(new(n))).collect();
    let (removed, stay) = made.split_at(DIRS / 2);
    removed.iter().for_each(|(path, _)| fs::remove_dir_all(path).unwrap());
    output_of(&["branch", "drain", &id, &a, "--to", &branch(&pool, "b")]);
    check(stay);
    forget_everywhere(&pool);
    assert_eq!(findings(&[&id]), BTreeMap::new());
    check(stay);
    stay.iter().for_each(|(path, _)| fs::remove_dir_all(path).unwrap());
    (0..OLD).for_each(|n| fs::remove_file(pool.at(format!("old{n}"))).unwrap());
    assert_eq!(indexed(&pool), rows);
}

#[test]
fn later_copies_of_directories_leave_no_rows() {
    later_copies_leave_no_rows("write-path=auto");
}

#[test]
fn later_copies_of_exported_directories_leave_no_rows() {
    later_copies_leave_no_rows("nfs-export");
}

#[test]
fn check_leaves_rows_of_a_branch_that_is_away() {
    needs!(mounting(), loops());
    let (mut pool, _) = drained("write-path=stacked");
    fs::remove_file(pool.branch("b").path().join("old0")).unwrap();
    let (id, b) = (at(&pool), branch(&pool, "b"));
    forget_everywhere(&pool);
    loses_the_drained_files_branch(&mut pool);
    assert_eq!(findings(&[&id, "--fix"]), BTreeMap::from([("not-checked".to_owned(), 1)]), "{b}");
    assert_eq!(indexed(&pool), OLD);
}

/// Files have the inode numbers of one drained file after the other, all of which live.
#[test]
fn files_that_take_the_number_of_drained_files_in_turn_keep_theirs_after_a_kill() {
    needs!(mounting(), loops());
    let mut pool = two_branches();
    let mut made: Vec<(PathBuf, u64)> = Vec::new();
    for round in 0..6 {
        for n in 0..OLD {
            pool.write(format!("{round}-{n}"), b"old");
            made.push(with_number(pool.at(format!("{round}-{n}"))));
        }
        output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
        output_of(&["branch", "mode", &at(&pool), &branch(&pool, "a"), "RW"]);
        check(&made);
    }
    let numbers: HashSet<_> = made.iter().map(|(_, number)| *number).collect();
    assert_eq!(numbers.len(), made.len(), "files share a number");
    let own: HashSet<_> = numbers.iter().map(|number| number & ((1 << 38) - 1)).collect();
    assert!(own.len() < made.len() / 2, "hardly an inode number was used again");
    // A hash leads to its file by the index only, so it is on disk before a program sees it.
    let hashes = numbers.iter().filter(|number| **number >> 63 == 1).count();
    assert!(hashes < made.len() / 20, "{hashes} of {} numbers are hashes", made.len());
    is_killed(&mut pool);
    check(&made);
}

/// The pool removes files that were drained.
fn removed() -> (Pool, HashSet<u64>) {
    let (pool, again) = drained("write-path=auto");
    (0..OLD).for_each(|n| fs::remove_file(pool.at(format!("old{n}"))).unwrap());
    (pool, again)
}

/// The daemon is killed at once.
fn is_killed(pool: &mut Pool) {
    pool.kill_daemon();
    pool.remount();
}

/// The branch goes to which the files were drained.
fn loses_the_drained_files_branch(pool: &mut Pool) {
    pool.branch_mut("b").unmount_lazily();
    until("branch b is down", || run(&["status", &at(pool)]).stdout.contains("down"));
}

#[test]
fn files_that_have_numbers_of_removed_files_keep_them_when_the_branch_goes_after_a_kill() {
    needs!(mounting(), loops());
    let (mut pool, again) = removed();
    is_killed(&mut pool);
    let made = made(&pool, &again);
    loses_the_drained_files_branch(&mut pool);
    check(&made);
}

#[test]
fn files_that_had_numbers_of_removed_files_before_a_kill_keep_them_when_the_branch_goes() {
    needs!(mounting(), loops());
    let (mut pool, again) = removed();
    let made = made(&pool, &again);
    is_killed(&mut pool);
    loses_the_drained_files_branch(&mut pool);
    check(&made);
}

/// A pool of two branches that is not exported.
fn two_branches() -> Pool {
    lab::pool().ext4_branch("a", MiB(64)).ext4_branch("b", MiB(64)).option("create=ff").mount()
}

/// Directories leave a branch of a pool that is not exported, some of them to copies that were made out of band, and others get
/// their numbers there.
#[test]
fn directories_keep_their_numbers_over_a_drain() {
    const DIRS: usize = 20;
    needs!(mounting(), loops(), drop_caches());
    let mut pool = two_branches();
    for n in 0..DIRS {
        pool.mkdir(format!("dir{n}/below"));
        pool.write(format!("dir{n}/below/file"), b"");
    }
    for n in 0..DIRS / 2 {
        fs::create_dir(pool.branch("b").path().join(format!("dir{n}"))).unwrap();
    }
    forget_everywhere(&pool);
    let paths = (0..DIRS).flat_map(|n| [format!("dir{n}"), format!("dir{n}/below")]);
    let mut all: Vec<_> = paths.map(|name| pool.at(name)).map(with_number).collect();
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    forget_everywhere(&pool);
    check(&all);
    output_of(&["branch", "mode", &at(&pool), &branch(&pool, "a"), "RW"]);
    let again: HashSet<_> = all.iter().map(|(_, number)| number & OWN).collect();
    for n in 0..2 * DIRS {
        pool.mkdir(format!("new{n}"));
        all.push(with_number(pool.at(format!("new{n}"))));
    }
    let new = all.iter().filter(|(path, _)| path.to_str().unwrap().contains("/new"));
    assert!(new.into_iter().any(|(path, _)| again.contains(&own(&pool, path))), "no number was used again");
    let numbers: HashSet<_> = all.iter().map(|(_, number)| number).collect();
    assert_eq!(numbers.len(), all.len(), "two directories have one number");
    forget_everywhere(&pool);
    check(&all);
    pool.remount();
    check(&all);
    // Those that got other numbers keep them.
    (0..DIRS).for_each(|n| fs::remove_dir_all(pool.at(format!("dir{n}"))).unwrap());
    all.retain(|(path, _)| path.exists());
    forget_everywhere(&pool);
    check(&all);
}

/// Files that were drained are removed while they are open, or others are renamed over them; then `event` comes, and new files get
/// numbers that they had on their branch.
fn open_files_without_names_keep_their_numbers(pool: &Pool, again: &HashSet<u64>, event: impl FnOnce(&Pool)) {
    let open = |n| File::options().read(true).write(true).open(pool.at(format!("old{n}"))).unwrap();
    let held: Vec<File> = (0..OLD).map(open).collect();
    let before: Vec<u64> = held.iter().map(|file| file.metadata().unwrap().ino()).collect();
    for n in 0..OLD {
        if n % 2 == 0 {
            fs::remove_file(pool.at(format!("old{n}"))).unwrap();
        } else {
            pool.write("aside", b"aside");
            fs::rename(pool.at("aside"), pool.at(format!("old{n}"))).unwrap();
        }
    }
    event(pool);
    let made = made(pool, again);
    assert!(made.iter().all(|(_, number)| !before.contains(number)), "an open file's number was given away");
    for (mut file, before) in held.into_iter().zip(before) {
        assert_eq!(file.metadata().unwrap().ino(), before);
        assert_eq!(std::io::read_to_string(&file).unwrap(), "old");
        file.write_all(b", new").unwrap();
        file.sync_all().unwrap();
    }
    check(&made);
}

#[test]
fn open_files_without_names_keep_numbers_that_a_drained_branch_uses_again() {
    needs!(mounting(), loops());
    let (pool, again) = drained("write-path=auto");
    open_files_without_names_keep_their_numbers(&pool, &again, |_| ());
}

#[test]
fn open_files_without_names_keep_numbers_after_a_death() {
    needs!(mounting(), loops());
    let (pool, again) = drained("transport=dev,restart=keep");
    open_files_without_names_keep_their_numbers(&pool, &again, crate::keep::crash_and_serve);
}

#[test]
fn open_files_without_names_keep_numbers_after_an_upgrade() {
    needs!(mounting(), loops());
    let (pool, again) = drained("transport=dev");
    let upgrade = |pool: &Pool| drop(output_of(&["upgrade", &at(pool)]));
    open_files_without_names_keep_their_numbers(&pool, &again, upgrade);
}

/// The branch has them again, by other inode numbers.
#[test]
fn open_files_without_names_keep_numbers_when_they_have_come_back() {
    needs!(mounting(), loops());
    let (pool, again) = drained("write-path=auto");
    let aside: Vec<_> = (0..OLD).map(|n| pool.branch("a").path().join(format!("aside{n}"))).collect();
    aside.iter().for_each(|path| fs::write(path, "").unwrap());
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "b"), "--to", &branch(&pool, "a")]);
    aside.iter().for_each(|path| fs::remove_file(path).unwrap());
    open_files_without_names_keep_their_numbers(&pool, &again, |_| ());
}

/// Directories are held whose first copies were removed on the branch.
#[test]
fn held_directories_keep_numbers_that_a_branch_uses_again() {
    const DIRS: usize = 20;
    needs!(mounting(), loops(), drop_caches());
    let pool = two_branches();
    for n in 0..DIRS {
        pool.mkdir(format!("dir{n}"));
        fs::create_dir(pool.branch("b").path().join(format!("dir{n}"))).unwrap();
    }
    forget_everywhere(&pool);
    let held: Vec<File> = (0..DIRS).map(|n| File::open(pool.at(format!("dir{n}"))).unwrap()).collect();
    let number = |dir: &File| dir.metadata().unwrap().ino();
    let before: Vec<u64> = held.iter().map(number).collect();
    let paths = |of: &str| (0..DIRS).map(|n| pool.at(format!("{of}{n}"))).collect::<Vec<_>>();
    let again: HashSet<u64> = paths("dir").iter().map(|path| own(&pool, path)).collect();
    (0..DIRS).for_each(|n| fs::remove_dir(pool.branch("a").path().join(format!("dir{n}"))).unwrap());
    until("names are made in all of them", || {
        let make = |n| File::create(pool.at(format!("dir{n}/name"))).is_ok();
        (0..DIRS).all(make)
    });
    let new = paths("new");
    for (n, path) in new.iter().enumerate() {
        if n % 2 == 0 { fs::create_dir(path).unwrap() } else { fs::write(path, "").unwrap() }
    }
    assert!(new.iter().any(|path| again.contains(&own(&pool, path))), "no number was used again");
    assert_eq!(held.iter().map(number).collect::<Vec<_>>(), before);
    let new = new.into_iter().map(with_number);
    assert!(
        new.into_iter().all(|(_, number)| !before.contains(&number)),
        "a held directory's number was given away"
    );
}

/// The branch that was drained leaves, and the pool has one branch.
#[test]
fn directories_keep_their_numbers_when_the_drained_branch_leaves() {
    const DIRS: usize = 20;
    needs!(mounting(), loops(), drop_caches());
    let mut pool = two_branches();
    (0..DIRS).for_each(|n| pool.mkdir(format!("dir{n}/below")));
    let all: Vec<_> = (0..DIRS).map(|n| with_number(pool.at(format!("dir{n}/below")))).collect();
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    output_of(&["branch", "remove", &at(&pool), &branch(&pool, "a")]);
    forget_everywhere(&pool);
    check(&all);
    pool.remount_of(&["b"]);
    check(&all);
    // Once the index is read as a whole.
    forget_everywhere(&pool);
    check(&all);
}

/// A copy of a drained directory is made on the branch that it left.
#[test]
fn directories_keep_their_numbers_when_a_copy_comes_after_a_drain() {
    needs!(mounting(), loops(), drop_caches());
    let pool = two_branches();
    pool.mkdir("dir");
    let all = [with_number(pool.at("dir"))];
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    // The first one gets the number that the copy had there.
    for name in ["other", "dir"] {
        fs::create_dir(pool.branch("a").path().join(name)).unwrap();
    }
    forget_everywhere(&pool);
    check(&all);
    fs::remove_dir(pool.branch("a").path().join("dir")).unwrap();
    forget_everywhere(&pool);
    check(&all);
}
