//! The daemon's capabilities and system calls, in each of its threads.

use std::collections::BTreeSet;
use std::fs::{self, File};

use fsstack_lab::{self as lab, Pool, needs};

use crate::command::{at, output_of};

/// The values of that field in the status of all threads of the daemon.
fn of_all_threads(pool: &Pool, field: &str) -> BTreeSet<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pool.daemon().pid)).unwrap();
    // A thread that has ended meanwhile has no status.
    let read = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    read.map(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().to_owned()
    })
    .collect()
}

/// Uses a pool in many ways, so that it has threads of every kind.
fn worked(pool: &Pool) {
    pool.mkdir("dir/deeper");
    pool.write("dir/deeper/file", b"bytes");
    fs::rename(pool.at("dir"), pool.at("moved")).unwrap();
    assert_eq!(pool.read("moved/deeper/file"), b"bytes");
    let extra = pool.path().with_file_name("extra");
    fs::create_dir(&extra).unwrap();
    output_of(&["branch", "add", &at(pool), extra.to_str().unwrap()]);
    let open: Vec<_> = (0..8).map(|n| File::create(pool.at(n.to_string())).unwrap()).collect();
    assert!(output_of(&["status", &at(pool)]).contains("extra"));
    drop(open);
}

fn one(value: &str) -> BTreeSet<String> {
    [value.to_owned()].into()
}

#[test]
fn every_thread_of_the_daemon_makes_known_calls_only() {
    needs!(mounting(), root());
    for transport in ["transport=dev", "transport=auto"] {
        let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").option(transport);
        // A call outside the list would kill it.
        let pool = pool.option("out-of-band=watch").option("seccomp=kill").mount();
        worked(&pool);
        assert_eq!(of_all_threads(&pool, "Seccomp:"), one("2"), "{transport}: each has a filter");
        assert_eq!(of_all_threads(&pool, "NoNewPrivs:"), one("1"), "{transport}");
    }
}

#[test]
fn every_thread_of_the_daemon_has_the_capabilities_that_it_uses_and_no_others() {
    needs!(mounting(), root());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    worked(&pool);
    let kept = fsstack_sys::capabilities::KEPT.iter().fold(0, |all, (one, _)| all | one.bits());
    // A container may have dropped some of them before.
    let given = fs::read_to_string("/proc/self/status").unwrap();
    let given = given.lines().find_map(|line| line.strip_prefix("CapBnd:")).unwrap();
    let kept = kept & u64::from_str_radix(given.trim(), 16).unwrap();
    for field in ["CapEff:", "CapPrm:", "CapBnd:"] {
        assert_eq!(of_all_threads(&pool, field), one(&format!("{kept:016x}")), "{field}");
    }
    for field in ["CapInh:", "CapAmb:"] {
        assert_eq!(of_all_threads(&pool, field), one("0000000000000000"), "{field}");
    }
}

#[test]
fn without_a_filter_the_pool_works_as_well() {
    needs!(mounting(), root());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("seccomp=off").mount();
    worked(&pool);
    assert_eq!(of_all_threads(&pool, "Seccomp:"), of_us());
    assert_eq!(output_of(&["get", &at(&pool), "seccomp"]).trim(), "off");
}

/// A container may have its own filter.
fn of_us() -> BTreeSet<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    one(status.lines().find_map(|line| line.strip_prefix("Seccomp:")).unwrap().trim())
}
