//! Files closed on a hung branch: a few threads close them, whatever their number. On both transports.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use fsstack_lab::daemon::Process;
use fsstack_lab::pool::Builder;
use fsstack_lab::{self as lab, needs, until};

use crate::command as operator;
use crate::hung_branches::{FrozenDaemon, described, filled, lasting_a_second};

const FILES: usize = 300;

/// Number of the daemon's threads, and of those that only close files.
fn threads(daemon: Process) -> (usize, usize) {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid)).unwrap();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    let names: Vec<_> = tasks.flatten().map(name).collect();
    (names.len(), names.iter().filter(|name| name.trim() == "branch-close").count())
}

/// The threads of the daemon and where they wait in the kernel.
fn waiting(daemon: Process) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid)).unwrap().flatten();
    let of = |task: &fs::DirEntry, what: &str| fs::read_to_string(task.path().join(what)).unwrap_or_default();
    tasks.map(|task| format!("{} {}", of(&task, "comm").trim(), of(&task, "wchan"))).collect()
}

/// Names of the daemon's threads that are in close(2).
fn stuck_in_close(daemon: Process) -> Vec<String> {
    let close = if cfg!(target_arch = "x86_64") { "3" } else { "57" };
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid)).unwrap().flatten();
    let of = |task: &fs::DirEntry, what: &str| fs::read_to_string(task.path().join(what)).unwrap_or_default();
    let closing = tasks.filter(|task| of(task, "syscall").split(' ').next() == Some(close));
    closing.map(|task| of(&task, "comm").trim().to_owned()).collect()
}

fn a_few_threads_close_all_files(builder: Builder) {
    let mut pool = lasting_a_second(builder.tmp_branch("b").served_branch("a")).unmounted();
    for n in 0..FILES {
        fs::write(pool.branch("a").path().join(n.to_string()), "text").unwrap();
    }
    pool.remount();
    let open: Vec<_> = (0..FILES).map(|n| File::open(pool.at(n.to_string())).unwrap()).collect();
    let daemon = pool.daemon();
    let (before, _) = threads(daemon);
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    drop(open);
    let at = operator::at(&pool);
    until("all files are closed", || {
        operator::json("status", &["status", &at])["pools"][0]["tables"]["files"] == 0
    });
    // Including the transport's threads, which others replace. Further threads that a burst of requests starts are not
    // for the branch.
    let (all, stuck) = (threads(daemon).0, stuck_in_close(daemon));
    println!("{before} threads before, {all} after, {stuck:?} close a file");
    assert!(!stuck.is_empty() && stuck.len() <= 3, "{stuck:?} close files");
    let metrics = operator::output_of(&["metrics", &at]);
    let closing =
        format!("fsstack_branch_files_closing{{branch=\"{}\"}} {FILES}\n", pool.branch("a").path().display());
    assert!(metrics.contains(&closing), "{metrics}");
    // The branch can be probed, and requests for others are served.
    fs::write(pool.branch("b").path().join("on-b"), "text").unwrap();
    until("other branches are served", || fs::read(pool.at("on-b")).is_ok());
    drop(frozen);
    until("all are closed there, too", || threads(daemon).1 == 0);
    until("the branch answers again", || fs::read(pool.at("7")).is_ok());
    pool.unmount();
    daemon.wait(Duration::from_secs(60)).unwrap();
}

#[test]
fn a_few_threads_close_all_files_of_a_branch_that_hangs_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    a_few_threads_close_all_files(lab::pool().option("transport=dev"));
}

#[test]
fn a_few_threads_close_all_files_of_a_branch_that_hangs_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    a_few_threads_close_all_files(lab::pool().option("transport=ring"));
}

/// A service with `TasksMax=`: few threads are available for closing files on the hung branch.
fn others_are_served_though_few_threads_can_start(transport: &str) {
    let builder = lab::pool().option(transport).option("max-threads=8");
    let group = lab::PidsGroup::new(&transport.replace('=', "-")).unwrap();
    let mut pool = lasting_a_second(builder.tmp_branch("b").served_branch("a")).unmounted();
    for n in 0..FILES {
        fs::write(pool.branch("a").path().join(n.to_string()), "text").unwrap();
    }
    fs::write(pool.branch("b").path().join("on-b"), "text").unwrap();
    pool.remount();
    let open: Vec<_> = (0..FILES).map(|n| File::open(pool.at(n.to_string())).unwrap()).collect();
    assert_eq!(pool.read("on-b"), b"text");
    let daemon = pool.daemon();
    group.enter(daemon.pid).unwrap();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    group.bound(6).unwrap();
    drop(open);
    let (tell, answers) = std::sync::mpsc::channel();
    let path = pool.path().to_owned();
    let asker = std::thread::spawn(move || {
        for _ in 0..5 {
            // Names that may be on the hung branch are errors.
            let _listed = fs::read_dir(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let _stat = fs::metadata(path.join("missing"));
            tell.send(fs::read(path.join("on-b")).is_ok()).unwrap();
        }
    });
    for _ in 0..5 {
        let answered = answers.recv_timeout(Duration::from_secs(60));
        assert_eq!(answered, Ok(true), "others are served: {:#?}", waiting(daemon));
    }
    asker.join().unwrap();
    group.unbound().unwrap();
    drop(frozen);
    let (of_a, fds) = (pool.branch("a").path().to_owned(), format!("/proc/{}/fd", daemon.pid));
    until("all are closed", || {
        let fds = fs::read_dir(&fds).unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        !fds.filter_map(|file| file.strip_prefix(&of_a).map(Path::to_owned).ok())
            .any(|file| file.to_str().is_some_and(|file| file.parse::<usize>().is_ok()))
    });
    pool.unmount();
    daemon.wait(Duration::from_secs(60)).unwrap();
}

#[test]
fn others_are_served_though_few_threads_can_start_by_the_device() {
    needs!(mounting(), pids_groups(), program("mergerfs"));
    others_are_served_though_few_threads_can_start("transport=dev");
}

#[test]
fn others_are_served_though_few_threads_can_start_by_the_ring() {
    needs!(mounting(), pids_groups(), program("mergerfs"), rings());
    others_are_served_though_few_threads_can_start("transport=ring");
}

/// No thread can be started, and requests are stuck in a branch.
fn stuck_requests_are_answered_though_no_thread_can_start(transport: &str) {
    let builder = described().option(transport);
    let group = lab::PidsGroup::new(&format!("none-{}", transport.replace('=', "-"))).unwrap();
    let pool = filled(builder);
    let files: Vec<_> = (1..4).map(|n| File::open(pool.at(format!("on-a/{n}"))).unwrap()).collect();
    assert_eq!(pool.read("on-b/1"), b"on-b/1");
    group.enter(pool.daemon().pid).unwrap();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    group.bound(0).unwrap();
    let (tell, answers) = std::sync::mpsc::channel();
    let asker = std::thread::spawn(move || {
        let [first, ..] = &files[..] else { panic!("no files") };
        let read = first.read_at(&mut [0; 8], 0).map_err(|error| error.raw_os_error());
        tell.send((read, files)).unwrap();
    });
    let answered = answers.recv_timeout(Duration::from_secs(60));
    let waiting = waiting(pool.daemon());
    group.unbound().unwrap();
    let (read, files) = answered.unwrap_or_else(|_| panic!("the reader waits: {waiting:#?}"));
    assert_eq!(read, Err(Some(5)));
    assert_eq!(pool.read("on-b/2"), b"on-b/2");
    drop(frozen);
    asker.join().unwrap();
    drop(files);
    until("the branch answers again", || fs::read(pool.at("on-a/1")).is_ok());
}

#[test]
fn stuck_requests_are_answered_though_no_thread_can_start_by_the_device() {
    needs!(mounting(), pids_groups(), program("mergerfs"));
    stuck_requests_are_answered_though_no_thread_can_start("transport=dev");
}

#[test]
fn stuck_requests_are_answered_though_no_thread_can_start_by_the_ring() {
    needs!(mounting(), pids_groups(), program("mergerfs"), rings());
    stuck_requests_are_answered_though_no_thread_can_start("transport=ring");
}

/// More requests are stuck in a branch than were once answered where no thread can be started.
fn many_stuck_requests_are_answered_though_no_thread_can_start(transport: &str) {
    const READERS: usize = 16;
    let builder = lab::pool().tmp_branch("b").served_branch("a").option(transport);
    let builder = builder.option("create=ff").option("write-path=stacked").option("branch-timeout=10");
    let group = lab::PidsGroup::new(&format!("many-{}", transport.replace('=', "-"))).unwrap();
    let pool = filled(builder);
    let files: Vec<_> = (0..READERS).map(|n| File::open(pool.at(format!("on-a/{n}"))).unwrap()).collect();
    let daemon = pool.daemon();
    group.enter(daemon.pid).unwrap();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let (tell, answers) = std::sync::mpsc::channel();
    for file in files {
        let tell = tell.clone();
        std::thread::spawn(move || {
            let read = file.read_at(&mut [0; 8], 0).map_err(|error| error.raw_os_error());
            // The test may have ended.
            let _heard = tell.send(read);
        });
    }
    let stuck = || waiting(daemon).iter().filter(|at| at.contains("request_wait_answer")).count();
    until("all requests are inside", || READERS <= stuck());
    group.bound(0).unwrap();
    let answered: Vec<_> = (0..READERS)
        .map(|_| answers.recv_timeout(Duration::from_secs(60)))
        .take_while(Result::is_ok)
        .collect();
    let waiting = waiting(daemon);
    group.unbound().unwrap();
    drop(frozen);
    assert_eq!(answered.len(), READERS, "the others wait: {waiting:#?}");
    assert!(answered.iter().all(|read| *read == Ok(Err(Some(5)))), "{answered:?}");
    until("the branch answers again", || fs::read(pool.at("on-a/20")).is_ok());
    assert_eq!(pool.read("on-b/2"), b"on-b/2");
}

#[test]
fn many_stuck_requests_are_answered_though_no_thread_can_start_by_the_device() {
    needs!(mounting(), pids_groups(), program("mergerfs"));
    many_stuck_requests_are_answered_though_no_thread_can_start("transport=dev");
}

#[test]
fn many_stuck_requests_are_answered_though_no_thread_can_start_by_the_ring() {
    needs!(mounting(), pids_groups(), program("mergerfs"), rings());
    many_stuck_requests_are_answered_though_no_thread_can_start("transport=ring");
}

/// Queued closes do not keep the daemon from ending.
#[test]
fn the_daemon_ends_while_files_wait_to_be_closed_on_a_branch_that_hangs() {
    needs!(mounting(), program("mergerfs"));
    let mut pool = lasting_a_second(lab::pool().tmp_branch("b").served_branch("a")).unmounted();
    for n in 0..20 {
        fs::write(pool.branch("a").path().join(n.to_string()), "text").unwrap();
    }
    pool.remount();
    let open: Vec<_> = (0..20).map(|n| File::open(pool.at(n.to_string())).unwrap()).collect();
    let daemon = pool.daemon();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    drop(open);
    until("a file waits to be closed", || threads(daemon).1 > 0);
    daemon.signal(rustix::process::Signal::TERM).unwrap();
    daemon.wait(Duration::from_secs(60)).unwrap();
    drop(frozen);
    pool.unmount();
    pool.branch_mut("a").unmount_by_force();
}

/// A reader is stuck in the branch, but was answered, and has closed its file.
fn a_branch_that_hangs_goes_whatever_is_stuck_there(transport: &str) {
    let pool = filled(described().option(transport));
    let (at, a) = (operator::at(&pool), operator::branch(&pool, "a"));
    let files: Vec<_> = (1..4).map(|n| File::open(pool.at(format!("on-a/{n}"))).unwrap()).collect();
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let [read, ..] = &files[..] else { panic!("no files") };
    assert_eq!(read.read_at(&mut [0; 8], 0).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(operator::run(&["branch", "remove", &at, &a]).code, 1, "files are open there");
    drop(files);
    // Files are closed some moments after their programs have continued.
    until("the branch goes", || operator::run(&["branch", "remove", &at, &a]).code == 0);
    assert!(!operator::output_of(&["status", &at]).contains(&a));
    assert_eq!(pool.read("on-b/1"), b"on-b/1");
    drop(frozen);
    assert_eq!(pool.read("on-b/2"), b"on-b/2");
}

#[test]
fn a_branch_that_hangs_goes_whatever_is_stuck_there_by_the_device() {
    needs!(mounting(), root(), program("mergerfs"));
    a_branch_that_hangs_goes_whatever_is_stuck_there("transport=dev");
}

#[test]
fn a_branch_that_hangs_goes_whatever_is_stuck_there_by_the_ring() {
    needs!(mounting(), root(), program("mergerfs"), rings());
    a_branch_that_hangs_goes_whatever_is_stuck_there("transport=ring");
}
