//! Programs do the same at random in a pool and on a local disk, while jobs move their files, the daemon dies or is replaced,
//! and branches go, come and stand still: each call has the same answer, and in the end there is the same.
//!
//! A few seconds for each test, or FSSTACK_COMPARE seconds (`cargo xtask test --tier compare --compare-seconds 600`). A failure
//! names its seed: FSSTACK_COMPARE_SEED repeats the options and what the programs do, though not the moments at which jobs and
//! deaths meet them; FSSTACK_COMPARE_OPTIONS sets others.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

mod acts;
mod events;
mod shown;
mod take;
mod worker;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use fsstack_lab::{self as lab, MiB, Pool, needs};

use events::{Away, Events, TestBed};
use shown::{changes, tree};
use worker::{Worker, within_reach};

/// Programs, each in a directory of its own.
const WORKERS: usize = 3;

/// The branches.
const BRANCHES: [&str; 3] = ["a", "b", "c"];

/// Longest time with one pool: the next one has other options.
const ROUND: Duration = Duration::from_secs(12);

/// Options of which each round takes one a line.
const OPTIONS: [&[&str]; 5] = [
    &["create=rand", "create=mfs", "create=ff"],
    &["write-path=auto", "write-path=stacked", "write-path=stacked,page-cache=on", "page-cache=writeback"],
    &["attr-timeout=1", "attr-timeout=0,entry-timeout=0"],
    &["nfs-export", "catalogue=on", "xattr=on"],
    &["out-of-band=timeout", "out-of-band=never", "out-of-band=watch"],
];

/// Ends the programs when it drops.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn from_environment(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Compares for the time that is set, with `options` and what `events` lets happen.
fn compare(options: &[&str], events: Events) {
    // Each act says which rights an object gets.
    rustix::process::umask(rustix::fs::Mode::empty());
    let seconds = from_environment("FSSTACK_COMPARE").unwrap_or(8);
    let ends = Instant::now() + Duration::from_secs(seconds);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let mut seed = from_environment("FSSTACK_COMPARE_SEED").unwrap_or(now.as_secs() << 8 | 1);
    loop {
        round(options, events, seed, ends.min(Instant::now() + ROUND));
        if ends <= Instant::now() {
            return;
        }
        seed += 1;
    }
}

/// A pool with small branches.
fn small_pool(options: &[&str], branches: &[&str]) -> lab::Builder {
    let pool = branches.iter().fold(lab::pool(), |pool, name| pool.xfs_branch(name, MiB(300)));
    options.iter().fold(pool.option("minfreespace=8M"), |pool, option| pool.option(option))
}

/// Compares with one pool until `ends`.
fn round(options: &[&str], mut events: Events, seed: u64, ends: Instant) {
    let mut dice = Rng::with_seed(seed);
    let chosen = OPTIONS.map(|options| options[dice.usize(..options.len())]).join(",");
    let chosen = std::env::var("FSSTACK_COMPARE_OPTIONS").unwrap_or(chosen);
    // The branch whose server can stand still is a pool itself: it can do all that a local disk can.
    let below = events.hang_branch.then(|| small_pool(&["transport=dev"], &[BRANCHES[2]]).mount());
    let local = &BRANCHES[..BRANCHES.len() - usize::from(below.is_some())];
    let others: Vec<_> = below.iter().map(|pool| pool.path().display().to_string()).collect();
    let pool = small_pool(options, local).over(&others).option(&chosen).mount();
    let mut bed = TestBed { pool, below };
    let pool = &bed.pool;
    fs::set_permissions(pool.path(), Permissions::from_mode(0o755)).unwrap();
    if events.full_branch {
        pool.branch(BRANCHES[0]).fill_until_free(MiB(2));
    }
    // A file system of the same kind.
    let reference = lab::pool().xfs_branch("local", MiB(600)).mount();
    let local = reference.branch("local").path();
    let about = format!("FSSTACK_COMPARE_SEED={seed} ({chosen})");
    eprintln!("{about}");
    let tops: Vec<_> = (0..WORKERS)
        .map(|n| [local.to_owned(), pool.path().to_owned()].map(|top| top.join(n.to_string())))
        .collect();
    let (ended, away) = (AtomicBool::new(false), Away::default());
    let wrong: Vec<Option<String>> = std::thread::scope(|scope| {
        let (ended, away) = (&ended, &away);
        let workers: Vec<_> = tops
            .iter()
            .map(|tops| {
                let worker = Worker::new(tops.clone(), Rng::with_seed(dice.u64(..)), events);
                scope.spawn(move || worker.works(ended, away))
            })
            .collect();
        // Also if an event fails.
        let _ends = Ends(ended);
        while Instant::now() < ends && workers.iter().all(|worker| !worker.is_finished()) {
            events.one(&mut bed, &mut dice, away);
        }
        ended.store(true, SeqCst);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    assert!(wrong.iter().all(Option::is_none), "{about}: {wrong:#?}");
    let pool = &mut bed.pool;
    let status = events::fsstack(&["status", pool.path().to_str().unwrap(), "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    let moved = |at: usize| &status["pools"][0]["branches"][at]["moved_here"];
    eprintln!("files moved to the branches: {}, {}, {}", moved(0), moved(1), moved(2));
    same_at_the_end(pool, &tops, &about);
}

/// Checks that the trees are the same, also after the pool was mounted again, and that nothing is left over on the branches.
fn same_at_the_end(pool: &mut Pool, tops: &[[std::path::PathBuf; 2]], about: &str) {
    for when in ["mounted", "mounted again"] {
        for [local, pool] in tops {
            let (expected, found) = (tree(local).unwrap(), within_reach(pool).unwrap());
            assert_eq!(expected, found, "{about}: {when}");
            if about.contains("page-cache=writeback") {
                continue; // the kernel writes later
            }
            // A program does the same in the pool first: what looks younger there was not changed by it.
            let (expected, found) = (changes(local).unwrap(), changes(pool).unwrap());
            let younger = found.iter().filter(|(name, at)| expected.get(*name).is_none_or(|most| *at > most));
            let younger: Vec<_> = younger.map(|(name, at)| (name, at, expected.get(name))).collect();
            assert!(younger.is_empty(), "{about}: {when}: {younger:?}");
        }
        let began = Instant::now();
        loop {
            let checked = events::fsstack(&["check", pool.path().to_str().unwrap()]);
            if checked.code == 0 {
                break;
            }
            // A branch that has just come may not be asked yet.
            let waits = began.elapsed() < Duration::from_secs(30);
            assert!(waits, "{about}: {when}: {}{}", checked.stdout, checked.stderr);
            std::thread::sleep(Duration::from_millis(200));
        }
        pool.unmount();
        pool.remount();
    }
}

#[test]
fn beside_jobs_by_the_device() {
    needs!(mounting(), loops());
    compare(&["transport=dev"], Events { jobs: true, ..Events::default() });
}

#[test]
fn beside_jobs_by_the_ring() {
    needs!(mounting(), loops(), rings());
    compare(&["transport=ring"], Events { jobs: true, ..Events::default() });
}

#[test]
fn beside_jobs_and_deaths() {
    needs!(mounting(), loops());
    compare(&["transport=dev", "restart=keep"], Events { jobs: true, deaths: 2, ..Events::default() });
}

#[test]
fn beside_jobs_and_upgrades() {
    needs!(mounting(), loops());
    compare(&["transport=dev"], Events { jobs: true, upgrades: true, ..Events::default() });
}

/// The first branch is nearly full, so that files move as they grow.
#[test]
fn on_a_full_branch() {
    needs!(mounting(), loops());
    let options = ["transport=dev", "create=ff", "minfreespace=0", "write-path=stacked"];
    compare(&options, Events { full_branch: true, ..Events::default() });
}

#[test]
fn beside_branches_that_go_and_come() {
    needs!(mounting(), loops());
    compare(&["transport=dev"], Events { jobs: true, lose_branches: true, ..Events::default() });
}

#[test]
fn beside_a_branch_that_stands_still_by_the_device() {
    needs!(mounting(), loops());
    let events = Events { jobs: true, hang_branch: true, ..Events::default() };
    compare(&["transport=dev", "branch-timeout=1"], events);
}

#[test]
fn beside_a_branch_that_stands_still_by_the_ring() {
    needs!(mounting(), loops(), rings());
    let events = Events { jobs: true, hang_branch: true, ..Events::default() };
    compare(&["transport=ring", "branch-timeout=1"], events);
}
