//! Which of the daemon's threads are scheduled as its doors are: the doors, and nobody whom they start.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use fsstack_lab::{self as lab, needs};

use crate::hung_branches::{Frozen, filled, lasting_a_second, until};

/// How a thread is scheduled.
#[derive(Debug, PartialEq, Eq)]
struct Schedule {
    policy: String,
    nice: String,
    cpus: String,
}

/// The thread at `task`, a directory of proc(5): its name and schedule, unless it has ended.
fn told(task: &Path) -> Option<(String, Schedule)> {
    let stat = fs::read_to_string(task.join("stat")).ok()?;
    let (begin, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let status = fs::read_to_string(task.join("status")).ok()?;
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let name = begin.split_once('(')?.1.to_owned();
    let (nice, policy) = (fields.get(16)?.to_string(), fields.get(38)?.to_string());
    Some((name, Schedule { policy, nice, cpus: cpus.trim().to_owned() }))
}

/// All threads of the process `pid`.
fn threads(pid: i32) -> Vec<(String, Schedule)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.filter_map(|task| told(&task.unwrap().path())).collect()
}

fn is_door(name: &str) -> bool {
    name.strip_prefix("door-").is_some_and(|n| n.parse::<usize>().is_ok())
}

fn threads_that_doors_start_are_ordinary(transport: &str) {
    let branches = lab::pool().tmp_branch("b").served_branch("a");
    let pool = filled(
        lasting_a_second(branches)
            .option("branch-timeout=20")
            .option(if transport == "dev" { "locks=branch" } else { "locks=local" })
            .option("door-scheduling=idle")
            .option(&format!("transport={transport}")),
    );
    let pid = pool.daemon().pid;
    let seen = |name: &str| threads(pid).iter().any(|(known, _)| known == name);

    // One who waits for a lock has a thread of his own, if the door would be short of one without.
    let held = File::options().write(true).open(pool.at("on-b/0")).unwrap();
    held.lock().unwrap();
    let waits = File::options().write(true).open(pool.at("on-b/0")).unwrap();
    let waiter = thread::spawn(move || waits.lock());
    if transport == "dev" {
        until("somebody waits for the lock", || seen("lock-wait"));
    }
    // A thread of its own asks a branch that others serve for its space, and stays where that does not answer.
    let frozen = Frozen::new(pool.branch("a").daemon());
    let enough = Arc::new(AtomicBool::new(false));
    let (root, over) = (pool.path().to_owned(), enough.clone());
    let asker = thread::spawn(move || {
        while !over.load(Relaxed) {
            let _space = rustix::fs::statvfs(&root);
        }
    });
    until("the branch is asked for its space", || seen("branch-space"));

    let (_, ordinary) = told(Path::new(&format!("/proc/{pid}"))).unwrap();
    assert_eq!(ordinary.policy, "0");
    // A thread has its name a moment before it has anything else.
    until("all but the doors are ordinary", || {
        let mut others = threads(pid).into_iter().filter(|(name, _)| !is_door(name));
        seen("branch-space") && others.all(|(_, schedule)| schedule == ordinary)
    });
    // The doors have a CPU each. (How they compete there changes with what else there is to do.)
    let doors: Vec<_> = threads(pid).into_iter().filter(|(name, _)| is_door(name)).collect();
    assert!(doors.iter().all(|(_, schedule)| schedule.cpus.parse::<u32>().is_ok()), "{doors:?}");

    enough.store(true, Relaxed);
    drop(frozen);
    asker.join().unwrap();
    held.unlock().unwrap();
    waiter.join().unwrap().unwrap();
}

#[test]
fn threads_that_the_devices_threads_start_are_ordinary() {
    needs!(mounting(), program("mergerfs"));
    threads_that_doors_start_are_ordinary("dev");
}

#[test]
fn threads_that_the_rings_threads_start_are_ordinary() {
    needs!(mounting(), program("mergerfs"), rings());
    threads_that_doors_start_are_ordinary("ring");
}
