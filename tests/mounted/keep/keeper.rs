//! The keeper: what it does when daemons die one after another, and what without it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};

use fsstack_lab::daemon::Process;
use fsstack_lab::{self as lab, Pool, needs, until};
use fsstack_sys::Errno;
use rustix::process::Signal;

use super::{crash, crash_and_serve, daemon, pool};
use crate::command::{at, json, output_of};
use crate::hung_branches::FrozenDaemon;
use crate::script::sh;

#[test]
fn three_deaths_in_a_minute_end_the_pool_with_the_reason() {
    needs!(mounting());
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("log");
    let mut pool = pool(&[&format!("log={}", log.display())]);
    pool.write("file", b"x");
    let keeper = pool.daemon();
    for deaths in 1..3 {
        crash(&pool);
        let told = || fs::read_to_string(&log).unwrap().matches("serves on").count();
        until("the log tells of it", || told() == deaths);
    }
    daemon(&pool).kill().unwrap();
    until("the keeper ends", || !keeper.lives());
    let told = fs::read_to_string(&log).unwrap();
    let last = told.lines().rfind(|line| line.contains("ERROR")).unwrap();
    assert!(last.contains("three times within a minute") && last.contains("signal 9"), "{told}");
    assert_eq!(told.matches("serves on").count(), 2, "{told}");
    assert!(!fsstack_lab::mounts::at(pool.path()).is_ok_and(|at| at.is_some()), "still mounted");
    pool.remount();
    assert_eq!(pool.read("file"), b"x");
}

/// A folder of logs that is gone is no reason to end a pool, and none to leave a dead mount behind.
#[test]
fn a_pool_goes_on_and_ends_without_its_log() {
    needs!(mounting());
    let home = tempfile::tempdir().unwrap();
    let logs = home.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let pool = pool(&[&format!("log={}", logs.join("log").display())]);
    pool.write("file", b"x");
    let keeper = pool.daemon();
    fs::remove_dir_all(&logs).unwrap();
    for _ in 0..2 {
        crash_and_serve(&pool);
        assert_eq!(pool.read("file"), b"x");
    }
    daemon(&pool).kill().unwrap();
    until("the keeper ends", || !keeper.lives());
    assert!(!fsstack_lab::mounts::at(pool.path()).is_ok_and(|at| at.is_some()), "still mounted");
}

#[test]
fn the_end_of_the_pool_is_the_end_of_both() {
    needs!(mounting());
    for signal in [Signal::TERM, Signal::INT] {
        let mut pool = pool(&[]);
        let (keeper, serves) = (pool.daemon(), daemon(&pool));
        keeper.signal(signal).unwrap();
        until("both end", || !keeper.lives() && !serves.lives());
        assert!(fsstack_lab::mounts::at(pool.path()).unwrap().is_none());
        pool.remount();
        let (keeper, serves) = (pool.daemon(), daemon(&pool));
        crash_and_serve(&pool);
        let next = daemon(&pool);
        pool.unmount();
        assert!(!keeper.lives() && !serves.lives() && !next.lives());
    }
}

/// It was asked to end, so no other one is started. Its branch hangs, which makes the end long.
#[test]
fn a_daemon_that_dies_while_it_ends_is_not_started_again() {
    needs!(mounting());
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("log");
    let pool = lab::pool().tmp_branch("b").served_branch("a").option("transport=dev,restart=keep");
    let mut pool = pool.option(&format!("branch-timeout=20,log={}", log.display())).mount();
    pool.write("file", b"x");
    let held = File::open(pool.at("file")).unwrap();
    let (keeper, dies) = (pool.daemon(), daemon(&pool));
    let frozen = FrozenDaemon::new(lab::daemon::server_of(pool.branch("a").path()).unwrap());
    keeper.signal(Signal::TERM).unwrap();
    until("it ends", || fs::read_to_string(&log).unwrap().contains("pool in use"));
    dies.kill().unwrap();
    drop(frozen);
    until("the keeper ends", || !keeper.lives());
    let told = fs::read_to_string(&log).unwrap();
    assert!(told.contains("not started again: it was ending the pool"), "{told}");
    assert!(lab::mounts::at(pool.path()).unwrap().is_none(), "still mounted");
    drop(held);
    pool.remount();
    assert_eq!(pool.read("file"), b"x");
}

/// Where sessions are scheduling groups (autogroup), threads of a daemon in another one's session have another priority.
#[test]
fn each_daemon_of_a_keeper_leads_a_session() {
    needs!(mounting());
    let pool = pool(&[]);
    let session = |of: Process| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", of.pid)).unwrap();
        let after_name = stat.rsplit(')').next().unwrap();
        after_name.split_whitespace().nth(3).unwrap().to_owned()
    };
    let leads = |of: Process| session(of) == of.pid.to_string();
    assert!(leads(pool.daemon()) && leads(daemon(&pool)));
    crash_and_serve(&pool);
    assert!(leads(daemon(&pool)), "the next one is in the session {}", session(daemon(&pool)));
}

#[test]
fn signals_reach_the_daemon_by_the_keeper() {
    needs!(mounting());
    let pool = pool(&[]);
    let level = || crate::command::output_of(&["get", &at(&pool), "log-level"]);
    assert!(level().contains("info"), "{}", level());
    pool.daemon().signal(Signal::USR1).unwrap();
    until("the level is raised", || level().contains("debug"));
}

#[test]
fn without_its_keeper_the_daemon_serves_on_and_says_so() {
    needs!(mounting());
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("log");
    let pool = pool(&[&format!("log={}", log.display())]);
    let serves = daemon(&pool);
    pool.daemon().kill().unwrap();
    pool.write("file", b"x");
    assert_eq!(pool.read("file"), b"x");
    until("the log says so", || fs::read_to_string(&log).unwrap().contains("the keeper"));
    let told = json("status", &["status", &at(&pool)]);
    assert_eq!(told["pools"][0]["restart"], "lost");
    sh("/", &format!("umount {}", pool.path().display()));
    until("it ends", || !serves.lives());
}

#[test]
fn what_cannot_be_kept_is_refused_with_the_reason() {
    needs!(mounting());
    let refuses = |option: &str, why: &str| {
        let tried = lab::pool()
            .tmp_branch("a")
            .option("transport=dev")
            .option("restart=keep")
            .option(option)
            .try_mount();
        let said = tried.err().map(|refused| refused.said).unwrap_or_default();
        assert!(said.contains(why) && said.lines().count() == 1, "{option}: {said}");
    };
    refuses("transport=ring", "use transport=dev");
    refuses("locks=branch", "use locks=local");
    let pool = pool(&[]);
    assert_eq!(json("status", &["status", &at(&pool)])["pools"][0]["transport"], "dev");
    let plain = lab::pool().tmp_branch("a").mount();
    assert_eq!(json("status", &["status", &at(&plain)])["pools"][0]["restart"], "off");
}

/// Both are said by `status`: kept by /dev/fuse, though a ring could be had; not kept where a ring was asked for.
#[test]
fn restart_auto_keeps_where_that_is_possible() {
    needs!(mounting(), rings());
    let restart = |pool: &Pool| json("status", &["status", &at(pool)])["pools"][0]["restart"].clone();
    let mount = |transport: &str| {
        lab::pool().tmp_branch("a").option(&format!("transport={transport}")).option("restart=auto").mount()
    };
    let kept = mount("auto");
    assert_eq!(restart(&kept), "keep");
    assert_eq!(json("status", &["status", &at(&kept)])["pools"][0]["transport"], "dev");
    kept.write("file", b"words");
    crash_and_serve(&kept);
    assert_eq!(kept.read("file"), b"words");
    assert_eq!(restart(&mount("ring")), "off");
}

/// Keeper and daemon have one table of descriptors, and the keeper needs some of its own before it can close any.
#[test]
fn a_daemon_that_has_opened_all_that_it_may_is_started_again() {
    needs!(mounting(), program("prlimit"), program("setpriv"));
    let helper = lab::daemon::helper().unwrap();
    let scripts = tempfile::tempdir().unwrap();
    let script = scripts.path().join("limited");
    // Root without this right may not raise its limits.
    let run = format!(
        "#!/bin/sh\nexec prlimit --nofile=300:300 setpriv --bounding-set -sys_resource '{}' \"$@\"\n",
        helper.display()
    );
    fs::write(&script, run).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    for write_path in ["stacked", "passthrough"] {
        let pool = lab::pool().tmp_branch("a").option("transport=dev").option("restart=keep");
        let pool = pool.option(&format!("write-path={write_path}")).helper(&script).mount();
        // The number of open directories is as at the mount.
        output_of(&["set", &at(&pool), "entry-timeout=5"]);
        let mut files = Vec::new();
        let refused = loop {
            assert!(files.len() < 1000, "nothing was refused");
            let opened = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(pool.at(files.len().to_string()));
            match opened {
                Ok(file) => files.push(file),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.raw_os_error(), Some(Errno::NFILE.raw_os_error()), "{refused}");
        crash_and_serve(&pool);
        for (n, file) in files.iter().enumerate() {
            file.write_all_at(n.to_string().as_bytes(), 0).unwrap();
        }
        for n in 0..files.len() {
            assert_eq!(pool.read(n.to_string()), n.to_string().as_bytes(), "{write_path}");
        }
    }
}
