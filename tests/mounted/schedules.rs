//! Scheduling of the daemon's threads: that of workers, not inherited by threads they start; and the choice of
//! `door-scheduling=auto` by the daemon's cgroup.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use fsstack_lab::{self as lab, CpuGroup, daemon, needs, until};

use crate::hung_branches::{FrozenDaemon, filled, lasting_a_second};

/// Schedule of a thread.
#[derive(Debug, PartialEq, Eq)]
struct Schedule {
    policy: String,
    nice: String,
    cpus: String,
}

/// Name and schedule of the thread at `task`, a directory of proc(5), unless it has ended.
fn schedule_of(task: &Path) -> Option<(String, Schedule)> {
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
    tasks.filter_map(|task| schedule_of(&task.unwrap().path())).collect()
}

/// True for the name of a worker thread: `fuse-0`, `ring-1`.
pub(crate) fn is_worker(name: &str) -> bool {
    ["fuse-", "ring-"]
        .iter()
        .any(|transport| name.strip_prefix(transport).is_some_and(|n| n.parse::<usize>().is_ok()))
}

fn threads_that_workers_start_are_ordinary(transport: &str) {
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

    // A waiter for a lock has its own thread, if the transport needs its threads.
    let held = File::options().write(true).open(pool.at("on-b/0")).unwrap();
    held.lock().unwrap();
    let waits = File::options().write(true).open(pool.at("on-b/0")).unwrap();
    let waiter = thread::spawn(move || waits.lock());
    if transport == "dev" {
        until("somebody waits for the lock", || seen("lock-wait"));
    }
    // A separate thread queries a remote branch's space, and stays in it if it does not answer.
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let enough = Arc::new(AtomicBool::new(false));
    let (root, over) = (pool.path().to_owned(), enough.clone());
    let asker = thread::spawn(move || {
        while !over.load(Relaxed) {
            let _space = rustix::fs::statvfs(&root);
        }
    });
    until("the branch is asked for its space", || seen("branch-space"));

    let (_, ordinary) = schedule_of(Path::new(&format!("/proc/{pid}"))).unwrap();
    assert_eq!(ordinary.policy, "0");
    // A thread has its name a moment before its schedule.
    until("all but the workers are ordinary", || {
        let mut others = threads(pid).into_iter().filter(|(name, _)| !is_worker(name));
        seen("branch-space") && others.all(|(_, schedule)| schedule == ordinary)
    });
    // Each worker has its CPU. Its policy there changes with the load.
    let workers: Vec<_> = threads(pid).into_iter().filter(|(name, _)| is_worker(name)).collect();
    assert!(workers.iter().all(|(_, schedule)| schedule.cpus.parse::<u32>().is_ok()), "{workers:?}");

    enough.store(true, Relaxed);
    drop(frozen);
    asker.join().unwrap();
    held.unlock().unwrap();
    waiter.join().unwrap().unwrap();
}

#[test]
fn threads_that_the_devices_threads_start_are_ordinary() {
    needs!(mounting(), program("mergerfs"));
    threads_that_workers_start_are_ordinary("dev");
}

#[test]
fn threads_that_the_rings_threads_start_are_ordinary() {
    needs!(mounting(), program("mergerfs"), rings());
    threads_that_workers_start_are_ordinary("ring");
}

/// Schedule of a worker thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerSchedule {
    /// Under `SCHED_IDLE`, where niceness has no effect.
    Idle,
    /// SCHED_OTHER, with nice -5.
    Nice,
}

/// Waits until all workers of the daemon `pid` have this schedule.
pub(crate) fn workers_become(pid: i32, wanted: WorkerSchedule) {
    let so = |schedule: &Schedule| match wanted {
        WorkerSchedule::Idle => schedule.policy == "5",
        WorkerSchedule::Nice => schedule.policy == "0" && schedule.nice == "-5",
    };
    until(&format!("the workers of {pid} are {wanted:?}"), || {
        let workers: Vec<_> = threads(pid).into_iter().filter(|(name, _)| is_worker(name)).collect();
        !workers.is_empty() && workers.iter().all(|(_, schedule)| so(schedule))
    });
}

/// Checks the workers of a daemon started in `group`, as systemd starts services.
fn started_in(group: &CpuGroup, workers: WorkerSchedule) {
    let scripts = tempfile::tempdir().unwrap();
    let script = scripts.path().join("start");
    let (members, helper) = (group.members(), daemon::helper().unwrap());
    let run = format!("#!/bin/sh\necho $$ >'{}'\nexec '{}' \"$@\"\n", members.display(), helper.display());
    fs::write(&script, run).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let pool = lab::pool().tmp_branch("a").no_others().helper(&script).mount();
    pool.write("file", b"x");
    workers_become(pool.daemon().pid, workers);
}

#[test]
fn workers_are_scheduled_as_asked() {
    needs!(mounting(), niceness());
    for (asked, workers) in [("idle", WorkerSchedule::Idle), ("nice", WorkerSchedule::Nice)] {
        let pool =
            lab::pool().tmp_branch("a").no_others().option(&format!("door-scheduling={asked}")).mount();
        pool.write("file", b"x");
        workers_become(pool.daemon().pid, workers);
    }
    let pool = lab::pool().tmp_branch("a").no_others().option("door-scheduling=plain").mount();
    let (_, ordinary) = schedule_of(Path::new(&format!("/proc/{}", pool.daemon().pid))).unwrap();
    let mut workers = threads(pool.daemon().pid).into_iter().filter(|(name, _)| is_worker(name));
    assert!(
        workers.all(|(_, own)| (own.policy, own.nice) == (ordinary.policy.clone(), ordinary.nice.clone()))
    );
}

#[test]
fn a_daemon_in_a_cpu_cgroup_of_its_own_is_idle() {
    needs!(mounting(), niceness(), cpu_groups());
    let group = CpuGroup::new("own").unwrap();
    started_in(&group, WorkerSchedule::Idle);
}

/// The daemon leads a session, but that is no scheduling group, whatever autogroup says.
#[test]
fn a_daemon_in_a_cpu_cgroup_with_others_is_nice() {
    needs!(mounting(), niceness(), cpu_groups());
    let group = CpuGroup::new("shared").unwrap();
    let _joined = group.join().unwrap();
    started_in(&group, WorkerSchedule::Nice);
}
