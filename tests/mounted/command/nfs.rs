//! `fsstack nfs`: what a server is told, and what is wrong with an export.

use std::fs::File;
use std::time::{Duration, Instant};

use fsstack_lab::{self as lab, MiB, needs};
use rustix::process::Signal;

use super::{at, pool, run, told};
use crate::script::sh;

#[test]
fn an_exported_pool_tells_what_a_server_needs_and_passes_the_check() {
    needs!(mounting(), loops(), program("getfattr"));
    let pool = lab::pool().xfs_branch("x", MiB(300)).option("nfs-export").mount();
    let id = sh(pool.path(), "getfattr -n user.fsstack.id --only-values .");
    let shown = told(&["nfs", "show", &at(&pool), "--clients", "10.0.0.0/8"]);
    let line = format!("{} 10.0.0.0/8(rw,sync,no_subtree_check,fsid={id})", at(&pool));
    assert!(shown.lines().any(|shown| shown == line), "{shown}");
    assert!(shown.contains("EXPORT {") && shown.contains("# fsid:"), "{shown}");
    let checked = told(&["nfs", "check", &at(&pool)]);
    assert!(checked.contains("ok    nfs-export: on") && checked.contains("ok    handle:"), "{checked}");
}

#[test]
fn who_holds_an_exported_pool_is_named() {
    needs!(mounting());
    let log = tempfile::NamedTempFile::new().unwrap();
    let builder = lab::pool().tmp_branch("a").option("nfs-export");
    let mut pool = builder.option(&format!("log={}", log.path().display())).mount();
    let held = File::open(pool.path()).unwrap();
    let us = format!("(process {}) uses it", std::process::id());
    let checked = told(&["nfs", "check", &at(&pool)]);
    assert!(checked.lines().any(|line| line.contains("to unmount") && line.contains(&us)), "{checked}");
    // A signal takes it away from under whoever holds it; the log says who that was.
    let daemon = pool.daemon();
    daemon.signal(Signal::TERM).unwrap();
    let began = Instant::now();
    let said = || std::fs::read_to_string(log.path()).unwrap();
    while !said().contains(&format!("the pool is held: {}", us_by_name(&us))) {
        assert!(began.elapsed() < Duration::from_secs(60), "{}", said());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(held);
    daemon.wait(Duration::from_secs(60)).unwrap();
    pool.unmount();
}

/// As the log has it: with the process's own name before.
fn us_by_name(us: &str) -> String {
    format!("{} {us}", std::fs::read_to_string("/proc/self/comm").unwrap().trim_end())
}

#[test]
fn a_pool_that_is_not_for_export_fails_the_check() {
    needs!(mounting());
    let pool = pool();
    let checked = run(&["nfs", "check", &at(&pool)]);
    assert_eq!(checked.code, 1, "{}", checked.stderr);
    assert!(checked.stdout.contains("fail  nfs-export: off"), "{}", checked.stdout);
}
