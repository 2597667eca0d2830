//! A branch whose daemon is frozen: its requests cost a timeout, other requests nothing; and everything works when it
//! is thawed. On both transports.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use fsstack_lab::cleanup::Entry;
use fsstack_lab::daemon::{self, Process};
use fsstack_lab::pool::{Builder, Pool};
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, needs, until};
use rustix::process::Signal;

use crate::command as operator;
use crate::stress::Served;

const EIO: Option<i32> = Some(5);

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// A daemon that is frozen until this is dropped.
pub(crate) struct FrozenDaemon(pub(crate) Process);

impl FrozenDaemon {
    pub(crate) fn new(daemon: Process) -> Self {
        daemon.signal(Signal::STOP).unwrap();
        // Each thread stops when it next returns to the program. One that waits for a disk is inside the kernel.
        let stands = |task: fs::DirEntry| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['T', 'D']))
        };
        let tasks = || fs::read_dir(format!("/proc/{}/task", daemon.pid)).unwrap();
        until("the daemon stands still", || tasks().all(|task| task.is_ok_and(stands)));
        Self(daemon)
    }
}

impl Drop for FrozenDaemon {
    fn drop(&mut self) {
        // A process that has ended needs no thaw.
        let _thawed = self.0.signal(Signal::CONT);
    }
}

/// Number of this test's threads that wait for a reply of a FUSE file system.
pub(crate) fn callers_waiting() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("wchan"));
    tasks.filter(|at| fs::read_to_string(at).is_ok_and(|at| at.contains("request_wait_answer"))).count()
}

pub(crate) fn no_file_is_open(pool: &Pool) -> bool {
    let status = operator::json("status", &["status", &operator::at(pool)]);
    status["pools"][0]["branches"].as_array().unwrap().iter().all(|branch| branch["open_files"] == 0)
}

/// `a` is served by another daemon, `b` is a plain directory; calls may stay in `a` for a second.
pub(crate) fn described() -> Builder {
    lasting_a_second(lab::pool().tmp_branch("b").served_branch("a"))
}

pub(crate) fn lasting_a_second(branches: Builder) -> Builder {
    branches
        .option("create=ff")
        .option("write-path=stacked")
        .option("attr-timeout=0")
        .option("entry-timeout=0")
        .option("branch-timeout=1")
}

pub(crate) fn filled(builder: Builder) -> Pool {
    let mut pool = builder.unmounted();
    for (branch, dir) in [("a", "on-a"), ("b", "on-b")] {
        let home = pool.branch(branch).path().join(dir);
        fs::create_dir(&home).unwrap();
        for n in 0..40 {
            fs::write(home.join(n.to_string()), format!("{dir}/{n}")).unwrap();
        }
    }
    pool.remount();
    // Their locations are cached, one branch each.
    assert_eq!(pool.read("on-a/0"), b"on-a/0");
    assert_eq!(pool.read("on-b/0"), b"on-b/0");
    pool
}

fn works(pool: &Path) {
    for n in 0..40 {
        assert_eq!(fs::read(pool.join(format!("on-b/{n}"))).unwrap(), format!("on-b/{n}").as_bytes());
    }
    fs::write(pool.join("on-b/new"), "new").unwrap();
    fs::rename(pool.join("on-b/new"), pool.join("on-b/newer")).unwrap();
    fs::create_dir(pool.join("on-b/dir")).unwrap();
    fs::remove_dir(pool.join("on-b/dir")).unwrap();
    fs::remove_file(pool.join("on-b/newer")).unwrap();
    assert_eq!(fs::read_dir(pool.join("on-b")).unwrap().count(), 40);
}

fn a_frozen_branch_costs_its_own_requests_a_deadline(builder: Builder) {
    let pool = filled(builder);
    let opened = OpenOptions::new().read(true).write(true).open(pool.at("on-a/1")).unwrap();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());

    // Many calls of every kind at once: all return an error.
    let back = Arc::new(AtomicUsize::new(0));
    let ask = |what: Box<dyn FnOnce() -> Option<i32> + Send>| {
        let back = back.clone();
        thread::spawn(move || {
            assert_eq!(what(), EIO);
            back.fetch_add(1, SeqCst);
        })
    };
    let mut asked = Vec::new();
    for n in 0..6 {
        let at = pool.at(format!("on-a/{n}"));
        let (read, stat, new, gone) = (at.clone(), at.clone(), pool.at(format!("on-a/new-{n}")), at.clone());
        let open = opened.try_clone().unwrap();
        asked.push(ask(Box::new(move || errno(fs::read(read)))));
        asked.push(ask(Box::new(move || errno(fs::symlink_metadata(stat)))));
        asked.push(ask(Box::new(move || errno(File::create_new(new)))));
        asked.push(ask(Box::new(move || errno(fs::remove_file(gone)))));
        asked.push(ask(Box::new(move || errno(open.write_all_at(&[b'x'; 100_000], 0)))));
    }
    until("all are answered", || back.load(SeqCst) == asked.len());
    asked.into_iter().for_each(|asked| asked.join().unwrap());
    // From now on calls fail at once: a timeout for each would exceed the limit here.
    let before = waiting(pool.branch("a").path());
    for _ in 0..200 {
        assert_eq!(errno(fs::read(pool.at("on-a/2"))), EIO);
    }
    // None of these calls reached the branch, except one probe at a time.
    let after = waiting(pool.branch("a").path());
    assert!(after <= before + 1, "{before} requests, then {after}");
    // The other branch works.
    works(pool.path());

    drop(frozen);
    until("the branch answers again", || fs::read(pool.at("on-a/30")).is_ok());
    for n in 30..40 {
        assert_eq!(pool.read(format!("on-a/{n}")), format!("on-a/{n}").as_bytes());
    }
    let mut text = String::new();
    File::open(pool.at("on-a/31")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "on-a/31");
    pool.write("on-a/after", b"after");
    assert_eq!(pool.read("on-a/after"), b"after");
    works(pool.path());
}

#[test]
fn a_name_that_is_remembered_opens_no_longer_than_the_deadline() {
    needs!(mounting(), program("mergerfs"));
    let pool = lab::pool()
        .served_branch("a")
        .tmp_branch("b")
        .option("create=ff")
        .option("branch-timeout=1")
        .option("entry-timeout=60")
        .option("attr-timeout=60")
        .mount();
    pool.write("file", b"x");
    assert_eq!(pool.read("file"), b"x");
    // While it is open by passthrough the kernel opens it on the branch once more, without the daemon.
    until("the file is closed", || no_file_is_open(&pool));
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    assert_eq!(errno(File::open(pool.at("file"))), EIO);
    drop(frozen);
    until("the branch comes back", || fs::read(pool.at("file")).is_ok());
}

#[test]
fn a_frozen_branch_costs_its_own_requests_a_deadline_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    a_frozen_branch_costs_its_own_requests_a_deadline(described().option("transport=dev"));
}

#[test]
fn a_frozen_branch_costs_its_own_requests_a_deadline_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    a_frozen_branch_costs_its_own_requests_a_deadline(described().option("transport=ring"));
}

#[test]
fn an_operator_is_answered_and_obeyed_while_a_branch_hangs() {
    needs!(mounting(), root(), program("mergerfs"));
    let pool = filled(described());
    let (at, a) = (operator::at(&pool), operator::branch(&pool, "a"));
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    // A request that needs the branch waits for it.
    let stuck = {
        let at = at.clone();
        thread::spawn(move || operator::run(&["write-path", &at, "passthrough"]))
    };
    until("the change is asked for", || stuck.is_finished() || asks(pool.daemon().pid));
    // No other request waits, and the branch can be set read-only.
    operator::output_of(&["get", &at, "create"]);
    operator::output_of(&["status", &at]);
    operator::output_of(&["set", &at, "create=mfs"]);
    assert_eq!(operator::output_of(&["branch", "mode", &at, &a, "RO"]), format!("{a}: RW -> RO\n"));
    operator::output_of(&["branch", "floor", &at, &a, "1G"]);
    // An earlier call stays inside.
    assert_eq!(errno(fs::read(pool.at("on-a/2"))), EIO);
    operator::output_of(&["branch", "remove", &at, &a]);
    assert!(!operator::output_of(&["status", &at]).contains(&a));
    works(pool.path());
    drop(frozen);
    let reply = stuck.join().unwrap();
    assert!(reply.code == 0 || reply.stderr.lines().count() == 1, "{}", reply.stderr);
}

/// True if a thread of the daemon serves an operator's request.
fn asks(daemon: i32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{daemon}/task")).unwrap();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().any(|task| name(task).starts_with("control-ask"))
}

/// Number of requests that the branch's daemon has not answered.
pub(crate) fn waiting(branch: &Path) -> usize {
    let connection = lab::mounts::at(branch).unwrap().unwrap().connection();
    let reply = fs::read_to_string(format!("/sys/fs/fuse/connections/{connection}/waiting")).unwrap();
    reply.trim().parse().unwrap()
}

/// Calls that were given up leave nothing behind: the daemon logs its tables at its end.
fn nothing_is_left_behind(builder: Builder) {
    let log = lab::cleanup::fresh("log").unwrap();
    fs::create_dir_all(&log).unwrap();
    let file = log.join("daemon.log");
    let mut pool = filled(builder.option(&format!("log={}", file.display())).option("log-level=debug"));
    for _ in 0..3 {
        let frozen = FrozenDaemon::new(pool.branch("a").daemon());
        let asked: Vec<_> = (0..12)
            .map(|n| {
                let (old, new) = (pool.at(format!("on-a/{n}")), pool.at(format!("on-a/new-{n}")));
                thread::spawn(move || {
                    assert_eq!(errno(if n % 2 == 0 { File::open(old) } else { File::create(new) }), EIO);
                })
            })
            .collect();
        asked.into_iter().for_each(|asked| asked.join().unwrap());
        drop(frozen);
        until("the branch answers again", || fs::read(pool.at("on-a/30")).is_ok());
    }
    // The kernel forgets; objects that it never received must be gone too.
    let at = operator::at(&pool);
    until("all is forgotten", || {
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        operator::json("status", &["status", &at])["pools"][0]["tables"]["inodes"] == 0
    });
    pool.unmount();
    let said = fs::read_to_string(&file).unwrap();
    fs::remove_dir_all(&log).unwrap();
    let held = said.lines().find(|line| line.contains("unmounted")).unwrap_or_else(|| panic!("{said}"));
    assert!(held.contains("files: 0") && held.contains("dirs: 0"), "{held}");
}

#[test]
fn nothing_is_left_behind_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    nothing_is_left_behind(described().option("transport=dev"));
}

#[test]
fn nothing_is_left_behind_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    nothing_is_left_behind(described().option("transport=ring"));
}

fn the_daemon_ends_with_a_branch_hung(builder: Builder) {
    let mut pool = filled(builder);
    let opened = File::open(pool.at("on-a/1")).unwrap();
    let daemon = pool.daemon();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let path = pool.at("on-a/2");
    let stuck = thread::spawn(move || drop(fs::read(path)));
    daemon.signal(Signal::TERM).unwrap();
    daemon.wait(Duration::from_secs(60)).unwrap();
    stuck.join().unwrap();
    drop(opened);
    drop(frozen);
    // Its connection may have been aborted.
    pool.unmount();
    pool.branch_mut("a").unmount_by_force();
}

#[test]
fn the_daemon_ends_with_a_branch_hung_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    the_daemon_ends_with_a_branch_hung(described().option("transport=dev"));
}

#[test]
fn the_daemon_ends_with_a_branch_hung_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    the_daemon_ends_with_a_branch_hung(described().option("transport=ring"));
}

/// The same by umount(8), once the stuck callers have their errors.
fn a_pool_is_unmounted_with_a_branch_hung(builder: Builder) {
    let mut pool = filled(builder);
    let daemon = pool.daemon();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    assert_eq!(errno(fs::read(pool.at("on-a/2"))), EIO);
    crate::script::sh("/", &format!("umount '{}'", pool.path().display()));
    daemon.wait(Duration::from_secs(60)).unwrap();
    drop(frozen);
    pool.unmount();
    pool.branch_mut("a").unmount_by_force();
}

#[test]
fn a_pool_is_unmounted_with_a_branch_hung_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    a_pool_is_unmounted_with_a_branch_hung(described().option("transport=dev"));
}

#[test]
fn a_pool_is_unmounted_with_a_branch_hung_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    a_pool_is_unmounted_with_a_branch_hung(described().option("transport=ring"));
}

/// No call is inside when it freezes; only the daemon's own close of a file goes there.
#[test]
fn the_daemon_ends_with_a_file_open_on_a_hung_branch() {
    needs!(mounting(), program("mergerfs"));
    let mut pool = filled(described());
    let opened = OpenOptions::new().write(true).open(pool.at("on-a/1")).unwrap();
    let daemon = pool.daemon();
    // Where nobody mounts it the daemon has to, before it may mount nothing more.
    assert!(Path::new("/sys/fs/fuse/connections").read_dir().unwrap().count() > 0, "fusectl is not mounted");
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    daemon.signal(Signal::TERM).unwrap();
    daemon.wait(Duration::from_secs(60)).unwrap();
    drop(opened);
    drop(frozen);
    pool.unmount();
    pool.branch_mut("a").unmount_by_force();
}

#[test]
fn a_branch_mounted_again_while_the_old_mount_hangs_is_used() {
    needs!(mounting(), program("mergerfs"));
    let mut pool = filled(described());
    let opened = File::open(pool.at("on-a/3")).unwrap();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    assert_eq!(errno(opened.read_at(&mut [0; 6], 0)), EIO);
    assert_eq!(errno(fs::read(pool.at("on-a/2"))), EIO);
    pool.branch_mut("a").unmount_lazily();
    pool.branch_mut("a").remount();
    until("the branch comes back", || fs::read(pool.at("on-a/2")).is_ok());
    works(pool.path());
    // An open file is opened anew below, but not while a call is stuck in it on the old mount: that is an error.
    assert_eq!(errno(opened.read_at(&mut [0; 6], 0)), EIO);
    frozen.0.kill().unwrap();
}

/// A caller stuck in the old mount creates a name that others look up: they are answered without waiting for it.
#[test]
fn a_name_whose_maker_is_stuck_in_the_old_mount_is_an_error() {
    needs!(mounting(), program("mergerfs"));
    let branches = lab::pool().tmp_branch("b").served_branch("a").option("create=ff");
    let kept = branches.option("entry-timeout=60").option("attr-timeout=60").option("negative-timeout=60");
    let mut pool = filled(kept.option("write-path=stacked").option("branch-timeout=1"));
    // The kernel has cached that it is missing, and requests its creation.
    assert!(!pool.at("on-a/new").exists());
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    // With O_EXCL it would look it up first, and that would hang.
    let create = |path: &Path| errno(OpenOptions::new().append(true).create(true).open(path));
    assert_eq!(create(&pool.at("on-a/new")), EIO);
    pool.branch_mut("a").unmount_lazily();
    pool.branch_mut("a").remount();
    until("the branch comes back", || fs::read(pool.at("on-a/2")).is_ok());
    for _ in 0..2 {
        let (file, began) = (pool.at("on-a/new"), Instant::now());
        let asked = thread::spawn(move || (create(&file), errno(fs::create_dir(&file))));
        until("both are answered", || asked.is_finished() || began.elapsed() > Duration::from_secs(20));
        if !asked.is_finished() {
            frozen.0.kill().unwrap();
            panic!("no caller is answered");
        }
        assert_eq!(asked.join().unwrap(), (EIO, EIO));
    }
    pool.write("on-a/another", b"another");
    works(pool.path());
    frozen.0.kill().unwrap();
    // The stuck caller is back.
    until("the name is free", || create(&pool.at("on-a/new")).is_none());
}

/// Interrupted operations are settled with the other branches when a branch is back, and one of those may hang
/// unnoticed.
#[test]
fn a_branch_recovers_while_another_one_hangs_unnoticed() {
    needs!(mounting(), program("mergerfs"));
    let log = tempfile::NamedTempFile::new().unwrap();
    let option = format!("log={}", log.path().display());
    let mut pool = filled(described().served_branch("c").option(&option));
    let opened = File::open(pool.at("on-a/1")).unwrap();
    pool.branch("a").daemon().kill().unwrap();
    assert_eq!(errno(opened.read_at(&mut [0; 6], 0)), EIO);
    let frozen = FrozenDaemon::new(pool.branch("c").daemon());
    pool.branch_mut("a").unmount_by_force();
    pool.branch_mut("a").remount();
    let said = |what: &str| fs::read_to_string(log.path()).unwrap().contains(what);
    until("the branch is back", || said("branch mounted again"));
    drop(frozen);
    until("all is well", || fs::read(pool.at("on-a/1")).is_ok_and(|bytes| bytes == b"on-a/1"));
}

/// An open file is read again when its branch is back, though another one hangs for longer than this test. The branches
/// are pools themselves, so their files keep their numbers.
/// branches are pools themselves: their files keep their numbers.)
#[test]
fn an_open_file_is_read_again_while_another_branch_hangs() {
    needs!(mounting(), loops());
    let (mut a, c) = (Served::start(), Served::start());
    let home = a.below.branch("deep").path().join("on-a/deeper");
    fs::create_dir_all(&home).unwrap();
    (0..10).for_each(|n| fs::write(home.join(n.to_string()), "before").unwrap());
    let pool = lab::pool().tmp_branch("b").unmounted();
    let _mount = Entry::mount(pool.path()).unwrap();
    let branches =
        [pool.branch("b").path(), &a.target, &c.target].map(|path| path.display().to_string()).join(":");
    let options = "create=ff,write-path=stacked,attr-timeout=0,entry-timeout=0,branch-timeout=600";
    command(daemon::helper().unwrap()).arg(branches).arg(pool.path()).args(["-o", options]).run().unwrap();
    let at = |n: u32| pool.at(format!("on-a/deeper/{n}"));
    (0..10).rev().for_each(|n| assert_eq!(fs::read(at(n)).unwrap(), b"before"));
    let opened = File::open(at(1)).unwrap();
    let written = OpenOptions::new().read(true).write(true).open(at(2)).unwrap();
    a.daemon.kill().unwrap();
    assert_eq!(errno(opened.read_at(&mut [0; 6], 0)), EIO);
    let frozen = FrozenDaemon::new(c.daemon);
    a.restart();
    until("the file is read again", || opened.read_at(&mut [0; 6], 0).is_ok_and(|len| len == 6));
    written.write_all_at(b"behind", 0).unwrap();
    drop((frozen, opened, written));
    assert_eq!(fs::read(at(2)).unwrap(), b"behind");
}

/// The branch answers while the pool's daemon is stopped, for longer than calls may stay in the branch: none has
/// overstayed.
fn a_daemon_that_was_paused_gives_no_call_up(builder: Builder) {
    let pool = filled(builder.option("branch-timeout=3"));
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let asked: Vec<_> = (0..6)
        .map(|n| {
            let at = pool.at(format!("on-a/{n}"));
            thread::spawn(move || errno(fs::read(at)))
        })
        .collect();
    until("calls are inside the branch", || waiting(pool.branch("a").path()) > 0);
    let paused = FrozenDaemon::new(pool.daemon());
    drop(frozen);
    until("the branch has answered", || waiting(pool.branch("a").path()) == 0);
    // For longer than calls may stay.
    sleep(Duration::from_secs(5));
    drop(paused);
    asked.into_iter().for_each(|asked| assert_eq!(asked.join().unwrap(), None));
    assert_eq!(errno(fs::read(pool.at("on-a/10"))), None);
}

#[test]
fn a_daemon_that_was_paused_gives_no_call_up_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    a_daemon_that_was_paused_gives_no_call_up(described().option("transport=dev"));
}

#[test]
fn a_daemon_that_was_paused_gives_no_call_up_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    a_daemon_that_was_paused_gives_no_call_up(described().option("transport=ring"));
}
