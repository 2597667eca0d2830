//! Branches change out of band under a pool, with and without the system's events.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fsstack_lab::{self as lab, Pool, Skip, needs};

use crate::script::{log_with, sh, ways};

/// The kernel's caches outlast the test unless they are invalidated.
const LONG: &[&str] = &["attr-timeout=600", "entry-timeout=600", "negative-timeout=600"];

fn watched() -> Result<Pool, Skip> {
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("out-of-band=watch");
    let log = tempfile::NamedTempFile::new().unwrap();
    let pool = LONG.iter().fold(pool, |pool, option| pool.option(option));
    let pool = pool.option(&format!("log={}", log.path().display())).mount();
    let said = log_with(log.path(), "branches mounted");
    match said.lines().find(|line| line.contains("out-of-band=watch")) {
        Some(why) => {
            // Without time and path, so that equal reasons are counted together.
            let check = why.split_once("INFO ").map_or(why, |(_, check)| check);
            Err(Skip::because(check.split(" branch=").next().unwrap_or(check)))
        }
        None => Ok(pool),
    }
}

/// Repeats `ask` until the result is `wanted`; returns the last result.
fn soon<T: PartialEq + std::fmt::Debug>(wanted: T, ask: impl Fn() -> T) {
    let began = Instant::now();
    loop {
        let check = ask();
        if check == wanted {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{check:?}, and never {wanted:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn changes_on_a_watched_branch_are_seen_at_once() {
    needs!(mounting());
    let pool = match watched() {
        Ok(pool) => pool,
        Err(skip) => return skip.announce(),
    };
    let (a, b) = (pool.branch("a").path(), pool.branch("b").path());
    let read = |name: &str| fs::read_to_string(pool.at(name)).ok();
    let text = |text: &str| Some(text.to_owned());
    fs::create_dir_all(b.join("d/sub")).unwrap();
    fs::write(b.join("d/one"), "1").unwrap();
    soon(text("1"), || read("d/one"));
    assert_eq!(read("d/new"), None);

    // Create, where the name was cached as missing.
    fs::write(b.join("d/new"), "new").unwrap();
    soon(text("new"), || read("d/new"));
    // Create on an earlier branch, with a new copy of the directory: it wins.
    fs::create_dir(a.join("d")).unwrap();
    fs::write(a.join("d/one"), "first").unwrap();
    soon(text("first"), || read("d/one"));
    assert_eq!(pool.list("d"), ["new", "one", "sub"]);
    // Delete: the later file is uncovered.
    fs::remove_file(a.join("d/one")).unwrap();
    soon(text("1"), || read("d/one"));
    fs::remove_file(b.join("d/one")).unwrap();
    soon(None, || read("d/one"));
    // Rename, and replace.
    fs::rename(b.join("d/new"), b.join("d/sub/moved")).unwrap();
    soon((None, text("new")), || (read("d/new"), read("d/sub/moved")));
    fs::write(b.join("other"), "other").unwrap();
    fs::rename(b.join("other"), b.join("d/sub/moved")).unwrap();
    soon(text("other"), || read("d/sub/moved"));
    // Renames a directory with its content.
    fs::rename(b.join("d/sub"), b.join("d/bus")).unwrap();
    soon((None, text("other")), || (read("d/sub/moved"), read("d/bus/moved")));
    fs::remove_dir(a.join("d")).unwrap();
    soon(text("other"), || read("d/bus/moved"));
}

#[test]
fn attributes_changed_on_a_watched_branch_are_seen_at_once() {
    needs!(mounting());
    let pool = match watched() {
        Ok(pool) => pool,
        Err(skip) => return skip.announce(),
    };
    let b = pool.branch("b").path();
    fs::create_dir_all(b.join("d")).unwrap();
    fs::write(b.join("d/file"), "1").unwrap();
    let stat = |name: &str| {
        fs::metadata(pool.at(name)).map(|stat| (stat.mode() & 0o7777, stat.nlink(), stat.len())).ok()
    };
    sh(b, "chmod 644 d/file; chmod 755 d");
    soon(Some((0o644, 1, 1)), || stat("d/file"));
    sh(b, "chmod 600 d/file");
    soon(Some((0o600, 1, 1)), || stat("d/file"));
    // A hard link in a directory unknown to the kernel; and a change by that name.
    sh(b, "mkdir -p far/away; ln d/file far/away/link");
    soon(Some((0o600, 2, 1)), || stat("d/file"));
    sh(b, "chmod 640 far/away/link; rm far/away/link");
    soon(Some((0o640, 1, 1)), || stat("d/file"));
    sh(b, "printf 22 > d/file");
    soon(Some((0o640, 1, 2)), || stat("d/file"));
    assert_eq!(pool.read("d/file"), b"22");
    sh(b, "chmod 700 d; setfattr -n user.x -v y d/file 2> /dev/null || :");
    soon(Some(0o700), || stat("d").map(|(mode, ..)| mode));
}

#[test]
fn more_than_the_system_keeps_in_mind_is_seen_too() {
    needs!(mounting());
    let pool = match watched() {
        Ok(pool) => pool,
        Err(skip) => return skip.announce(),
    };
    let b = pool.branch("b").path();
    sh(b, "mkdir d; echo 1 > d/file");
    soon(true, || pool.at("d/file").exists());
    assert!(!pool.at("d/new").exists());
    // The queue has 16 384 slots: while the daemon is stopped, the last events are dropped.
    let daemon = pool.daemon();
    daemon.signal(rustix::process::Signal::STOP).unwrap();
    sh(b, "mkdir noise; (cd noise; seq 20000 | xargs touch); rm d/file; echo 2 > d/new");
    daemon.signal(rustix::process::Signal::CONT).unwrap();
    soon((false, true), || (pool.at("d/file").exists(), pool.at("d/new").exists()));
}

#[test]
fn without_notices_changes_are_seen_after_the_timeouts() {
    needs!(mounting());
    for option in ["out-of-band=timeout", "entry-timeout=0.2"] {
        let pool = lab::pool().tmp_branch("a").tmp_branch("b").option(option).mount();
        let b = pool.branch("b").path();
        sh(b, "mkdir d; echo 1 > d/file; chmod 644 d/file");
        assert_eq!(pool.read("d/file"), b"1\n");
        sh(b, "echo 22 > d/file; chmod 600 d/file; echo 3 > d/new");
        assert_eq!(pool.read("d/new"), b"3\n", "a missing name is not believed");
        soon((0o600, 3), || fs::metadata(pool.at("d/file")).map(|s| (s.mode() & 0o7777, s.len())).unwrap());
        sh(b, "mv d/file d/moved");
        soon((false, true), || (pool.at("d/file").exists(), pool.at("d/moved").exists()));
    }
}

#[test]
fn unchanged_names_are_cached_for_long() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("out-of-band=never").mount();
    pool.mkdir("d");
    pool.write("d/file", b"x");
    assert!(!pool.at("d/missing").exists());
    // Changes through the pool show at once.
    pool.write("d/missing", b"y");
    fs::rename(pool.at("d/file"), pool.at("d/moved")).unwrap();
    assert_eq!(pool.list("d"), ["missing", "moved"]);
    sh(
        pool.path(),
        "chmod 600 d/moved; ln d/moved link; [ $(stat -c '%a %h' d/moved) = '600 2' ] || stat d/moved; rm -r d link; ls -A",
    );
}

/// Number of voluntary context switches of each of a daemon's threads.
fn switches(pool: &Pool) -> BTreeMap<PathBuf, u64> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pool.daemon().pid)).unwrap();
    let of = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        Some((task.path(), line.trim().parse::<u64>().ok()?))
    };
    tasks.filter_map(|task| of(task.unwrap())).collect()
}

/// Names of the daemon's threads that woke within a second, with how often. Without the one that watches the mount table:
/// each mount and unmount on the machine wakes it, those of tests beside this one too.
fn woken(pool: &Pool) -> Vec<(String, u64)> {
    let before = switches(pool);
    std::thread::sleep(Duration::from_secs(1));
    let count = |(task, now): (PathBuf, u64)| {
        let more = now - before.get(&task).unwrap_or(&0);
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        (more > 0 && name.trim_end() != "mount-table").then(|| (name.trim_end().to_owned(), more))
    };
    switches(pool).into_iter().filter_map(count).collect()
}

#[test]
fn the_pools_own_changes_cause_no_event_and_an_idle_pool_sleeps() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", lab::MiB(300)).option("out-of-band=watch").mount();
    sh(
        pool.path(),
        "mkdir d; for i in $(seq 2000); do echo $i > d/$i; done; for i in $(seq 1000); do mv d/$i d/m$i; done; rm -r d",
    );
    // Nothing happens on the file system: eventually no thread wakes for a whole second.
    soon(Vec::new(), || woken(&pool));
}

/// Another host, or a program on the branch, appends to the same log: each line goes after the last one.
#[test]
fn two_appenders_on_different_paths_lose_no_line() {
    needs!(mounting());
    for way in ways().filter(|way| way.len() == 1) {
        let kinds: [fn(lab::Builder) -> lab::Builder; 2] =
            [|pool| pool.tmp_branch("a"), |pool| pool.served_branch("a")];
        for with_branch in kinds {
            let mut pool = with_branch(lab::pool()).unmounted();
            pool.remount_with(way);
            pool.write("log", b"");
            let served = pool.branch("a").below();
            let beside = if served.exists() { served } else { pool.branch("a").path().to_owned() };
            let append = |path: PathBuf| OpenOptions::new().append(true).open(path).unwrap();
            let (mut ours, mut theirs) = (append(pool.at("log")), append(beside.join("log")));
            let mut expected = String::new();
            for n in 0..20 {
                for (log, who) in [(&mut ours, "pool"), (&mut theirs, "branch")] {
                    let line = format!("{n} by the {who}\n");
                    log.write_all(line.as_bytes()).unwrap();
                    expected += &line;
                }
            }
            let stored = fs::read_to_string(beside.join("log")).unwrap();
            assert_eq!(stored, expected, "{way:?}, beside {}", beside.display());
        }
    }
}
