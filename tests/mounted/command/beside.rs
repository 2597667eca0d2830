//! Programs rename and list directories while branches are drained one after the other.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use fsstack_branch::entries::is_dot;
use fsstack_lab::{self as lab, MiB, needs, until};
use fsstack_sys::dirents::Dirents;

use super::*;

const FILES: usize = 30;
const DIRS: usize = 6;
const TOPS: usize = 3;

/// Drains each branch and takes it back, `rounds` times, while `work` runs on `threads`, until the flag is set. Some of the drains
/// come to their end.
fn beside_drains<T: Send>(
    pool: &Pool,
    names: &[&str],
    (rounds, threads): (u32, usize),
    work: impl Fn(usize, &AtomicBool) -> T + Sync,
) -> Vec<T> {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (work, ended) = (&work, &ended);
        let workers: Vec<_> = (0..threads).map(|one| scope.spawn(move || work(one, ended))).collect();
        let mut drained = 0;
        for name in (0..rounds).flat_map(|_| names) {
            // Names that were just changed may stay.
            drained += u32::from(run(&["branch", "drain", &at(pool), &branch(pool, name)]).code == 0);
            output_of(&["branch", "mode", &at(pool), &branch(pool, name), "RW"]);
        }
        ended.store(true, SeqCst);
        let results = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        assert!(drained > 0, "no branch was drained");
        results
    })
}

/// Renames directories of its own, each of which has [`FILES`] files. Returns the first difference, if there is one.
fn renames(pool: &Pool, one: usize, ended: &AtomicBool) -> Option<String> {
    let top = pool.at(format!("top{one}"));
    let mut dirs: Vec<_> = (0..DIRS).map(|n| top.join(format!("d{n}"))).collect();
    let numbers: Vec<u64> = dirs.iter().map(|dir| fs::metadata(dir).unwrap().ino()).collect();
    let mut step = 0;
    while !ended.load(SeqCst) {
        step += 1;
        let n = step % DIRS;
        if step % 3 == 0 {
            let new = top.join(format!("e{step}"));
            if let Err(error) = fs::rename(&dirs[n], &new) {
                return Some(format!("step {step}: rename: {error}"));
            }
            dirs[n] = new;
        }
        let listed: HashSet<_> = fs::read_dir(&dirs[n]).unwrap().map(|e| e.unwrap().file_name()).collect();
        if listed.len() != FILES || !dirs[n].join(format!("f{}", step % FILES)).exists() {
            return Some(format!("step {step}: {} of its names are there", listed.len()));
        }
        if fs::metadata(&dirs[n]).unwrap().ino() != numbers[n] {
            return Some(format!("step {step}: it has another number"));
        }
    }
    let names = fs::read_dir(&top).unwrap().count();
    (names != DIRS).then(|| format!("{names} directories"))
}

#[test]
fn directories_that_are_renamed_beside_drains_keep_their_files_and_numbers() {
    needs!(mounting(), loops());
    let pool = ["a", "b", "c"].iter().fold(lab::pool(), |pool, name| pool.xfs_branch(name, MiB(300)));
    let pool = pool.option("create=rand,minfreespace=8M").mount();
    for top in 0..TOPS {
        for n in 0..DIRS {
            pool.mkdir(format!("top{top}/d{n}"));
            (0..FILES).for_each(|f| pool.write(format!("top{top}/d{n}/f{f}"), b"content"));
        }
    }
    let wrong = beside_drains(&pool, &["a", "b", "c"], (3, TOPS), |one, ended| renames(&pool, one, ended));
    assert!(wrong.iter().all(Option::is_none), "{wrong:?}");
    let found = run(&["check", &at(&pool)]);
    assert_eq!(found.code, 0, "{}{}", found.stdout, found.stderr);
}

/// More than one answer holds.
const NAMES: usize = 1500;

/// Lists a directory of [`NAMES`] files by `list`, on `readers` threads, while its files move from branch to branch.
fn every_listing_has_each_name_once(readers: usize, list: impl Fn(&Path) -> Vec<CString> + Sync) {
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = pool.option("create=mfs,minfreespace=4M").mount();
    pool.mkdir("d");
    fs::create_dir_all(pool.branch("b").path().join("d")).unwrap();
    (0..NAMES).for_each(|n| pool.write(format!("d/name{n:05}"), b""));
    let wrong = beside_drains(&pool, &["a", "b"], (1, readers), |_, ended| {
        while !ended.load(SeqCst) {
            let listed = list(&pool.at("d"));
            let distinct = listed.iter().collect::<HashSet<_>>().len();
            if (listed.len(), distinct) != (NAMES, NAMES) {
                return Some((listed.len(), distinct));
            }
        }
        None
    });
    assert!(wrong.iter().all(Option::is_none), "entries and names: {wrong:?}");
}

/// The names in `dir`, read through a buffer of that many bytes.
fn listed(dir: &Path, buffer: usize) -> Vec<CString> {
    let mut entries = Dirents::new(fs::File::open(dir).unwrap().into(), buffer);
    let mut names = Vec::new();
    while let Some(entry) = entries.next().unwrap() {
        names.push(entry.name.to_owned());
    }
    names.retain(|name| !is_dot(name));
    names
}

#[test]
fn listings_beside_a_drain_have_each_name_once() {
    needs!(mounting(), loops());
    every_listing_has_each_name_once(3, |dir| listed(dir, 32 << 10));
}

/// The kernel asks for a page at least, so that it gets entries for which the program has no room, and asks for them again.
#[test]
fn listings_through_small_buffers_beside_a_drain_have_each_name_once() {
    needs!(mounting(), loops());
    every_listing_has_each_name_once(2, |dir| listed(dir, 600));
}

const SUBDIRS: usize = 150;

/// A directory is on each branch that has something in it, and a drain removes its copies one after the other.
#[test]
fn listings_beside_drains_have_each_directory_once() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).xfs_branch("c", MiB(300));
    let pool = pool.option("create=rand,minfreespace=4M").mount();
    for n in 0..SUBDIRS {
        pool.mkdir(format!("d/name{n:05}"));
        (0..2).for_each(|file| pool.write(format!("d/name{n:05}/file{file}"), b""));
    }
    let wrong = beside_drains(&pool, &["a", "b", "c"], (3, 2), |_, ended| {
        while !ended.load(SeqCst) {
            let names = listed(&pool.at("d"), 32 << 10);
            let distinct = names.iter().collect::<HashSet<_>>().len();
            if (names.len(), distinct) != (SUBDIRS, SUBDIRS) {
                return Some((names.len(), distinct));
            }
        }
        None
    });
    assert!(wrong.iter().all(Option::is_none), "entries and names: {wrong:?}");
}

/// A program goes back to a place in its listing after files that it has read since have moved.
#[test]
fn a_listing_that_goes_back_leaves_out_no_moved_name() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = pool.option("create=ff,minfreespace=4M").mount();
    pool.mkdir("d");
    (0..NAMES).for_each(|n| pool.write(format!("d/name{n:05}"), b""));
    let mut entries = Dirents::new(fs::File::open(pool.at("d")).unwrap().into(), 600);
    let mut names = HashSet::new();
    let mut read = |entries: &mut Dirents, most: usize| {
        let mut last = 0;
        for _ in 0..most {
            let Some(entry) = entries.next().unwrap() else { break };
            names.insert(entry.name.to_owned());
            last = entry.off;
        }
        (last, names.len())
    };
    let (place, before) = read(&mut entries, NAMES / 2);
    read(&mut entries, NAMES / 4);
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    entries.seek(place).unwrap();
    let (_, all) = read(&mut entries, usize::MAX);
    assert!(before < NAMES && all == NAMES + 2, "{all} of {} names", NAMES + 2);
}

/// All names move while a program is in the middle of its listing, and another has not begun to read.
#[test]
fn listings_of_a_large_directory_that_moves_meanwhile_have_each_name_once() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = pool.option("create=ff,minfreespace=4M").mount();
    pool.mkdir("d");
    let names = 11 * 1024;
    (0..names).for_each(|n| pool.write(format!("d/name{n:05}"), b""));
    let [mut begun, mut idle] =
        [(); 2].map(|()| Dirents::new(fs::File::open(pool.at("d")).unwrap().into(), 4096));
    let read = |entries: &mut Dirents, most: usize| -> Vec<CString> {
        let next = || entries.next().unwrap().map(|entry| entry.name.to_owned());
        std::iter::from_fn(next).take(most).collect()
    };
    let mut listed = read(&mut begun, names / 2);
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    listed.extend(read(&mut begun, usize::MAX));
    drop(begun);
    let kept = || json("status", &["status", &at(&pool)])["pools"][0]["tables"]["listing_entries"].clone();
    until("a listing that is closed keeps nothing, nor does one that has not begun", || kept() == 0);
    for listed in [listed, read(&mut idle, usize::MAX)] {
        let distinct = listed.iter().collect::<HashSet<_>>().len();
        assert_eq!((listed.len(), distinct), (names + 2, names + 2));
    }
}

/// Movers set back the times of the directories that they work in.
#[test]
fn a_directory_has_the_times_that_programs_give_it_beside_drains() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = pool.option("create=ff,minfreespace=4M,attr-timeout=0,entry-timeout=0").mount();
    pool.mkdir("d");
    fs::create_dir_all(pool.branch("b").path().join("d")).unwrap();
    (0..NAMES).for_each(|n| pool.write(format!("d/name{n:05}"), b""));
    let wrong = beside_drains(&pool, &["a", "b"], (2, 1), |_, ended| {
        let dir = fs::File::open(pool.at("d")).unwrap();
        let modified = || dir.metadata().unwrap().modified().unwrap();
        let made = pool.at("d/made");
        let mut step = 0;
        while !ended.load(SeqCst) {
            step += 1;
            let given = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + step);
            dir.set_times(fs::FileTimes::new().set_modified(given)).unwrap();
            let set = modified();
            let born = fs::File::create(&made).unwrap().metadata().unwrap().modified().unwrap();
            let changed = modified();
            fs::remove_file(&made).unwrap();
            if set != given || changed < born {
                return Some((step, set, given, changed, born));
            }
        }
        None
    });
    assert!(
        wrong.iter().all(Option::is_none),
        "times set and given, after a create and of the file: {wrong:?}"
    );
}

/// Each save makes a file on another branch and renames it over the old one, between a listing of the drained branch and the
/// lookup of a listed name.
#[test]
fn files_that_are_saved_anew_beside_a_drain_are_not_taken_for_hidden() {
    needs!(mounting(), loops());
    const SAVED: usize = 400;
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = pool.option("create=rand,minfreespace=4M").mount();
    let save = |n: usize| {
        pool.write(format!("new{n}"), b"content");
        fs::rename(pool.at(format!("new{n}")), pool.at(format!("f{n}"))).unwrap();
    };
    (0..SAVED).for_each(save);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for one in 0..2 {
            let (ended, save) = (&ended, &save);
            scope.spawn(move || {
                while !ended.load(SeqCst) {
                    (one..SAVED).step_by(2).rev().take_while(|_| !ended.load(SeqCst)).for_each(save);
                }
            });
        }
        let drained: Vec<_> = (0..4)
            .flat_map(|_| ["a", "b"])
            .map(|name| {
                let drained = run(&["branch", "drain", &at(&pool), &branch(&pool, name)]);
                output_of(&["branch", "mode", &at(&pool), &branch(&pool, name), "RW"]);
                drained
            })
            .collect();
        ended.store(true, SeqCst);
        for Finished { stdout, stderr, .. } in drained {
            assert!(!stdout.contains("hidden") && !stderr.contains("hidden"), "{stdout}{stderr}");
        }
    });
}
