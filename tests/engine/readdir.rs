//! Listings: every name once, stable cookies, numbers that agree with stat.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use fsstack_engine::answer::{Entry, Listed};
use fsstack_engine::inode::KeptListing;
use fsstack_engine::ops::{Sink, WriteTerms};
use fsstack_engine::settings::Settings;
use fsstack_lab::{self as lab, MiB, Pool, needs};
use fsstack_pool::BranchMode::ReadWrite;
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{Errno, Kind, OFlags};
use rustix::fs::{FallocateFlags, fallocate};

use crate::test_bed::{Row, TestBed, distinct_homes, settings};

/// Three branches, names on one, two and all of them; some are directories.
fn spread(files: usize) -> TestBed {
    spread_over(TestBed::new(3), files)
}

fn spread_over(pool: TestBed, files: usize) -> TestBed {
    for n in 0..files {
        for at in (0..3).filter(|at| n % 7 == 6 || n % 3 == *at || (n % 5 == 4 && (n + 1) % 3 == *at)) {
            if n % 10 == 9 {
                pool.put_dir(at, &format!("d/n{n}"))
            } else {
                pool.put(at, &format!("d/n{n}"), "")
            }
        }
    }
    pool
}

#[test]
fn every_name_is_listed_once() {
    let pool = spread(200);
    for room in [1, 2, 3, 7, usize::MAX] {
        let dir = pool.opendir(pool.ino("d"));
        let rows = pool.rest(dir, 0, room);
        let names: BTreeSet<_> = rows.iter().map(|row| row.name.clone()).collect();
        assert_eq!((rows.len(), names.len()), (200, 200), "{room} at a time");
    }
}

/// Users may hold any number of listings open: beyond the memory limit, earlier copies are searched instead, with the
/// same result.
#[test]
fn every_name_is_listed_once_when_the_memory_of_listings_is_used_up() {
    let pool =
        spread_over(TestBed::with(&[ReadWrite; 3], Settings { listing_entries: 512, ..settings() }), 900);
    let dirs = [(); 3].map(|()| pool.opendir(pool.ino("d")));
    let list = |dir| {
        let rows = pool.rest(dir, 0, 50);
        let names: BTreeSet<_> = rows.iter().map(|row| row.name.clone()).collect();
        assert_eq!((rows.len(), names.len()), (900, 900));
    };
    for dir in dirs {
        pool.readdir(dir, 0, false, 300).unwrap();
    }
    assert_eq!(pool.union.held().listing_entries, 512, "no listing kept a name: the test shows nothing");
    dirs.into_iter().for_each(list);
    assert_eq!(pool.union.held().listing_entries, 0, "a listing at its end keeps names");
}

#[test]
fn a_new_handle_resumes_from_every_cookie() {
    for pool in [spread(60), spread(1)] {
        let ino = pool.ino("d");
        let dir = pool.opendir(ino);
        let all = pool.readdir(dir, 0, false, usize::MAX).unwrap();
        assert_eq!((all[0].name.as_str(), all[1].name.as_str()), (".", ".."));
        for (at, row) in all.iter().enumerate() {
            let fresh = pool.opendir(ino);
            let rest = pool.readdir(fresh, row.cookie, false, usize::MAX).unwrap();
            assert_eq!(rest, all[at + 1..], "after {} by a new handle", row.name);
            let rest = pool.readdir(dir, row.cookie, false, usize::MAX).unwrap();
            assert_eq!(rest, all[at + 1..], "after {} by the same handle", row.name);
        }
    }
}

#[test]
fn cookies_are_good_after_a_remount_and_a_reorder() {
    let mut pool = spread(40);
    let dir = pool.opendir(pool.ino("d"));
    let all = pool.readdir(dir, 0, false, usize::MAX).unwrap();
    pool.remount(|_| ());
    for (at, row) in all.iter().enumerate() {
        let dir = pool.opendir(pool.ino("d"));
        assert_eq!(pool.readdir(dir, row.cookie, false, usize::MAX).unwrap(), all[at + 1..]);
    }
}

#[test]
fn a_deletion_meanwhile_skips_and_repeats_nothing_else() {
    let pool = spread(300);
    let ino = pool.ino("d");
    let mut cookie = 0;
    let mut seen = Vec::new();
    let mut deleted = HashSet::new();
    loop {
        // Like an NFS server: a new handle for each request.
        let dir = pool.opendir(ino);
        let rows = pool.readdir(dir, cookie, false, 5).unwrap();
        let Some(last) = rows.last() else { break };
        cookie = last.cookie;
        for row in rows.iter().filter(|row| !row.name.starts_with('.')) {
            assert!(!deleted.contains(&row.name), "{} was deleted and is listed", row.name);
            seen.push(row.name.clone());
        }
        // Removed: the last one listed, and one that may be still to come.
        let ahead = format!("n{}", seen.len() * 7 % 300);
        for name in [last.name.clone(), ahead] {
            let path = format!("d/{name}");
            if !name.starts_with('.') && (pool.unlink(&path).is_ok() || pool.rmdir(&path).is_ok()) {
                deleted.insert(name);
            }
        }
    }
    let once: BTreeSet<_> = seen.iter().cloned().collect();
    assert_eq!(once.len(), seen.len(), "a name was repeated");
    for n in 0..300 {
        let name = format!("n{n}");
        assert!(once.contains(&name) || deleted.contains(&name), "{name} was skipped");
    }
}

#[test]
fn removing_all_while_listing_leaves_nothing() {
    let pool = spread(500);
    let ino = pool.ino("d");
    let dir = pool.opendir(ino);
    let mut cookie = 0;
    loop {
        let rows = pool.readdir(dir, cookie, false, 20).unwrap();
        let Some(last) = rows.last() else { break };
        cookie = last.cookie;
        for row in rows.iter().filter(|row| !row.name.starts_with('.')) {
            let path = format!("d/{}", row.name);
            if row.dtype == Kind::Dir.dtype() { pool.rmdir(&path) } else { pool.unlink(&path) }.unwrap();
        }
    }
    assert!(pool.names("d").is_empty());
    pool.rmdir("d").unwrap();
}

#[test]
fn five_thousand_entries_on_two_branches() {
    let pool = TestBed::new(2);
    pool.put_dir(0, "d");
    pool.put_dir(1, "d");
    for n in 0..5000 {
        std::fs::write(pool.on(n % 2, &format!("d/entry-{n}")), "").unwrap();
        if n % 10 == 0 {
            std::fs::write(pool.on(1 - n % 2, &format!("d/entry-{n}")), "").unwrap();
        }
    }
    let dir = pool.opendir(pool.ino("d"));
    let rows = pool.rest(dir, 0, 100);
    let names: HashSet<_> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!((rows.len(), names.len()), (5000, 5000));
    let cookies: HashSet<_> = rows.iter().map(|row| row.cookie).collect();
    assert_eq!(cookies.len(), 5000, "a cookie was given twice");
    for (at, row) in rows.iter().enumerate().step_by(499) {
        let fresh = pool.opendir(pool.ino("d"));
        assert_eq!(pool.rest(fresh, row.cookie, 1000), rows[at + 1..]);
    }
}

#[test]
fn numbers_and_types_agree_with_stat() {
    for spread in [spread(40), one_branch(40)] {
        for plus in [false, true] {
            let dir = spread.opendir(spread.ino("d"));
            for row in spread.readdir(dir, 0, plus, usize::MAX).unwrap() {
                let path = match row.name.as_str() {
                    "." => "d".to_owned(),
                    ".." => {
                        assert_eq!(row.ino, 1);
                        continue;
                    }
                    name => format!("d/{name}"),
                };
                let attr = spread.stat(&path);
                assert_eq!((row.ino, row.dtype), (attr.ino.0, attr.stat.kind().dtype()), "{path}");
            }
        }
    }
}

#[test]
fn numbers_agree_before_anything_is_looked_up() {
    let mut pool = spread(40);
    let rows = pool.list("d");
    pool.remount(|_| ());
    for row in rows {
        assert_eq!(pool.ino(&format!("d/{}", row.name)).0, row.ino);
    }
}

fn one_branch(files: usize) -> TestBed {
    let pool = TestBed::new(1);
    for n in 0..files {
        if n % 3 == 0 { pool.put_dir(0, &format!("d/n{n}")) } else { pool.put(0, &format!("d/n{n}"), "") }
    }
    pool
}

#[test]
fn readdirplus_counts_a_lookup_for_each_entry_but_the_dots() {
    let pool = spread(20);
    let ino = pool.ino("d");
    let before = pool.union.held().inodes;
    let dir = pool.opendir(ino);
    let rows = pool.readdir(dir, 0, true, usize::MAX).unwrap();
    assert_eq!(pool.union.held().inodes, before + 20);
    for row in rows.iter().filter(|row| !row.name.starts_with('.')) {
        pool.forget(fsstack_pool::Ino(row.ino));
    }
    assert_eq!(pool.union.held().inodes, before);
}

#[test]
fn an_entry_without_room_is_listed_next_and_not_counted() {
    let pool = spread(20);
    let dir = pool.opendir(pool.ino("d"));
    let before = pool.union.held().inodes;
    let rows = pool.readdir(dir, 0, true, 5).unwrap();
    assert_eq!(pool.union.held().inodes, before + 3, "two of the five are the dots");
    let next = pool.readdir(dir, rows[4].cookie, true, 1).unwrap();
    assert!(rows.iter().all(|row| row.name != next[0].name));
}

#[test]
fn the_root_and_an_empty_directory_list() {
    let pool = TestBed::new(2);
    assert!(pool.names("").is_empty());
    pool.mkdir("empty").unwrap();
    assert!(pool.names("empty").is_empty());
    assert_eq!(pool.names(""), ["empty"]);
    let file = pool.write("file", "");
    assert_eq!(pool.union.opendir(file, fsstack_sys::OFlags::empty()).unwrap_err().errno(), Errno::NOTDIR);
}

#[test]
fn a_bad_cookie_is_refused_and_a_removed_directory_is_empty() {
    let pool = TestBed::new(2);
    let ino = pool.mkdir("d").unwrap();
    let dir = pool.opendir(ino);
    assert_eq!(pool.readdir(dir, 0x7abc << 48 | 77, false, 9).unwrap_err(), Errno::INVAL);
    pool.rmdir("d").unwrap();
    let rows = pool.readdir(dir, 0, false, 9).unwrap();
    assert!(rows.iter().all(|row| row.name.starts_with('.')), "{rows:?}");
}

#[test]
fn cookies_are_good_on_file_systems_of_two_kinds() {
    let homes = match distinct_homes() {
        Err(skip) => return skip.announce(),
        Ok(homes) => homes,
    };
    let pool = TestBed::over(homes, &[ReadWrite, ReadWrite], settings());
    for n in 0..50 {
        pool.put(n % 2, &format!("d/n{n}"), "");
    }
    let ino = pool.ino("d");
    let dir = pool.opendir(ino);
    let all = pool.readdir(dir, 0, false, usize::MAX).unwrap();
    for (at, row) in all.iter().enumerate() {
        let fresh = pool.opendir(ino);
        assert_eq!(pool.readdir(fresh, row.cookie, false, usize::MAX).unwrap(), all[at + 1..]);
    }
}

/// Longer than the clock tick within which two changes may have the same time.
fn a_moment_later() {
    std::thread::sleep(Duration::from_millis(100));
}

/// Whether the kernel may keep the listing, as a handle finds it that is closed again.
fn opened(pool: &TestBed, ino: fsstack_pool::Ino, fresh: Duration) -> KeptListing {
    let handle = pool.opendir(ino);
    let kept = pool.union.kept_listing(handle, fresh);
    pool.union.releasedir(handle);
    kept
}

#[test]
fn a_kept_listing_is_used_until_a_copy_changes() {
    let pool = spread(20);
    let ino = pool.ino("d");
    assert_eq!(opened(&pool, ino, Duration::ZERO), KeptListing::None, "it may change again in the same tick");
    a_moment_later();
    assert_eq!(opened(&pool, ino, Duration::ZERO), KeptListing::Fill);
    assert_eq!(opened(&pool, ino, Duration::ZERO), KeptListing::Valid);
    for branch in [0, 2] {
        // Out of band.
        pool.put(branch, "d/new", "");
        assert_eq!(opened(&pool, ino, Duration::ZERO), KeptListing::None, "branch {branch}");
        a_moment_later();
        assert_eq!(opened(&pool, ino, Duration::ZERO), KeptListing::Fill, "branch {branch}");
        assert_eq!(opened(&pool, ino, Duration::ZERO), KeptListing::Valid, "branch {branch}");
    }
}

#[test]
fn a_kept_listing_is_read_anew_for_attributes_that_are_asked_for_one_by_one() {
    let pool = spread(20);
    let ino = pool.ino("d");
    a_moment_later();
    let hour = Duration::from_secs(3600);
    let opened = |fresh| opened(&pool, ino, fresh);
    assert_eq!(opened(hour), KeptListing::Fill);
    let names = pool.readdir(pool.opendir(ino), 0, true, usize::MAX).unwrap();
    assert_eq!(opened(Duration::ZERO), KeptListing::Valid, "only names are wanted");
    let look_up = |part: usize| {
        for row in names.iter().filter(|row| !row.name.starts_with('.')).step_by(part) {
            pool.ino(&format!("d/{}", row.name));
        }
    };
    look_up(4);
    assert_eq!(opened(Duration::ZERO), KeptListing::Valid, "a few names are wanted");
    look_up(1);
    assert_eq!(opened(hour), KeptListing::Valid, "the kernel has the attributes still");
    for _ in 0..8 {
        assert_eq!(opened(Duration::ZERO), KeptListing::Fill);
    }
    assert_eq!(opened(Duration::ZERO), KeptListing::Valid, "only names may be wanted by now");
}

#[test]
fn entries_that_the_kernel_just_received_have_no_attributes() {
    let pool = spread(60);
    let dir = pool.opendir(pool.ino("d"));
    let attributes_after = |age: Duration| {
        let mut with = Attributed(Vec::new());
        pool.union.readdir(dir, 0, Some(age), &mut with).unwrap();
        with.0.iter().for_each(|entry| pool.hold(entry));
        with.0.len()
    };
    let hour = Duration::from_secs(3600);
    assert_eq!(attributes_after(hour), 60);
    // Two names may share a slot of the location cache, so that one is forgotten: once in about seventy pools.
    assert!(attributes_after(hour) < 6);
    assert_eq!(attributes_after(Duration::ZERO), 60);
}

/// Collects the entries that have attributes.
struct Attributed(Vec<Entry>);

impl Sink for Attributed {
    fn fits(&self, _: usize) -> bool {
        true
    }

    fn put(&mut self, _: &Listed<'_>, entry: Option<&Entry>) {
        self.0.extend(entry.copied());
    }
}

/// A file on a full branch, and a second branch with space, with other files in the same directory.
fn full() -> Pool {
    let branches = lab::pool().tmpfs_branch("a", MiB(1)).tmpfs_branch("b", MiB(4)).unmounted();
    for name in ["a", "b"] {
        let home = branches.branch(name).path();
        std::fs::create_dir(home.join("d")).unwrap();
        (0..20).for_each(|n| std::fs::write(home.join(format!("d/{name}{n}")), "").unwrap());
    }
    let ballast = std::fs::File::create(branches.branch("a").path().join("ballast")).unwrap();
    fallocate(ballast, FallocateFlags::empty(), 0, 700 << 10).unwrap();
    std::fs::write(branches.branch("a").path().join("d/film"), [b'm'; 100 << 10]).unwrap();
    (20..30).for_each(|n| std::fs::write(branches.branch("a").path().join(format!("d/a{n}")), "").unwrap());
    branches
}

/// Lists `d`, and moves the film after `before` rows.
fn listed_around_a_move(branches: &Pool, order: [&str; 2], plus: bool, before: usize) {
    let paths = order.map(|name| branches.branch(name).path().to_owned());
    let pool = TestBed::at(&paths, &[ReadWrite; 2], Settings { relocate: true, ..settings() });
    let film = pool.open(pool.ino("d/film"), OFlags::RDWR).unwrap();
    let dir = pool.opendir(pool.ino("d"));
    let mut rows = if before > 0 { pool.readdir(dir, 0, plus, before).unwrap() } else { Vec::new() };
    let at = |rows: &[Row]| rows.last().map_or(0, |row| row.cookie);
    let what = format!("{order:?}, plus: {plus}, {before} before");
    let more = [b'n'; 400 << 10];
    assert_eq!(pool.union.write(film.handle, 100 << 10, &more, WriteTerms::default()).unwrap(), more.len());
    assert!(branches.branch("b").path().join("d/film").exists(), "{what}");
    while let more = pool.readdir(dir, at(&rows), plus, 7).unwrap()
        && !more.is_empty()
    {
        rows.extend(more);
    }
    let names: BTreeSet<_> = rows.iter().map(|row| &row.name).collect();
    assert_eq!((rows.len(), names.len()), (53, 53), "{what}: {:?}", rows.iter().map(|row| &row.name));
    let numbers = |name: &str| rows.iter().find(|row| row.name == name).map(|row| row.ino);
    assert_eq!(numbers("film"), Some(film.ino.0), "{what}");
    // The end stays the end. For another handle the film may be in a copy that is still to come.
    assert_eq!(pool.readdir(dir, at(&rows), plus, 7), Ok(Vec::new()), "{what}");
    let rest = pool.readdir(pool.opendir(pool.ino("d")), at(&rows), plus, 7).unwrap();
    assert!(rest.iter().all(|row| row.name == "film"), "{what}");
    // Read from the beginning, it is an ordinary listing.
    assert_eq!(pool.rest(dir, 0, 7).len(), 51, "{what}");
}

#[test]
fn a_file_that_moves_to_another_branch_meanwhile_is_listed_once() {
    needs!(mounting());
    let branches = full();
    let film = |name: &str| branches.branch(name).path().join("d/film");
    for (order, plus) in [["a", "b"], ["b", "a"]].into_iter().flat_map(|o| [(o, false), (o, true)]) {
        for before in 0..=53 {
            listed_around_a_move(&branches, order, plus, before);
            std::fs::remove_file(film("b")).unwrap();
            std::fs::write(film("a"), [b'm'; 100 << 10]).unwrap();
        }
    }
}

/// The same, where the target branch had no copy of the directory.
#[test]
fn a_file_that_moves_into_a_new_copy_of_its_directory_is_listed_once() {
    needs!(mounting());
    let branches = full();
    let (a, b) = (branches.branch("a").path(), branches.branch("b").path());
    (0..20).for_each(|n| std::fs::write(a.join(format!("d/b{n}")), "").unwrap());
    for (order, before) in [["a", "b"], ["b", "a"]].into_iter().flat_map(|o| (0..=53).map(move |n| (o, n))) {
        std::fs::remove_dir_all(b.join("d")).unwrap();
        std::fs::write(a.join("d/film"), [b'm'; 100 << 10]).unwrap();
        listed_around_a_move(&branches, order, false, before);
    }
}

/// A program stores a file aside and renames it, which puts the name on another branch.
#[test]
fn a_name_that_gets_a_file_of_another_branch_meanwhile_is_listed_once() {
    for (old, before) in [0, 1].into_iter().flat_map(|old| (0..=23).map(move |before| (old, before))) {
        let pool = TestBed::new(2);
        for (at, n) in [0, 1].into_iter().flat_map(|at| (0..10).map(move |n| (at, n))) {
            pool.put(at, &format!("d/{at}-{n}"), "");
        }
        pool.put(old, "d/film", "old");
        pool.put(1 - old, "aside", "new");
        let dir = pool.opendir(pool.ino("d"));
        let mut rows = if before > 0 { pool.readdir(dir, 0, false, before).unwrap() } else { Vec::new() };
        pool.rename("aside", "d/film").unwrap();
        assert_eq!(pool.holders("d/film"), [1 - old]);
        let at = rows.last().map_or(0, |row| row.cookie);
        rows.extend(pool.rest(dir, at, 7));
        rows.retain(|row| row.name != "." && row.name != "..");
        let films = rows.iter().filter(|row| row.name == "film").count();
        assert_eq!((films, rows.len()), (1, 21), "on {old}, after {before} rows");
    }
}

/// Two names of one directory, each on a branch of its own.
#[test]
fn names_that_are_exchanged_between_branches_meanwhile_are_listed_once() {
    for (old, before) in [0, 1].into_iter().flat_map(|old| (0..=24).map(move |before| (old, before))) {
        let pool = TestBed::new(2);
        for (at, n) in [0, 1].into_iter().flat_map(|at| (0..10).map(move |n| (at, n))) {
            pool.put(at, &format!("d/{at}-{n}"), "");
        }
        pool.put(old, "d/one", "one");
        pool.put(1 - old, "d/two", "two");
        let dir = pool.opendir(pool.ino("d"));
        let mut rows = if before > 0 { pool.readdir(dir, 0, false, before).unwrap() } else { Vec::new() };
        pool.rename_with("d/one", "d/two", RenameFlags::EXCHANGE).unwrap();
        assert_eq!(pool.holders("d/one"), [1 - old]);
        let at = rows.last().map_or(0, |row| row.cookie);
        rows.extend(pool.rest(dir, at, 7));
        rows.retain(|row| row.name != "." && row.name != "..");
        let times = |name: &str| rows.iter().filter(|row| row.name == name).count();
        assert_eq!((times("one"), times("two"), rows.len()), (1, 1, 22), "on {old}, after {before} rows");
    }
}
