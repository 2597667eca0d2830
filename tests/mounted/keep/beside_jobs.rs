//! Programs change names while jobs move files, after the daemon was killed: each call ends as on a local disk.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use fsstack_lab::{self as lab, MiB, Pool, needs};
use fsstack_sys::Errno;
use fsstack_sys::dirents::Dirents;

use super::crash_and_serve;
use crate::command::{at, branch, output_of, run};
use crate::stress::Dice;

/// Threads that work, each below a directory of its own.
const WORKERS: usize = 3;

/// Files of each directory.
const NAMES: u64 = 10;

/// A name below a worker's directory.
fn any_name(dice: &mut Dice) -> String {
    let dir = ["", "a/", "b/"][usize::try_from(dice.below(3)).unwrap()];
    format!("{dir}f{}", dice.below(NAMES))
}

/// Does something below `top`; the answer is what shows of it.
fn act(top: &Path, which: u64, from: &str, to: &str) -> io::Result<Vec<String>> {
    let (from, to) = (top.join(from), top.join(to));
    let (a, c) = (top.join("a"), top.join("c"));
    match which {
        0..=4 => fs::rename(from, to)?,
        5 | 6 => fs::hard_link(from, to)?,
        7 => drop(fs::File::create_new(from)?),
        8 => fs::write(from, b"content")?,
        9 => fs::remove_file(from)?,
        10 => fs::rename(&a, &c).and_then(|()| fs::rename(c, a))?,
        11 => {
            let stat = fs::metadata(from)?;
            return Ok(vec![format!("{} bytes, {} links", stat.len(), stat.nlink())]);
        }
        _ => {
            let names = fs::read_dir(from.parent().unwrap())?;
            let mut names: Vec<String> =
                names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            return Ok(names);
        }
    }
    Ok(Vec::new())
}

/// Does the same in the pool and on the local disk until `ended`. Returns the first difference, if there is one.
fn works(pool: &Path, local: &Path, seed: u64, ended: &AtomicBool) -> Option<String> {
    for top in [pool, local] {
        ["a", "b"].iter().for_each(|dir| fs::create_dir_all(top.join(dir)).unwrap());
    }
    let mut dice = Dice(seed);
    let mut step = 0;
    while !ended.load(SeqCst) {
        step += 1;
        let (which, from, to) = (dice.below(14), any_name(&mut dice), any_name(&mut dice));
        let answers = [local, pool].map(|top| act(top, which, &from, &to).map_err(|error| error.kind()));
        if answers[0] != answers[1] {
            return Some(format!("step {step}, call {which} of {from} and {to}: {answers:?}"));
        }
    }
    None
}

/// The dead daemon knew that the listing had not come by the name in either copy.
#[test]
fn a_listing_beside_which_a_name_moved_is_known_to_be_short_after_a_death() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(400)).xfs_branch("b", MiB(310)).option("restart=keep");
    let pool = pool.option("create=ff,minfreespace=4M,write-path=stacked").mount();
    for name in ["a", "b"] {
        let dir = pool.branch(name).path().join("d");
        fs::create_dir(&dir).unwrap();
        (0..200).for_each(|n| fs::write(dir.join(format!("{name}{n:05}")), b"").unwrap());
    }
    let last = fs::read_dir(pool.branch("b").path().join("d")).unwrap().last().unwrap().unwrap();
    let last = format!("d/{}", last.file_name().to_str().unwrap());
    pool.branch("b").fill_until_free(MiB(12));
    let mut listing = Dirents::new(fs::File::open(pool.at("d")).unwrap().into(), 600);
    (0..300).for_each(|_| assert!(listing.next().unwrap().is_some()));
    fs::write(pool.at(&last), lab::zeros(MiB(24))).unwrap();
    assert_eq!(pool.holders(&last), ["a"]);
    crash_and_serve(&pool);
    let end = loop {
        match listing.next() {
            Ok(Some(_)) => {}
            end => break end.map(drop).map_err(|error| error.errno),
        }
    };
    assert_eq!(end, Err(Errno::IO));
    listing.seek(0).unwrap();
    let mut names = 0;
    while listing.next().unwrap().is_some() {
        names += 1;
    }
    assert_eq!(names, 402, "with the dots");
}

/// Drains and gathers files, whatever comes of it: names that were just changed may stay.
fn moves_files(pool: &Pool) {
    for name in ["a", "b", "c"] {
        run(&["branch", "drain", &at(pool), &branch(pool, name)]);
        output_of(&["branch", "mode", &at(pool), &branch(pool, name), "RW"]);
        run(&["consolidate", &at(pool), &pool.at("0").display().to_string(), "--to", &branch(pool, name)]);
    }
}

/// The kernel knows of each file more than the daemon that follows, which forgot files while a job moved them.
#[test]
fn names_change_beside_jobs_after_a_death_as_on_a_local_disk() {
    needs!(mounting(), loops());
    let pool = ["a", "b", "c"].iter().fold(lab::pool(), |pool, name| pool.xfs_branch(name, MiB(300)));
    let pool = pool.option("minfreespace=8M").option("transport=dev").option("restart=keep").mount();
    let local = tempfile::tempdir().unwrap();
    let ended = AtomicBool::new(false);
    let wrong: Vec<Option<String>> = std::thread::scope(|scope| {
        let (pool, local, ended) = (&pool, local.path(), &ended);
        let work = move |worker: usize| {
            let (pool, local) = (pool.at(worker.to_string()), local.join(worker.to_string()));
            works(&pool, &local, 0x9e37_79b9 + u64::try_from(worker).unwrap(), ended)
        };
        let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
        for _ in 0..2 {
            moves_files(pool);
            crash_and_serve(pool);
            moves_files(pool);
        }
        ended.store(true, SeqCst);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    assert!(wrong.iter().all(Option::is_none), "{wrong:?}");
}

/// A pool of two branches that outlives its daemon.
fn two_branches() -> Pool {
    let pool = lab::pool().ext4_branch("a", MiB(64)).ext4_branch("b", MiB(64));
    pool.option("create=ff,minfreespace=1M,transport=dev,restart=keep,write-path=stacked").mount()
}

fn open(path: &Path) -> fs::File {
    fs::File::options().read(true).write(true).open(path).unwrap()
}

/// The daemon dies while files that are open are moved, each time at another moment. What is written afterwards is in the file that has
/// the name.
#[test]
fn open_files_that_a_dead_daemon_was_moving_are_those_with_the_names() {
    const FILES: usize = 200;
    needs!(mounting(), loops());
    for moment in [5, 30, 60, 100, 150, 250] {
        let pool = two_branches();
        let path = |n: usize| pool.at(format!("file{n}"));
        (0..FILES).for_each(|n| fs::write(path(n), "before").unwrap());
        let held: Vec<fs::File> = (0..FILES).map(|n| open(&path(n))).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| run(&["branch", "drain", &at(&pool), &branch(&pool, "a")]));
            std::thread::sleep(Duration::from_millis(moment));
            crash_and_serve(&pool);
        });
        for (n, file) in held.into_iter().enumerate() {
            file.write_all_at(b"after", 0).unwrap_or_else(|error| panic!("{moment} ms, {n}: {error}"));
            drop(file);
            assert_eq!(fs::read_to_string(path(n)).unwrap(), "aftere", "{moment} ms, {n}");
        }
    }
}

/// The second handle of a file comes when it has moved and lost its name.
#[test]
fn a_handle_that_is_opened_after_the_move_outlives_the_others() {
    needs!(mounting(), loops());
    let pool = two_branches();
    pool.write("file", b"content");
    let first = open(&pool.at("file"));
    output_of(&["branch", "drain", &at(&pool), &branch(&pool, "a")]);
    fs::remove_file(pool.at("file")).unwrap();
    let second = open(Path::new(&format!("/proc/self/fd/{}", first.as_raw_fd())));
    drop(first);
    crash_and_serve(&pool);
    assert_eq!(io::read_to_string(second).unwrap(), "content");
}
