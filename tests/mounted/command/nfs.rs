//! `fsstack nfs`: configuration for servers, and faulty exports.

use std::fs::File;
use std::time::{Duration, Instant};

use fsstack_lab::shell::which;
use fsstack_lab::{self as lab, Kind, MiB, Pool, needs, until};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use super::{at, branch, json, output_of, pool, refused, run};
use crate::handles::{check, forget, hold, moved};
use crate::handles_elsewhere::index;
use crate::hung_branches::{FrozenDaemon, described};
use crate::script::sh;

#[test]
fn an_exported_pool_tells_what_a_server_needs_and_passes_the_check() {
    needs!(mounting(), loops(), program("getfattr"));
    let pool = lab::pool().xfs_branch("x", MiB(300)).option("nfs-export").mount();
    let id = sh(pool.path(), "getfattr -n user.fsstack.id --only-values .");
    let shown = output_of(&["nfs", "show", &at(&pool), "--clients", "10.0.0.0/8"]);
    let line = format!("{} 10.0.0.0/8(rw,sync,no_subtree_check,mountpoint,fsid={id})", at(&pool));
    assert!(shown.lines().any(|shown| shown == line), "{shown}");
    assert!(shown.contains("EXPORT {"), "{shown}");
    // A reason for each option except rw.
    for option in ["fsid", "no_subtree_check", "mountpoint", "sync"] {
        assert!(shown.contains(&format!("\n# {option}: ")), "{option}: {shown}");
    }
    let shown = json("nfs-show", &["nfs", "show", &at(&pool), "--clients", "10.0.0.0/8"]);
    assert_eq!(
        (shown["exports_line"].as_str(), &shown["nfs_export"]),
        (Some(line.as_str()), &Value::Bool(true))
    );
    let checked = output_of(&["nfs", "check", &at(&pool)]);
    assert!(checked.contains("ok    nfs-export: on") && checked.contains("ok    handle:"), "{checked}");
    assert!(checked.contains(": opens files by number\n"), "{checked}");
    assert!(checked.contains("ok    found anew: the daemon finds 0 of 0"), "{checked}");
}

/// Only clients of one server write; the printed options are accepted by `fsstack set`.
#[test]
fn the_only_writer_is_given_options_that_keep_names() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("nfs-export").mount();
    let at = at(&pool);
    let shared = json("nfs-show", &["nfs", "show", &at]);
    assert!(shared["ganesha_block"].as_str().unwrap().contains("Attr_Expiration_Time = 0;"), "{shared}");
    assert!(
        shared["ganesha_core"].as_str().unwrap().contains("Getattrs_In_Complete_Read = false;"),
        "{shared}"
    );
    assert_eq!(shared["only_writer_options"], Value::Null);
    let alone = json("nfs-show", &["nfs", "show", &at, "--only-writer"]);
    assert!(alone["ganesha_block"].as_str().unwrap().contains("Attr_Expiration_Time = 60;"), "{alone}");
    let options = alone["only_writer_options"].as_str().unwrap();
    let shown = output_of(&["nfs", "show", &at, "--only-writer"]);
    assert!(shown.contains(&format!("# Mount the pool with {options}, for both servers")), "{shown}");
    let timeouts = |level: &str| {
        let checked = output_of(&["nfs", "check", &at]);
        assert!(checked.contains(&format!("{level:<6}timeouts: ")), "{level}: {checked}");
    };
    timeouts("ok");
    output_of(&[&["set", at.as_str()], options.split(',').collect::<Vec<_>>().as_slice()].concat());
    timeouts("warn");
    for option in ["entry-timeout", "attr-timeout", "negative-timeout"] {
        assert_eq!(output_of(&["get", &at, option]), "60\n", "{option}");
    }
}

#[test]
fn the_check_warns_of_a_branch_that_is_a_directory_of_a_larger_file_system() {
    needs!(mounting(), loops(), program("mkfs.btrfs"), program("btrfs"));
    let disks = lab::pool().xfs_branch("x", MiB(300)).btrfs_branch("b", MiB(200)).unmounted();
    let parts = ["x", "b"].map(|branch| disks.branch(branch).path().join("part"));
    std::fs::create_dir(&parts[0]).unwrap();
    sh(disks.branch("b").path(), "btrfs -q subvolume create part; mkdir part/deeper");
    let [x, b] = parts.map(|part| part.to_str().unwrap().to_owned());
    let deeper = format!("{b}/deeper");
    let pool = lab::pool().over(&[x.clone(), b.clone()]).option("nfs-export").mount();
    let checked = output_of(&["nfs", "check", &at(&pool)]);
    let warned = |checked: &str, path: &str| {
        let line = format!("warn  {path}: opens files by number, and is a directory of a larger file system");
        checked.lines().any(|shown| shown.starts_with(&line))
    };
    assert!(warned(&checked, &x), "{checked}");
    assert!(checked.contains(&format!("ok    {b}: opens files by number\n")), "{checked}");
    drop(pool);
    let pool = lab::pool().over(std::slice::from_ref(&deeper)).option("nfs-export").mount();
    let checked = output_of(&["nfs", "check", &at(&pool)]);
    assert!(warned(&checked, &deeper), "{checked}");
}

/// Without the kernel's cache: the daemon finds the objects by their handles alone.
#[test]
fn the_check_tells_what_is_found_by_its_handle_alone() {
    needs!(mounting(), loops(), drop_caches());
    let (pool, _) = moved();
    sh(pool.path(), "mkdir d/sub; touch d/sub/file; ln -s file d/link; mkfifo d/fifo");
    let checked = output_of(&["nfs", "check", &at(&pool)]);
    let names = sh(pool.path(), "find . -mindepth 1 | wc -l");
    let all = format!("ok    found anew: the daemon finds {0} of {0} by their handles alone", names.trim());
    assert!(checked.contains(&all) && !checked.contains("were not tried"), "{checked}");
    // A moved file, and directories that were made for it on the other branch.
    let index = checked.lines().find(|line| line.contains("found by the index: ")).unwrap();
    assert!(
        index.starts_with("ok    ") && index.ends_with("0 are gone, 0 out of reach, 0 not tried"),
        "{index}"
    );
}

/// Where objects cannot be opened by number, unknown ones are not searched for a check.
#[test]
fn the_check_looks_through_no_branch() {
    needs!(mounting(), drop_caches());
    let mut pool = lab::pool().tmpfs_branch("t", MiB(100)).option("nfs-export").mount();
    sh(pool.path(), "mkdir d; touch d/file");
    let checked = output_of(&["nfs", "check", &at(&pool)]);
    let none = "warn  found anew: the daemon finds 0 of 2";
    assert!(checked.contains(none) && checked.contains("; 2 were not tried"), "{checked}");
    // After a request for the handle, all existing objects are known.
    let held = hold(&pool, "d/file");
    pool.remount();
    forget();
    check(&pool, &held);
    let checked = output_of(&["nfs", "check", &at(&pool)]);
    assert!(checked.contains("ok    found anew: the daemon finds 2 of 2"), "{checked}");
}

/// A FUSE server may number a file anew after each FORGET of the kernel.
#[test]
fn the_check_fails_where_a_branch_shows_other_numbers_than_it_lists() {
    needs!(mounting(), program("mergerfs"));
    for (kind, fails) in [(Kind::Served, true), (Kind::Numbered, false)] {
        let pool = lab::pool().branch("s", kind).option("nfs-export").mount();
        pool.write("file", b"");
        let checked = run(&["nfs", "check", &at(&pool)]);
        let told = checked.stdout.contains("file: its inode number is not the one that the directory lists");
        assert_eq!((told, checked.code == 1), (fails, fails), "{}", checked.stdout);
    }
}

/// The kernel knows the object and opens its handle. Once it has forgotten it, the handle is stale, and the check
/// reports that.
#[test]
fn the_check_fails_where_handles_do_not_last() {
    needs!(mounting(), loops(), program("mkfs.btrfs"), program("btrfs"));
    let pool = lab::pool().btrfs_branch("b", MiB(200)).option("nfs-export").mount();
    sh(pool.branch("b").path(), "btrfs -q subvolume create sub; touch sub/file beside");
    let checked = run(&["nfs", "check", &at(&pool)]);
    assert_eq!(checked.code, 1, "{}", checked.stdout);
    let file = format!("fail  found anew: {}/sub/file: the daemon takes it to be gone", at(&pool));
    assert!(checked.stdout.contains(&file), "{}", checked.stdout);
    assert!(!checked.stdout.contains("beside:"), "{}", checked.stdout);
}

/// An index in memory is complete while the pool is mounted, and no longer.
#[test]
fn the_check_tells_of_an_index_that_does_not_last() {
    needs!(mounting(), loops());
    let mut pool = lab::pool().xfs_branch("x", MiB(300)).option("nfs-export").mount();
    let complete = |pool: &Pool| {
        until("the index is complete", || index(pool).starts_with("complete"));
        output_of(&["nfs", "check", &at(pool)])
    };
    let checked = complete(&pool);
    assert!(checked.contains("ok    index: complete, 0 objects\n"), "{checked}");
    pool.unmount();
    sh(pool.state_dir(), "cd */; rm index.redb; mkdir index.redb");
    pool.remount();
    let checked = complete(&pool);
    let lasts = "warn  index: complete, 0 objects, until the pool is unmounted: ";
    assert!(checked.contains(lasts), "{checked}");
}

#[test]
fn programs_that_hold_an_exported_pool_are_named() {
    needs!(mounting());
    let log = tempfile::NamedTempFile::new().unwrap();
    let builder = lab::pool().tmp_branch("a").option("nfs-export");
    let mut pool = builder.option(&format!("log={}", log.path().display())).mount();
    let held = File::open(pool.path()).unwrap();
    let us = format!("(process {}) uses it", std::process::id());
    let checked = output_of(&["nfs", "check", &at(&pool)]);
    assert!(checked.lines().any(|line| line.contains("to unmount") && line.contains(&us)), "{checked}");
    // A signal unmounts the pool although a process holds it; the log names the process.
    let daemon = pool.daemon();
    daemon.signal(Signal::TERM).unwrap();
    let began = Instant::now();
    let said = || std::fs::read_to_string(log.path()).unwrap();
    while !said().contains(&format!("pool held by {}", us_by_name(&us))) {
        assert!(began.elapsed() < Duration::from_secs(60), "{}", said());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(held);
    daemon.wait(Duration::from_secs(60)).unwrap();
    pool.unmount();
}

/// The line in the log, after the process's name.
fn us_by_name(us: &str) -> String {
    format!("{} {us}", std::fs::read_to_string("/proc/self/comm").unwrap().trim_end())
}

#[test]
fn a_pool_that_is_not_for_export_fails_the_check_and_is_not_installed() {
    needs!(mounting());
    let pool = pool();
    let checked = run(&["nfs", "check", &at(&pool)]);
    assert_eq!(checked.code, 1, "{}", checked.stderr);
    assert!(checked.stdout.contains("fail  nfs-export: off"), "{}", checked.stdout);
    let shown = output_of(&["nfs", "show", &at(&pool)]);
    assert!(shown.starts_with("# NOT YET: the pool is mounted without nfs-export"), "{shown}");
    let (code, why) = refused(&["nfs", "show", &at(&pool), "--clients", "nobody.invalid", "--install"]);
    assert_eq!(code, 1);
    assert!(why.contains("mounted without nfs-export"), "{why}");
}

/// Values that exports(5) would take for all hosts, for options, or for another line.
#[test]
fn clients_are_looked_at_before_they_are_written() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("nfs-export").mount();
    for clients in ["", " ", "a(ro)", "a\n/ *(rw)", "-rw"] {
        for install in [&[][..], &["--install"]] {
            let (code, why) =
                refused(&[&["nfs", "show", &at(&pool), &format!("--clients={clients}")], install].concat());
            assert_eq!(code, 2, "{clients:?}: {why}");
        }
    }
}

/// Facts that need no answer from the branch are shown: branches, exports, programs that hold the pool.
#[test]
fn a_daemon_that_stands_still_does_not_keep_the_check() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("nfs-export").mount();
    let held = File::open(pool.path()).unwrap();
    let frozen = FrozenDaemon::new(pool.daemon());
    let checked = run(&["nfs", "check", &at(&pool)]);
    drop((frozen, held));
    assert_eq!(checked.code, 1, "{}", checked.stderr);
    let branch = format!("  {}: ", branch(&pool, "a"));
    let us = format!("(process {}) uses it", std::process::id());
    for expected in ["fail  pool: its daemon is stopped", &branch, "exports: ", &us] {
        assert!(checked.stdout.contains(expected), "{expected}: {}{}", checked.stdout, checked.stderr);
    }
}

/// It has no open descriptors: it is executed or mapped.
#[test]
fn programs_that_run_from_an_exported_pool_are_named() {
    needs!(mounting(), root());
    let pool = lab::pool().tmp_branch("a").option("nfs-export").mount();
    // A program, and a library, which the loader closes after mapping it.
    let library = sh("/", "ldd $(command -v sleep) | grep -o '/[^ ]*libc[^ ]*' | head -n 1");
    std::fs::copy(which("sleep").unwrap(), pool.at("program")).unwrap();
    std::fs::copy(library.trim(), pool.at("library")).unwrap();
    let started = |how: &str| {
        let pid = sh("/", &format!("cd {}; at=$PWD; cd /; {how} 60 >/dev/null 2>&1 & echo $!", at(&pool)));
        Pid::from_raw(pid.trim().parse().unwrap()).unwrap()
    };
    let (runs, maps) = (started("$at/program"), started("LD_PRELOAD=$at/library sleep"));
    let maps_it = |line: &str| line.contains(&at(&pool));
    until("the library is mapped", || {
        std::fs::read_to_string(format!("/proc/{maps}/maps")).unwrap().lines().any(maps_it)
    });
    let checked = output_of(&["nfs", "check", &at(&pool)]);
    for holder in [runs, maps] {
        rustix::process::kill_process(holder, Signal::KILL).unwrap();
    }
    for it in [format!("program (process {runs}) uses it"), format!("sleep (process {maps}) uses it")] {
        assert!(checked.contains(&format!("to unmount: {it}")), "{it}: {checked}");
    }
}

/// A line without clients would export to all hosts.
#[test]
fn only_named_clients_get_the_export() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("nfs-export").mount();
    let shown = output_of(&["nfs", "show", &at(&pool)]);
    let line = format!("{} CLIENTS(rw,", at(&pool));
    assert!(shown.lines().any(|shown| shown.starts_with(&line)), "{shown}");
    assert!(shown.contains("\n# CLIENTS: ") && !shown.contains("*("), "{shown}");
    let named = output_of(&["nfs", "show", &at(&pool), "--clients", "*"]);
    assert!(named.contains(" *(rw,") && !named.contains("CLIENTS"), "{named}");
}

#[test]
fn a_branch_that_hangs_does_not_keep_the_check() {
    needs!(mounting(), root(), program("mergerfs"));
    let pool = described().option("nfs-export").mount();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let held = File::open(pool.path()).unwrap();
    let checked = run(&["nfs", "check", &at(&pool)]);
    drop((frozen, held));
    assert_eq!(checked.code, 1, "{}", checked.stderr);
    let hangs = format!("fail  {}: it hangs", branch(&pool, "a"));
    let us = format!("(process {}) uses it", std::process::id());
    for expected in [hangs.as_str(), "ok    nfs-export: on", "exports: ", &us] {
        assert!(checked.stdout.contains(expected), "{expected}: {}", checked.stdout);
    }
}
