//! Which door requests come by, and who is told.

use std::fs;

use std::os::unix::fs::PermissionsExt;

use fsstack_lab::{self as lab, Pool, RingSwitch, needs};

use crate::hung_branches::{Frozen, callers_waiting, described, filled, until};
use crate::script::{log_with, sh};

/// How many threads of the pool's daemon answer requests: `door-0`, `door-1` ...
fn door_threads(pool: &Pool) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", pool.daemon().pid)).unwrap();
    let names = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default());
    let answers =
        |name: &String| name.trim().strip_prefix("door-").is_some_and(|n| n.parse::<usize>().is_ok());
    names.filter(answers).count()
}

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

#[test]
fn the_log_and_the_root_tell_which_door_it_is() {
    needs!(mounting(), program("getfattr"));
    let ring = lab::needs::rings().is_ok();
    let on = fs::read_to_string(SWITCH).is_ok_and(|value| value.starts_with('Y'));
    for (option, door, said) in [
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
        let told = sh(pool.path(), "getfattr --only-values -n user.fsstack.transport .");
        assert_eq!(told, door, "transport={option}");
        pool.unmount();
        let log = fs::read_to_string(log.path()).unwrap();
        let line = log.lines().find(|line| line.contains("requests by"));
        assert!(line.is_some_and(|line| line.contains(said)), "transport={option}: {log}");
    }
}

#[test]
fn a_ring_that_cannot_be_had_is_refused_with_its_reason() {
    needs!(mounting());
    // Who is not root cannot switch it on; a forbidden io_uring, and a kernel without, are told likewise.
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
    // One that is to be had has a way back: auto never fails.
    drop(lab::pool().tmp_branch("a").option("transport=auto").mount());
}

#[test]
fn max_threads_holds_from_the_start() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("transport=dev").option("max-threads=1").mount();
    assert_eq!(door_threads(&pool), 1);
    needs!(rings());
    // One for each CPU that there may be: the kernel uses no queue before all have an entry.
    let possible = fsstack_sys::thread::possible_cpus();
    for wanted in [1, possible + 1] {
        let pool = lab::pool().tmp_branch("a").option("transport=ring");
        let pool = pool.option(&format!("max-threads={wanted}")).mount();
        pool.write("file", b"bytes");
        let bound = wanted.max(possible);
        assert!((possible..=bound).contains(&door_threads(&pool)), "max-threads={wanted}");
        // Three a CPU that all stay busy for a while: what is left of them waits.
        sh(pool.path(), "for n in $(seq 50); do (stat file; ls; cat file) > /dev/null & done; wait");
        // In front of a volume that has all its calls threads step aside, up to eight times as many beside.
        let most = if lab::ground::is_gluster() { 9 * bound } else { bound };
        assert!(door_threads(&pool) <= most, "max-threads={wanted}: {}", door_threads(&pool));
    }
}

/// Programs wait in a branch that does not answer, and in front of it, many more than there are CPUs: others are served.
/// Threads that came for them go when nobody needs them any more.
#[test]
fn helpers_at_the_device_come_for_who_waits_in_a_branch_and_go_again() {
    needs!(mounting(), program("mergerfs"));
    let builder = described().option("transport=dev").option("branch-timeout=60").option("branch-inflight=4");
    let pool = filled(builder);
    fs::write(pool.at("here"), "on b").unwrap();
    let (base, dir) = (fsstack_sys::thread::allowed_cpus().len(), pool.at("on-a"));
    until("no helper is there", || door_threads(&pool) == base);
    let frozen = Frozen::new(pool.branch("a").daemon());
    let ask = |n: usize| {
        let at = dir.join((n % 40).to_string());
        std::thread::spawn(move || fs::metadata(at).is_ok())
    };
    let callers: Vec<_> = (0..2 * base + 12).map(ask).collect();
    until("the callers wait", || callers_waiting() >= callers.len());
    for _ in 0..20 {
        assert_eq!(fs::read(pool.at("here")).unwrap(), b"on b");
    }
    assert!(callers.iter().all(|caller| !caller.is_finished()), "told before the branch was thawed");
    assert!(base < door_threads(&pool));
    drop(frozen);
    assert!(callers.into_iter().all(|caller| caller.join().unwrap()), "thawed in time: nobody is refused");
    until("the helpers have gone", || {
        assert!(fs::metadata(pool.at("here")).is_ok());
        door_threads(&pool) == base
    });
}

/// Runs alone (.config/nextest.toml): the switch is the whole machine's.
#[test]
fn a_ring_that_is_switched_off_is_switched_on_and_the_log_says_so() {
    needs!(rings());
    let _as_before = RingSwitch::kept();
    // Another run of tests on this machine may switch it on first.
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

/// With so few descriptors that some of the rings cannot be made when the mount is there already: the kernel sends its
/// requests by the device then.
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
                short += usize::from(fs::read_to_string(log.path()).unwrap().contains("a ring is broken"));
            }
        }
    }
    assert!(short > 0, "no number of descriptors was one too few");
}
