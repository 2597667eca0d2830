//! A branch that is mounted again while calls are stuck in its old mount, whose server is frozen: the new mount is used
//! as if there were none. On both transports.

use std::fs;
use std::thread;

use fsstack_lab::branch::Kind;
use fsstack_lab::pool::Builder;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, Pool, needs, until};

use crate::hung_branches::{FrozenDaemon, described, filled};

/// Permits of the branch.
const PERMITS: usize = 4;

fn errno_of(path: &std::path::Path) -> Option<i32> {
    fs::read(path).err().and_then(|error| error.raw_os_error())
}

/// Runs `callers` programs with requests to the frozen branch, and waits until all are answered.
fn stuck(pool: &Pool, callers: usize) {
    let asked: Vec<_> = (0..callers)
        .map(|n| {
            let file = pool.at(format!("on-a/{n}"));
            thread::spawn(move || errno_of(&file))
        })
        .collect();
    asked.into_iter().for_each(|asked| assert_eq!(asked.join().unwrap(), Some(5)));
}

fn is_used_whatever_is_stuck(builder: Builder, callers: usize) {
    let mut pool = filled(builder);
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    stuck(&pool, callers);
    pool.branch_mut("a").unmount_lazily();
    pool.branch_mut("a").remount();
    until("the branch is used again", || fs::read(pool.at("on-a/30")).is_ok());
    // By as many as may be inside, and by those that wait for them.
    for _ in 0..10 {
        let asked: Vec<_> = (0..3 * PERMITS)
            .map(|n| {
                let file = pool.at(format!("on-a/{}", 28 + n));
                thread::spawn(move || errno_of(&file))
            })
            .collect();
        asked.into_iter().for_each(|asked| assert_eq!(asked.join().unwrap(), None));
    }
    frozen.0.kill().unwrap();
}

fn few(transport: &str) -> Builder {
    described().option(&format!("branch-inflight={PERMITS}")).option(&format!("transport={transport}"))
}

#[test]
fn a_branch_mounted_again_is_used_with_all_permits_stuck_in_the_old_mount_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    is_used_whatever_is_stuck(few("dev"), PERMITS);
}

#[test]
fn a_branch_mounted_again_is_used_with_all_permits_stuck_in_the_old_mount_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    is_used_whatever_is_stuck(few("ring"), PERMITS);
}

#[test]
fn a_branch_mounted_again_is_used_with_twenty_four_calls_stuck_in_the_old_mount_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    is_used_whatever_is_stuck(described().option("transport=dev"), 24);
}

#[test]
fn a_branch_mounted_again_is_used_with_twenty_four_calls_stuck_in_the_old_mount_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    is_used_whatever_is_stuck(described().option("transport=ring"), 24);
}

/// Number of threads of the process `pid` that wait for a reply of a FUSE file system.
fn waiting(pid: i32) -> usize {
    let tasks =
        fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().map(|task| task.path().join("wchan"));
    tasks.filter(|at| fs::read_to_string(at).is_ok_and(|at| at.contains("request_wait_answer"))).count()
}

/// The directory `e` is being opened on the old mount when the branch is mounted again, and the open succeeds
/// afterwards.
fn is_not_entered_by_the_old_mount(transport: &str) {
    let mut pool = lab::pool()
        .tmp_branch("b")
        .branch("a", Kind::Numbered)
        .option("write-path=stacked")
        .option("attr-timeout=600")
        .option("entry-timeout=600")
        .option("branch-timeout=1")
        .option(&format!("transport={transport}"))
        .unmounted();
    let home = pool.branch("a").path().join("d/e");
    fs::create_dir_all(&home).unwrap();
    fs::write(home.join("file"), "content").unwrap();
    fs::write(home.join("../beside"), "beside").unwrap();
    pool.remount();
    let dir = pool.at("d/e");
    // The kernel knows `e`, the daemon has `d` open and `e` closed. An open directory is not forgotten when the branch
    // is mounted again.
    let _known = fs::File::open(&dir).unwrap();

    let old = pool.branch("a").daemon();
    let frozen = FrozenDaemon::new(old);
    let listed = fs::read_dir(&dir).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    assert_eq!(listed.err().and_then(|error| error.raw_os_error()), Some(5));
    let daemon = pool.daemon().pid;
    assert!(waiting(daemon) > 0, "a thread is stuck in the old mount");
    pool.branch_mut("a").unmount_lazily();
    pool.branch_mut("a").remount();
    until("the branch is used again", || fs::read(pool.at("d/beside")).is_ok());
    drop(frozen);
    until("the old mount has answered", || waiting(daemon) == 0);
    for _ in 0..20 {
        assert_eq!(pool.read("d/e/file"), b"content");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        pool.write("d/e/new", b"new");
        fs::remove_file(dir.join("new")).unwrap();
    }
}

#[test]
fn a_directory_that_was_being_opened_on_the_old_mount_is_entered_on_the_new_one_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    is_not_entered_by_the_old_mount("dev");
}

#[test]
fn a_directory_that_was_being_opened_on_the_old_mount_is_entered_on_the_new_one_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    is_not_entered_by_the_old_mount("ring");
}

/// Set in a process with its own mount namespace.
const ALONE: &str = "FSSTACK_TEST_ALONE";

/// The branch is detached while interrupted operations on it are being settled, which another branch delays. It is not
/// up then, and the change of the mount table gives no new cause for a probe; the next change, by any process, would.
/// So the test runs where no other process mounts anything.
#[test]
fn a_branch_that_is_detached_while_it_is_being_probed_is_missed() {
    needs!(mounting(), program("mergerfs"), program("unshare"));
    if std::env::var_os(ALONE).is_none() {
        let me = std::env::current_exe().unwrap();
        let test = "mounted_again::a_branch_that_is_detached_while_it_is_being_probed_is_missed";
        let alone = command("unshare").args(["--mount", "--propagation=private"]).arg(me);
        let alone = alone.args(["--exact", test, "--nocapture"]).env(ALONE, "1");
        let ran = alone.limit(std::time::Duration::from_secs(300)).run().unwrap();
        assert!(ran.stdout.contains("1 passed"), "{}", ran.stdout);
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("log");
    let mut pool = lab::pool()
        .served_branch("a")
        .served_branch("z")
        .option("write-path=stacked")
        .option("attr-timeout=0")
        .option("entry-timeout=0")
        .option("branch-timeout=30")
        .option(&format!("log={}", log.display()))
        .unmounted();
    let dir = pool.branch("a").path().join("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "content").unwrap();
    pool.remount();
    assert_eq!(pool.read("d/file"), b"content");
    let says = |what: &str| fs::read_to_string(&log).unwrap().contains(what);

    let frozen = FrozenDaemon::new(pool.branch("z").daemon());
    pool.branch_mut("a").unmount_lazily();
    until("the branch is down", || says("its mount is gone"));
    pool.branch_mut("a").remount();
    let daemon = pool.daemon().pid;
    let settles = || {
        let tasks = fs::read_dir(format!("/proc/{daemon}/task")).unwrap().flatten();
        let mut names = tasks.flat_map(|task| fs::read_to_string(task.path().join("comm")));
        names.any(|name| name.starts_with("settle-"))
    };
    until("what was interrupted is being settled", settles);
    pool.branch_mut("a").unmount_lazily();
    until("the branch is used again", || says("branch mounted again"));
    drop(frozen);
    until("the branch is missed", || errno_of(&pool.at("d/file")) == Some(5));
    pool.branch_mut("a").remount();
    until("the branch is used again", || fs::read(pool.at("d/file")).is_ok());
}
