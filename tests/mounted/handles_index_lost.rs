//! An incomplete index while branches are searched, added and removed: no handle becomes stale and no number changes,
//! unless the object is known to be gone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use fsstack_lab::{self as lab, MiB, Pool, needs};
use fsstack_sys::{Errno, OFlags};

use crate::command::output_of;
use crate::handles::{HeldHandle, check, check_stale, forget, grow, hold, moved, open};
use crate::handles_elsewhere::index;
use crate::handles_index::comes_back;
use crate::handles_numbers::{in_its_place, with_its_number};
use crate::script::sh;

/// `d/film` on `x`, which is nearly full, and on `y` 120 000 directories that are scanned before `d`; not mounted yet.
fn long_to_look_through() -> Pool {
    let pool = lab::pool().xfs_branch("x", MiB(310)).xfs_branch("y", MiB(400)).option("create=ff");
    let pool = pool.option("write-path=stacked").option("nfs-export").unmounted();
    sh(pool.branch("y").path(), "mkdir d; mkdir -p m/{1..400}/{1..300}");
    sh(pool.branch("x").path(), "mkdir d; touch d/film d/first");
    pool.branch("x").fill_until_free(MiB(12));
    pool
}

/// Such a pool, mounted, and the file that was moved.
fn moved_far() -> (Pool, HeldHandle) {
    let mut pool = long_to_look_through();
    pool.remount();
    let film = held(&pool, "d/film");
    grow(&pool, "d/film");
    (pool, film)
}

/// Its content does not matter.
fn held(pool: &Pool, name: &str) -> HeldHandle {
    let mut held = hold(pool, name);
    held.content = None;
    held
}

fn is_complete(pool: &Pool) -> bool {
    index(pool).starts_with("complete")
}

/// Until all branches are scanned, the object is found or unreachable.
#[track_caller]
fn never_stale(pool: &Pool, held: &HeldHandle) {
    let began = Instant::now();
    loop {
        let complete = is_complete(pool);
        let error = open(pool, held, OFlags::PATH).err();
        assert!(matches!(error, None | Some(Errno::NOMEM)), "{error:?}");
        if complete {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(100));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn lose_the_index(pool: &mut Pool) {
    pool.unmount();
    sh(pool.state_dir(), "rm */index.redb");
}

/// A new file may get the inode number of a file that is not found yet.
#[test]
fn a_file_made_before_another_is_found_has_another_number_for_good() {
    needs!(mounting(), loops(), drop_caches());
    type Make = fn(&Path) -> std::io::Result<()>;
    let makes: [Make; 3] = [
        |path| fs::write(path, "new"),
        |path| fs::create_dir(path),
        |path| std::os::unix::fs::symlink("to", path),
    ];
    for make in makes {
        let (mut pool, film) = moved_far();
        lose_the_index(&mut pool);
        // All numbers that XFS would prefer are taken.
        pool.branch("x").drop_ballast();
        let x = pool.branch("x").path().to_owned();
        let before = with_its_number(&pool, &film, "before", |path| make(path).unwrap());
        let Some(before) = before else { return };
        sh(&x, &format!("rm -d {before}"));
        std::thread::sleep(Duration::from_millis(100));
        pool.remount();
        let in_pool = |path: &Path| make(&pool.at(path.file_name().unwrap().to_str().unwrap())).unwrap();
        let Some(again) = with_its_number(&pool, &film, "n", in_pool) else { return };
        let new = hold(&pool, &again);
        assert!(!is_complete(&pool), "the look is over before the test is under way");
        never_stale(&pool, &film);
        for _ in 0..2 {
            for _ in 0..2 {
                check(&pool, &film);
                check(&pool, &new);
                assert_eq!(fs::symlink_metadata(pool.at(&again)).unwrap().ino(), new.ino);
                forget();
            }
            pool.remount();
        }
    }
}

/// Two servers in turn, each with its own index.
#[test]
fn marks_that_were_put_by_way_of_another_index_are_found() {
    needs!(mounting(), loops(), drop_caches());
    let mut pool = long_to_look_through();
    let ours = ["create=ff", "write-path=stacked", "nfs-export"];
    pool.remount_with(&ours);
    let film = held(&pool, "d/film");
    never_stale(&pool, &film);
    let theirs = pool.state_dir().with_file_name("state of another").display().to_string();
    let theirs = format!("state-dir={theirs}");
    for ending in [Pool::unmount, |pool: &mut Pool| pool.kill_daemon()] {
        pool.remount_with(&[&ours[..], &[&theirs]].concat());
        let name = if pool.holders("d/film") == ["x"] { "d/film" } else { "d/first" };
        // Nothing is written, and the scan continues.
        sh(pool.path(), &format!("fallocate -l 24M {name}"));
        assert_eq!(pool.holders(name), ["y"]);
        let first = held(&pool, "d/first");
        assert!(!is_complete(&pool), "the look is over before the test is under way");
        ending(&mut pool);
        pool.remount_with(&ours);
        for held in [&film, &first] {
            comes_back(&pool, held);
            forget();
            assert_eq!(open(&pool, held, OFlags::PATH).err(), None);
        }
        never_stale(&pool, &film);
        pool.remount();
        check(&pool, &film);
        check(&pool, &first);
    }
}

/// `d/film` and `d/reel` on the first branch, which is nearly full.
fn two_on_x() -> (Pool, HeldHandle, HeldHandle) {
    let pool = lab::pool().xfs_branch("x", MiB(310)).xfs_branch("y", MiB(400)).option("create=ff");
    let pool = pool.option("write-path=stacked").option("nfs-export").mount();
    sh(pool.path(), "mkdir d; touch d/film d/reel");
    let [film, reel] = ["d/film", "d/reel"].map(|name| held(&pool, name));
    pool.branch("x").fill_until_free(MiB(12));
    assert_eq!(pool.holders("d/reel"), ["x"]);
    (pool, film, reel)
}

/// From a backup, or a snapshot of its disk.
#[test]
fn an_index_from_before_a_move_is_found_out() {
    needs!(mounting(), loops(), drop_caches());
    type End = fn(&mut Pool);
    let (closed, killed): (End, End) = (Pool::unmount, |pool| {
        pool.kill_daemon();
        pool.unmount();
    });
    // The copy was taken while the index was closed; then the daemon ended in order, or was killed.
    for (ended, end) in [("in order", closed), ("killed", killed)] {
        let (mut pool, film, reel) = two_on_x();
        grow(&pool, "d/film");
        pool.unmount();
        sh(pool.state_dir(), "cd */; cp index.redb old");
        pool.remount();
        grow(&pool, "d/reel");
        end(&mut pool);
        sh(pool.state_dir(), "cd */; cp old index.redb");
        pool.remount();
        let now = fs::metadata(pool.at("d/reel")).unwrap().ino();
        assert_eq!(now, reel.ino, "{ended}");
        for _ in 0..2 {
            for held in [&reel, &film] {
                forget();
                comes_back(&pool, held);
            }
            pool.remount();
        }
    }
}

/// The index is lost, or fails, and so does the branch that the file was moved to.
#[test]
fn a_file_on_a_branch_that_is_away_is_not_stale_though_the_index_was_lost() {
    needs!(mounting(), loops(), drop_caches());
    for lost in ["before", "meanwhile"] {
        let (mut pool, film) = moved();
        pool.unmount();
        if lost == "before" {
            sh(pool.state_dir(), "rm */index.redb");
        }
        pool.remount_of(&["x"]);
        if lost == "meanwhile" {
            assert_eq!(open(&pool, &film, OFlags::PATH).err(), Some(Errno::NOMEM));
            sh(pool.state_dir(), "truncate -s 0 */index.redb");
        }
        for _ in 0..3 {
            never_stale(&pool, &film);
            assert_eq!(open(&pool, &film, OFlags::PATH).err(), Some(Errno::NOMEM), "{lost}");
            forget();
        }
        // The pool knows that a branch is missing, and new numbers avoid those of that branch.
        let at = pool.path().display().to_string();
        assert!(output_of(&["nfs", "check", &at]).contains("is not in the pool"), "{lost}");
        let make =
            |path: &Path| fs::write(pool.at(path.file_name().unwrap().to_str().unwrap()), "new").unwrap();
        let Some(again) = in_its_place(&pool, &film, make) else { return };
        let new = hold(&pool, &again);
        for _ in 0..2 {
            assert_eq!(open(&pool, &film, OFlags::PATH).err(), Some(Errno::NOMEM), "{lost}");
            check(&pool, &new);
            forget();
            check(&pool, &new);
            pool.remount();
        }
        pool.kill_daemon();
        pool.remount_of(&["x", "y"]);
        for _ in 0..2 {
            comes_back(&pool, &film);
            check(&pool, &new);
            forget();
            check(&pool, &film);
            check(&pool, &new);
            pool.remount();
        }
    }
}

/// Declaring a branch gone makes the handles of missing objects stale.
#[test]
fn a_branch_that_only_the_others_remember_can_be_given_up() {
    needs!(mounting(), loops(), drop_caches());
    let (mut pool, film) = moved();
    lose_the_index(&mut pool);
    pool.remount_of(&["x"]);
    let at = pool.path().display().to_string();
    assert_eq!(open(&pool, &film, OFlags::PATH).err(), Some(Errno::NOMEM));
    let checked = output_of(&["nfs", "check", &at]);
    let away = checked.lines().find(|line| line.contains("warn  away: branch")).unwrap();
    let id = away.split_whitespace().last().unwrap().to_owned();
    output_of(&["branch", "forget", &at, &id]);
    check_stale(&pool, &film);
    // Also after another loss of the index.
    lose_the_index(&mut pool);
    pool.remount();
    check_stale(&pool, &film);
    pool.remount_of(&["x", "y"]);
    comes_back(&pool, &film);
}
