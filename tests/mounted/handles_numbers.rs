//! Numbers in handles: lookups and listings agree, a moved file keeps its number under all its names, and an object
//! that reuses the number on the old branch has another.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use fsstack_lab::{self as lab, Pool, needs};
use fsstack_sys::{Errno, OFlags};

use crate::handles::{HeldHandle, check, check_stale, forget, hold, moved, open};
use crate::script::sh;

/// Name of an object that `make` makes on `x` with the moved file's old inode number there.
pub(crate) fn in_its_place(pool: &Pool, held: &HeldHandle, make: impl Fn(&Path)) -> Option<String> {
    pool.branch("x").drop_ballast();
    with_its_number(pool, held, "n", make)
}

/// Like [`in_its_place`], in a given directory; names begin with `begin`.
pub(crate) fn with_its_number(
    pool: &Pool,
    held: &HeldHandle,
    begin: &str,
    make: impl Fn(&Path),
) -> Option<String> {
    let number = held.ino & ((1 << 48) - 1);
    let mut names = (0..2000).map(|n| format!("{begin}{n}"));
    let found = names.find(|name| {
        // XFS frees inodes some time after their last name is removed.
        std::thread::sleep(Duration::from_millis(1));
        let path = pool.branch("x").path().join(name);
        make(&path);
        fs::symlink_metadata(path).unwrap().ino() == number
    });
    if found.is_none() {
        lab::Skip::because("XFS did not use the number again").announce();
    }
    found
}

#[test]
fn a_new_file_never_has_the_number_of_one_that_was_moved_away() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, held) = moved();
    let Some(again) = in_its_place(&pool, &held, |path| fs::write(path, "new").unwrap()) else { return };
    let new = hold(&pool, &again);
    assert_ne!(new.ino, held.ino);
    for _ in 0..2 {
        check(&pool, &held);
        check(&pool, &new);
        forget();
        check(&pool, &new);
        check(&pool, &held);
        pool.remount();
    }
    is_found_without_the_index(&mut pool, &new);
    is_found_at_last(&pool, &held);
}

/// The number of a file in the place of a moved one leads to it. The index has it a moment later, but before the moved one is gone.
#[test]
fn a_new_file_in_the_place_of_a_moved_one_keeps_its_number_over_kills() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, held) = moved();
    let Some(again) = in_its_place(&pool, &held, |path| fs::write(path, "new").unwrap()) else { return };
    let new = hold(&pool, &again);
    assert_ne!(new.ino, held.ino);
    for _ in 0..2 {
        pool.kill_daemon();
        pool.remount();
        check(&pool, &new);
        assert_eq!(fs::metadata(pool.at(&again)).unwrap().ino(), new.ino);
        check(&pool, &held);
    }
    // The moved one goes in the same moment.
    fs::remove_file(pool.at("d/film")).unwrap();
    pool.kill_daemon();
    pool.remount();
    check(&pool, &new);
    assert_eq!(fs::metadata(pool.at(&again)).unwrap().ino(), new.ino);
    check_stale(&pool, &held);
}

/// Like that, and the next daemon is not asked for the new one before the moved one goes.
#[test]
fn a_number_that_was_told_before_a_kill_stays_when_the_moved_file_goes_first() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, held) = moved();
    let Some(again) = in_its_place(&pool, &held, |path| fs::write(path, "new").unwrap()) else { return };
    let new = hold(&pool, &again);
    pool.kill_daemon();
    pool.remount();
    fs::remove_file(pool.at("d/film")).unwrap();
    // The daemon does not know the moved one any more either.
    forget();
    for _ in 0..2 {
        check(&pool, &new);
        assert_eq!(fs::metadata(pool.at(&again)).unwrap().ino(), new.ino);
        check_stale(&pool, &held);
        pool.kill_daemon();
        pool.remount();
    }
}

#[test]
fn a_new_directory_never_has_the_number_of_a_file_that_was_moved_away() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, held) = moved();
    let Some(again) = in_its_place(&pool, &held, |path| fs::create_dir(path).unwrap()) else { return };
    let new = hold(&pool, &again);
    assert_ne!(new.ino, held.ino);
    for _ in 0..2 {
        forget();
        check(&pool, &new);
        forget();
        check(&pool, &held);
        pool.remount();
    }
    // It keeps its other number when the file is gone.
    fs::remove_file(pool.at("d/film")).unwrap();
    for _ in 0..2 {
        forget();
        check(&pool, &new);
        assert_eq!(fs::metadata(pool.at(&again)).unwrap().ino(), new.ino);
        check_stale(&pool, &held);
        pool.remount();
    }
    is_found_without_the_index(&mut pool, &new);
}

/// Paths and numbers of the whole tree by `d_ino`, before any lookup.
fn listed(pool: &Pool) -> Vec<(String, u64)> {
    let listed = sh(pool.path(), "ls -iURN1 .");
    let mut dir = String::new();
    let mut all = Vec::new();
    for line in listed.lines().filter(|line| !line.is_empty()) {
        match line.trim_start().split_once(' ') {
            _ if line.ends_with(':') => {
                dir = line.trim_end_matches(':').trim_start_matches('.').trim_start_matches('/').to_owned();
            }
            Some((ino, name)) if dir.is_empty() => all.push((name.to_owned(), ino.parse().unwrap())),
            Some((ino, name)) => all.push((format!("{dir}/{name}"), ino.parse().unwrap())),
            None => panic!("{line}"),
        }
    }
    all.sort_unstable();
    all
}

/// Like [`listed`], by `st_ino`.
fn looked_up(pool: &Pool) -> Vec<(String, u64)> {
    let paths = sh(pool.path(), "find . -mindepth 1 -printf '%P\\n'");
    let ino = |path: &str| (path.to_owned(), fs::symlink_metadata(pool.at(path)).unwrap().ino());
    let mut all: Vec<_> = paths.lines().map(ino).collect();
    all.sort_unstable();
    all
}

#[test]
fn listings_tell_the_numbers_that_names_and_handles_have() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, film) = moved();
    let [x, y] = ["x", "y"].map(|branch| pool.branch(branch).path().to_owned());
    let Some(again) = in_its_place(&pool, &film, |path| fs::write(path, "new").unwrap()) else { return };
    sh(&x, "find . -name 'n*' ! -name NAME -delete".replace("NAME", &again).as_str());
    // A directory with copies on both branches, one of which is renamed out of band, is two. Also hard links and a
    // symlink.
    sh(&x, "mkdir parted both; touch parted/one both/one; ln both/one both/too; ln -s one both/link");
    sh(&y, "touch two three");
    sh(pool.path(), "mv two parted/two; mv three both/three; stat parted/* both/*");
    sh(&y, "mv parted 'parted too'");
    forget();
    let paths = [
        "d/film",
        "d",
        &again,
        "parted",
        "parted/one",
        "parted too",
        "parted too/two",
        "both",
        "both/too",
        "both/link",
    ];
    let mut held: Vec<_> = paths.iter().map(|path| hold(&pool, path)).collect();
    held[0].content = None;
    assert_eq!(held[0].ino, film.ino);
    assert!(held[2].ino != film.ino && held[3].ino != held[5].ino, "{held:?}");
    for _ in 0..2 {
        forget();
        let (listed, looked_up) = (listed(&pool), looked_up(&pool));
        assert_eq!(listed, looked_up);
        for (path, held) in paths.iter().zip(&held) {
            assert!(listed.contains(&((*path).to_owned(), held.ino)), "{path} {held:?} {listed:?}");
            forget();
            check(&pool, held);
        }
        pool.remount();
    }
}

#[test]
fn a_moved_file_has_its_number_under_each_name_that_it_is_given() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, held) = moved();
    fs::hard_link(pool.at("d/film"), pool.at("link")).unwrap();
    // Out of band, too.
    let y = pool.branch("y").path().to_owned();
    fs::hard_link(y.join("d/film"), y.join("past")).unwrap();
    let names = ["d/film", "link", "past"];
    for _ in 0..2 {
        for name in names {
            forget();
            let mut by_name = hold(&pool, name);
            by_name.content = None;
            assert_eq!(by_name.ino, held.ino, "{name}");
            assert!(by_name.is_the_same_as(&held), "{name}: {by_name:?} {held:?}");
            forget();
            check(&pool, &by_name);
        }
        pool.kill_daemon();
        pool.remount();
    }
    // As long as one of them exists; and a further name does not move it back.
    for name in names {
        check(&pool, &held);
        fs::remove_file(pool.at(name)).unwrap();
        forget();
    }
    check_stale(&pool, &held);
}

/// A new file was just given another number than its branch's, and the daemon is killed.
#[test]
fn another_number_outlives_a_crash_at_once() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, held) = moved();
    let Some(again) = in_its_place(&pool, &held, |path| fs::write(path, "new").unwrap()) else { return };
    let new = hold(&pool, &again);
    pool.kill_daemon();
    pool.remount();
    check(&pool, &new);
    check(&pool, &held);
}

/// The index is lost and rebuilt: until then the object is unreachable, never stale.
#[track_caller]
fn is_found_without_the_index(pool: &mut Pool, held: &HeldHandle) {
    pool.unmount();
    sh(pool.state_dir(), "rm */index.redb");
    pool.remount();
    forget();
    is_found_at_last(pool, held);
}

#[track_caller]
fn is_found_at_last(pool: &Pool, held: &HeldHandle) {
    let began = Instant::now();
    while let Err(error) = open(pool, held, OFlags::PATH) {
        assert_eq!(error, Errno::NOMEM);
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    check(pool, held);
}
