//! Files that programs keep open by passthrough, and never close for long, leave under them (`--make-way`).

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fsstack_lab::{self as lab, MiB, needs, until};

use super::*;
use crate::relocate::{assert_clean, assert_mibs, mib};
use crate::script::passthrough;

const MIBS: u64 = 8;
/// How long a file is never closed.
const HELD_FOR: Duration = Duration::from_secs(1);

fn two() -> Pool {
    let pool = lab::pool().xfs_branch("a", MiB(300)).mode("RW,class=fast");
    let pool = pool.xfs_branch("b", MiB(300)).mode("RW,class=slow");
    let pool = pool.option("create=ff").option("passthrough-headroom=0").mount();
    pool.mkdir("show");
    let film = File::create(pool.at("show/film")).unwrap();
    (0..MIBS).for_each(|n| film.write_all_at(&mib(n), n << 20).unwrap());
    pool.write("show/log", b"");
    pool
}

/// Opens the file again before it closes it, for [`HELD_FOR`], then closes it and opens it at once; each time it is used.
fn hold(open: impl Fn() -> File, mut used: impl FnMut(&mut File), ended: &AtomicBool) {
    let mut held = open();
    while !ended.load(SeqCst) {
        let since = Instant::now();
        while since.elapsed() < HELD_FOR && !ended.load(SeqCst) {
            used(&mut held);
            held = open(); // the old one is closed after that
        }
        drop(held);
        held = open();
    }
    used(&mut held);
}

/// Runs `command` beside a reader and a writer that keep their files open; both files are on the branch b then.
fn leave_under_their_users(pool: &Pool, command: &[&str]) {
    let (film, log) = (pool.at("show/film"), pool.at("show/log"));
    let (ended, first) = (AtomicBool::new(false), File::open(&film).unwrap());
    let lines = std::thread::scope(|scope| {
        let job = scope.spawn(|| run(command));
        until("the job waits", || run(&["job", "status", &at(pool)]).stdout.contains("waiting"));
        assert_eq!(pool.holders("show/film"), ["a"]);
        let reader = scope.spawn(|| {
            let mut n = 0;
            let reads = |file: &mut File| {
                let mut read = vec![0; 1 << 20];
                file.read_exact_at(&mut read, (n % MIBS) << 20).unwrap();
                assert!(read == mib(n % MIBS), "MiB {} differs", n % MIBS);
                n += 1;
            };
            hold(|| File::open(&film).unwrap(), reads, &ended);
        });
        let writer = scope.spawn(|| {
            let mut lines = 0_u32;
            let appends = |file: &mut File| {
                writeln!(file, "{lines}").unwrap();
                lines += 1;
            };
            hold(|| File::options().append(true).open(&log).unwrap(), appends, &ended);
            lines
        });
        drop(first);
        let both = ["show/film", "show/log"];
        until("both have moved", || both.iter().all(|path| pool.holders(*path) == ["b"]));
        let Finished { code, stderr, .. } = job.join().unwrap();
        ended.store(true, SeqCst);
        reader.join().unwrap();
        assert_eq!(code, 0, "{stderr}");
        writer.join().unwrap()
    });
    assert_mibs(pool, "show/film", MIBS);
    let all: String = (0..lines).map(|n| format!("{n}\n")).collect();
    assert_eq!(String::from_utf8(pool.read("show/log")).unwrap(), all);
    assert_clean(pool);
}

#[test]
fn files_that_are_never_closed_for_long_are_drained_under_their_users() {
    needs!(mounting(), loops());
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let pool = two();
    let (at, a) = (at(&pool), branch(&pool, "a"));
    leave_under_their_users(&pool, &["branch", "drain", &at, &a, "--make-way"]);
    output_of(&["branch", "remove", &at, &a]);
    assert_mibs(&pool, "show/film", MIBS);
}

#[test]
fn files_that_are_never_closed_for_long_are_gathered_under_their_users() {
    needs!(mounting(), loops());
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let pool = two();
    let (at, b) = (at(&pool), branch(&pool, "b"));
    leave_under_their_users(&pool, &["consolidate", &at, "show", "--to", &b, "--make-way"]);
    // Nothing makes way any more: the next first open is by passthrough again.
    let film = File::open(pool.at("show/film")).unwrap();
    let how = output_of(&["explain", pool.at("show/film").to_str().unwrap()]);
    assert!(how.contains("passthrough"), "{how}");
    drop(film);
}

/// Its files are read for weeks, by a program that seeds them.
#[test]
fn files_that_are_never_closed_for_long_go_down_a_tier_under_their_users() {
    needs!(mounting(), loops());
    if let Err(skip) = passthrough() {
        return skip.announce();
    }
    let pool = two();
    let at = at(&pool);
    let set = ["tier", "set", &at, "fast", "slow", "--start", "1%", "--stop", "0%", "--make-way"];
    leave_under_their_users(&pool, &set);
    assert_mibs(&pool, "show/film", MIBS);
}
