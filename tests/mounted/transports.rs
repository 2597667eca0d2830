//! The transport of a pool's requests, and where it is displayed.

use std::fs;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use fsstack_lab::{self as lab, Pool, RingSwitch, needs, until, until_within};

use crate::command as operator;
use crate::hung_branches::{FrozenDaemon, callers_waiting, described, filled};
use crate::schedules::is_worker;
use crate::script::{log_with, python, sh, ways};

/// Number of the daemon's worker threads: `fuse-0`, `ring-1` ...
fn worker_threads(pool: &Pool) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", pool.daemon().pid)).unwrap();
    let names = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default());
    names.filter(|name| is_worker(name.trim())).count()
}

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

#[test]
fn the_log_and_the_root_tell_which_transport_it_is() {
    needs!(mounting(), program("getfattr"));
    let ring = lab::needs::rings().is_ok();
    let on = fs::read_to_string(SWITCH).is_ok_and(|value| value.starts_with('Y'));
    for (option, transport, said) in [
        ("dev", "dev", "/dev/fuse"),
        ("ring", "ring", "io_uring"),
        ("auto", if on { "ring" } else { "dev" }, "requests by"),
    ] {
        if option == "ring" && !ring {
            continue;
        }
        let log = tempfile::NamedTempFile::new().unwrap();
        let pool = lab::pool().tmp_branch("a").option(&format!("transport={option}"));
        let mut pool = pool.option(&format!("log={}", log.path().display())).mount();
        let output = sh(pool.path(), "getfattr --only-values -n user.fsstack.transport .");
        assert_eq!(output, transport, "transport={option}");
        pool.unmount();
        let log = fs::read_to_string(log.path()).unwrap();
        let line = log.lines().find(|line| line.contains("requests by"));
        assert!(line.is_some_and(|line| line.contains(said)), "transport={option}: {log}");
    }
}

#[test]
fn a_ring_that_cannot_be_had_is_refused_with_its_reason() {
    needs!(mounting());
    // Users other than root cannot enable it; a forbidden io_uring, and a kernel without it, give the same notice.
    let pool = lab::pool().tmp_branch("a").option("transport=ring").option("locks=branch");
    let refused = pool.try_mount().unwrap_err();
    assert_eq!(refused.code, 1);
    assert!(
        refused.said.contains("transport=ring") && refused.said.contains("use transport=dev"),
        "{refused}"
    );
    let Ok(()) = lab::needs::rings() else {
        let refused = lab::pool().tmp_branch("a").option("transport=ring").try_mount().unwrap_err();
        assert!(refused.code == 32 && refused.said.contains("use transport=auto"), "{refused}");
        return;
    };
    // `auto` falls back, so it never fails.
    drop(lab::pool().tmp_branch("a").option("transport=auto").mount());
}

#[test]
fn max_threads_holds_from_the_start() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("transport=dev").option("max-threads=1").mount();
    assert_eq!(worker_threads(&pool), 1);
    needs!(rings());
    // One for each possible CPU: the kernel uses no queue before all have an entry.
    let possible = fsstack_sys::thread::possible_cpus();
    for wanted in [1, possible + 1] {
        let pool = lab::pool().tmp_branch("a").option("transport=ring");
        let pool = pool.option(&format!("max-threads={wanted}")).mount();
        pool.write("file", b"bytes");
        let bound = wanted.max(possible);
        // The limit is for busy threads of all queues: no queue has more, and each may once have had all of them.
        assert!((possible..=possible * bound).contains(&worker_threads(&pool)), "max-threads={wanted}");
        // Three a CPU, all busy for a while: others wait.
        sh(pool.path(), "for n in $(seq 50); do (stat file; ls; cat file) > /dev/null & done; wait");
        // In front of a volume whose permits are taken, threads step aside, up to eight times as many.
        let most = if lab::test_bed::is_gluster() { 9 * bound } else { possible * bound };
        assert!(worker_threads(&pool) <= most, "max-threads={wanted}: {}", worker_threads(&pool));
    }
}

/// Programs wait in and for a branch that does not answer, many more than there are CPUs: others are served. Threads
/// started for them end when they are no longer needed.
#[test]
fn extra_threads_at_the_device_start_for_calls_stuck_in_a_branch_and_end_again() {
    needs!(mounting(), program("mergerfs"));
    let builder = described().option("transport=dev").option("branch-timeout=60").option("branch-inflight=4");
    let pool = filled(builder);
    fs::write(pool.at("here"), "on b").unwrap();
    let (base, dir) = (fsstack_sys::thread::allowed_cpus().len(), pool.at("on-a"));
    until("no helper is there", || worker_threads(&pool) == base);
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let ask = |n: usize| {
        let at = dir.join((n % 40).to_string());
        std::thread::spawn(move || fs::metadata(at).is_ok())
    };
    let callers: Vec<_> = (0..2 * base + 12).map(ask).collect();
    until("the callers wait", || callers_waiting() >= callers.len());
    for _ in 0..20 {
        assert_eq!(fs::read(pool.at("here")).unwrap(), b"on b");
    }
    assert!(callers.iter().all(|caller| !caller.is_finished()), "answered before the branch was thawed");
    assert!(base < worker_threads(&pool));
    drop(frozen);
    assert!(callers.into_iter().all(|caller| caller.join().unwrap()), "thawed in time: nobody is refused");
    // They run under SCHED_IDLE: beside other work it takes long until each of them gets a CPU and ends.
    until_within(Duration::from_secs(300), "the helpers have gone", || {
        assert!(fs::metadata(pool.at("here")).is_ok());
        worker_threads(&pool) == base
    });
}

/// Resident bytes of the daemon.
fn resident(pool: &Pool) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pool.daemon().pid)).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// True if a thread of the ring's queue for `cpu` waits for a request.
fn has_free_thread(pool: &Pool, cpu: usize) -> bool {
    let mut tasks = fs::read_dir(format!("/proc/{}/task", pool.daemon().pid)).unwrap();
    let field =
        |task: &fs::DirEntry, what: &str| fs::read_to_string(task.path().join(what)).unwrap_or_default();
    tasks.any(|task| {
        let task = task.unwrap();
        field(&task, "comm").trim() == format!("ring-{cpu}")
            && field(&task, "wchan").contains("io_cqring_wait")
    })
}

/// Starts another caller on `cpu`, which waits in the branch `a`. It needs a free thread: without one it would wait in
/// the kernel.
fn calls_from(pool: &Pool, cpu: usize, n: usize) -> std::thread::JoinHandle<bool> {
    until("a thread is free", || has_free_thread(pool, cpu));
    let before = callers_waiting();
    let at = pool.at(format!("on-a/{n}"));
    let caller = std::thread::spawn(move || {
        fsstack_sys::thread::pin_to_cpu(cpu).unwrap();
        fs::read(at).is_ok()
    });
    until("the caller waits", || before < callers_waiting());
    caller
}

/// Callers on one CPU wait in a branch that does not answer, then callers on another: each gets a thread, though those
/// started for the first ones stay with their queue.
#[test]
fn a_burst_on_one_cpu_leaves_threads_for_another() {
    needs!(mounting(), program("mergerfs"), rings());
    let cpus = fsstack_sys::thread::allowed_cpus();
    let [first, second, ..] = cpus[..] else {
        return lab::Skip::because("needs two CPUs").announce();
    };
    let builder = described().option("transport=ring").option("branch-timeout=120").option("max-threads=8");
    let pool = filled(builder);
    for (cpu, callers) in [(first, 6), (second, 3)] {
        let frozen = FrozenDaemon::new(pool.branch("a").daemon());
        let waiting: Vec<_> = (0..callers).map(|n| calls_from(&pool, cpu, n)).collect();
        until("who comes next will be served", || has_free_thread(&pool, cpu));
        assert!(waiting.iter().all(|caller| !caller.is_finished()), "answered before the branch was thawed");
        drop(frozen);
        assert!(waiting.into_iter().all(|caller| caller.join().unwrap()));
    }
}

/// Requests of one CPU arrive faster than threads start. The kernel gives a new thread none of those queued before.
#[test]
fn a_request_queued_before_its_thread_started_is_served() {
    needs!(mounting(), program("mergerfs"), rings());
    let cpu = fsstack_sys::thread::allowed_cpus()[0];
    let pool = filled(described().option("transport=ring").option("branch-timeout=600"));
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let begin = std::sync::Arc::new(std::sync::Barrier::new(12));
    let callers: Vec<_> = (0..12)
        .map(|_| {
            let (at, begin) = (pool.at("on-a"), begin.clone());
            std::thread::spawn(move || {
                fsstack_sys::thread::pin_to_cpu(cpu).unwrap();
                begin.wait();
                fs::metadata(at).is_ok()
            })
        })
        .collect();
    let (at, a) = (operator::at(&pool), operator::branch(&pool, "a"));
    until("all are in the branch", || {
        let status = operator::json("status", &["status", &at]);
        let branches = status["pools"][0]["branches"].as_array().unwrap().clone();
        branches.iter().any(|branch| branch["path"] == *a && branch["in_flight"] == callers.len())
    });
    drop(frozen);
    assert!(callers.into_iter().all(|caller| caller.join().unwrap()));
}

/// Threads started for many callers stay with the ring, but release their memory.
#[test]
fn threads_that_a_crowd_left_behind_keep_little_memory() {
    needs!(mounting(), program("mergerfs"), rings());
    let pool = filled(described().option("transport=ring").option("branch-timeout=120"));
    let content = vec![7; 4 << 20];
    fs::write(pool.at("on-b/large"), &content).unwrap();
    let (before, threads) = (resident(&pool), worker_threads(&pool));
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let cpu = fsstack_sys::thread::allowed_cpus()[0];
    let callers: Vec<_> = (0..20).map(|n| calls_from(&pool, cpu, n)).collect();
    drop(frozen);
    assert!(callers.into_iter().all(|caller| caller.join().unwrap()));
    let came = worker_threads(&pool) - threads;
    assert!(16 <= came, "{came} threads came");
    // Each transfers much.
    let readers: Vec<_> = (0..came)
        .map(|_| {
            let (at, content) = (pool.at("on-b/large"), content.clone());
            std::thread::spawn(move || {
                fsstack_sys::thread::pin_to_cpu(cpu).unwrap();
                assert!(fs::read(at).unwrap() == content);
            })
        })
        .collect();
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    until("memory is given back", || resident(&pool) < before + (4 << 20) + (came as u64) * (100 << 10));
}

/// A disk whose changes are blocked until this is dropped.
struct Still<'a>(&'a Path);

impl<'a> Still<'a> {
    fn new(disk: &'a Path) -> Self {
        sh("/", &format!("fsfreeze -f '{}'", disk.display()));
        Self(disk)
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        let disk = self.0.to_str().unwrap();
        let thawed = lab::shell::command("fsfreeze").args(["-u", disk]).run();
        assert!(thawed.is_ok() || std::thread::panicking(), "{thawed:?}");
    }
}

/// More slow calls on a local disk than the limit of busy threads: callers on another disk are served.
fn slow_local_calls_leave_threads_for_others(transport: &str) {
    let pool = lab::pool().xfs_branch("a", lab::MiB(310)).tmp_branch("b").option("create=ff");
    let pool = pool.option("max-threads=2").option(&format!("transport={transport}")).mount();
    let callers = 3 * fsstack_sys::thread::possible_cpus().max(2);
    (0..callers).for_each(|n| pool.mkdir(format!("d{n}")));
    fs::create_dir(pool.branch("b").path().join("on-b")).unwrap();
    fs::write(pool.branch("b").path().join("on-b/file"), "on b").unwrap();
    assert_eq!(pool.read("on-b/file"), b"on b");
    let cpu = fsstack_sys::thread::allowed_cpus()[0];
    let disk = pool.branch("a").path().to_owned();
    let still = Still::new(&disk);
    let ready = || transport == "dev" || has_free_thread(&pool, cpu);
    let waiting: Vec<_> = (0..callers)
        .map(|n| {
            until("a thread is free", ready);
            let (at, before) = (pool.at(format!("d{n}/new")), callers_waiting());
            let caller = std::thread::spawn(move || {
                fsstack_sys::thread::pin_to_cpu(cpu).unwrap();
                fs::write(at, "new").is_ok()
            });
            until("the caller waits", || before < callers_waiting());
            caller
        })
        .collect();
    until("a thread is free", ready);
    let at = pool.at("on-b/file");
    let other = std::thread::spawn(move || {
        fsstack_sys::thread::pin_to_cpu(cpu).unwrap();
        fs::File::open(&at).is_ok() && fs::metadata(&at).is_ok()
    });
    until("whoever asks another disk is served", || other.is_finished());
    assert!(waiting.iter().all(|caller| !caller.is_finished()), "their disk stands still");
    drop(still);
    assert!(other.join().unwrap());
    assert!(waiting.into_iter().all(|caller| caller.join().unwrap()));
}

#[test]
fn slow_local_calls_leave_threads_for_others_by_the_device() {
    needs!(mounting(), loops(), program("fsfreeze"));
    slow_local_calls_leave_threads_for_others("dev");
}

#[test]
fn slow_local_calls_leave_threads_for_others_by_the_ring() {
    needs!(mounting(), loops(), program("fsfreeze"), rings());
    slow_local_calls_leave_threads_for_others("ring");
}

/// Runs alone (.config/nextest.toml), because the switch is global.
#[test]
fn a_ring_that_is_switched_off_is_switched_on_and_the_log_says_so() {
    needs!(rings());
    let _as_before = RingSwitch::kept();
    // Another run of tests on this machine may enable it first.
    let said = (0..20).find_map(|_| {
        let log = tempfile::NamedTempFile::new().unwrap();
        let pool = lab::pool().tmp_branch("a").option("transport=ring");
        let pool = pool.option(&format!("log={}", log.path().display()));
        fs::write(SWITCH, "N").unwrap();
        let Ok(pool) = pool.try_mount() else { return None };
        assert_eq!(sh(pool.path(), "getfattr --only-values -n user.fsstack.transport ."), "ring");
        let said = log_with(log.path(), "branches mounted");
        said.lines().find(|line| line.contains("enable_uring was switched on")).map(str::to_owned)
    });
    assert!(said.is_some(), "it was never this pool that switched it on");
    assert!(fs::read_to_string(SWITCH).unwrap().starts_with('Y'));
}

/// Too few descriptors for all rings, which is noticed after the mount: the kernel then uses the device.
#[test]
fn a_pool_whose_rings_cannot_all_be_made_answers_or_is_not_mounted() {
    needs!(rings(), program("prlimit"));
    let helper = lab::daemon::helper().unwrap();
    let scripts = tempfile::tempdir().unwrap();
    let mut short = 0;
    for descriptors in 8..60 + 4 * fsstack_sys::thread::possible_cpus() {
        let script = scripts.path().join(descriptors.to_string());
        let run = format!("#!/bin/sh\nexec prlimit --nofile={descriptors} '{}' \"$@\"\n", helper.display());
        fs::write(&script, run).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let log = tempfile::NamedTempFile::new().unwrap();
        let pool = lab::pool().tmp_branch("a").option("transport=ring").helper(&script);
        match pool.option(&format!("log={}", log.path().display())).try_mount() {
            Err(refused) => {
                assert!(refused.code != 0 && !refused.said.is_empty(), "{descriptors}: {refused}")
            }
            Ok(mut pool) => {
                for _ in 0..20 {
                    fs::metadata(pool.path()).unwrap();
                }
                pool.unmount();
                short +=
                    usize::from(fs::read_to_string(log.path()).unwrap().contains("io_uring queue failed"));
            }
        }
    }
    assert!(short > 0, "no number of descriptors was one too few");
}

/// The kernel closes files in the middle of execve(2), and writes their dirty pages: a daemon that looked in proc(5) where such a program
/// runs waited for the end of execve(2), and that for the daemon.
#[test]
fn a_program_is_executed_while_many_changed_files_are_open() {
    needs!(mounting(), program("python3"));
    for way in ways() {
        let pool = lab::pool().tmp_branch("a").option("locks=branch");
        let pool = way.iter().fold(pool, |pool, option| pool.option(option)).mount();
        let work = "
import fcntl, os
files = [open(f'file-{n}', 'wb', buffering=0) for n in range(200)]
for file in files:
    file.write(b'x' * 1000)
    fcntl.lockf(file, fcntl.LOCK_EX)
os.execvp('echo', ['echo', 'executed'])
";
        assert_eq!(python(pool.path(), work), "executed", "{way:?}");
        assert_eq!(pool.read("file-199"), [b'x'; 1000], "{way:?}");
    }
}
