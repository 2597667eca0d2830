//! Adding, removing and changing branches of a mounted pool.

use std::fs::{self, File};

use fsstack_lab::{self as lab, cleanup, needs};

use crate::script::sh;

use super::*;

#[test]
fn a_branch_comes_and_goes() {
    needs!(mounting());
    let pool = pool();
    let home = cleanup::fresh("extra").unwrap();
    let _home = cleanup::Entry::dir(&home).unwrap();
    let extra = home.to_str().unwrap().to_owned();
    fs::write(home.join("there already"), "x").unwrap();
    let added = json("branch", &["branch", "add", &at(&pool), &format!("{extra}=RW,1M")]);
    assert_eq!((&added["branch"], &added["to"]), (&extra.as_str().into(), &format!("{extra}=RW,1M").into()));
    assert_eq!(pool.read("there already"), b"x");
    let (_, twice) = refused(&["branch", "add", &at(&pool), &extra]);
    assert!(twice.contains("is a branch of"), "{twice}");
    // With a file open there it stays; with --when-idle it is removed when the file is closed.
    let open = File::open(pool.at("there already")).unwrap();
    let (code, busy) = refused(&["branch", "remove", &at(&pool), &extra]);
    assert_eq!(code, 1);
    assert!(busy.contains("open") && busy.contains("--when-idle"), "{busy}");
    let waiting = {
        let (at, extra) = (at(&pool), extra.clone());
        std::thread::spawn(move || output_of(&["branch", "remove", &at, &extra, "--when-idle"]))
    };
    while !output_of(&["status", &at(&pool)]).contains("leaving") {
        std::thread::yield_now();
    }
    drop(open);
    assert!(waiting.join().unwrap().contains("no branch any more"));
    // The registry knows it too: it can be used by another pool, or come back.
    assert!(!output_of(&["list"]).contains(&extra));
    output_of(&["branch", "add", &at(&pool), &extra]);
    output_of(&["branch", "remove", &at(&pool), &extra]);
    assert!(!pool.at("there already").exists());
    assert!(home.join("there already").exists(), "its files stay on it");
    assert_eq!(json("status", &["status", &at(&pool)])["pools"][0]["branches"].as_array().unwrap().len(), 2);
}

/// The kernel would unmount it with the name that it is mounted on.
#[test]
fn what_is_mounted_inside_of_a_pool_stays_when_branches_come_and_go() {
    needs!(mounting());
    let pool = pool();
    let home = cleanup::fresh("extra").unwrap();
    let _home = cleanup::Entry::dir(&home).unwrap();
    let extra = home.to_str().unwrap().to_owned();
    fs::create_dir_all(pool.at("dir/inside")).unwrap();
    let inside = cleanup::Entry::mount(&pool.at("dir/inside")).unwrap();
    lab::shell::command("mount").args(["-t", "tmpfs", "none"]).arg(pool.at("dir/inside")).run().unwrap();
    pool.write("dir/inside/file", b"mounted");
    output_of(&["branch", "add", &at(&pool), &extra]);
    assert_eq!(pool.read("dir/inside/file"), b"mounted");
    output_of(&["branch", "remove", &at(&pool), &extra]);
    assert_eq!(pool.read("dir/inside/file"), b"mounted");
    inside.undo().unwrap();
}

#[test]
fn a_branch_that_is_waited_for_stays_when_it_is_given_a_mode() {
    needs!(mounting());
    let pool = pool();
    let (at, a) = (at(&pool), branch(&pool, "a"));
    pool.write("file", b"x");
    let _open = File::open(pool.at("file")).unwrap();
    let waiting = {
        let (at, a) = (at.clone(), a.clone());
        std::thread::spawn(move || run(&["branch", "remove", &at, &a, "--when-idle"]))
    };
    while !output_of(&["status", &at]).contains("leaving") {
        std::thread::yield_now();
    }
    output_of(&["branch", "mode", &at, &a, "RW"]);
    let ended = waiting.join().unwrap();
    assert_eq!(ended.code, 1, "{}", ended.stdout);
    assert!(ended.stderr.contains("stays"), "{}", ended.stderr);
    assert!(!output_of(&["status", &at]).contains("leaving"));
}

/// Concurrent requests to remove a branch when idle are one removal, which setting a mode cancels.
#[test]
fn a_branch_that_many_want_to_go_stays_when_it_is_given_a_mode() {
    needs!(mounting());
    let pool = pool();
    let (at, a) = (at(&pool), branch(&pool, "a"));
    pool.write("file", b"x");
    let open = File::open(pool.at("file")).unwrap();
    for _ in 0..10 {
        let asking: Vec<_> = (0..4)
            .map(|_| {
                let (at, a) = (at.clone(), a.clone());
                std::thread::spawn(move || run(&["branch", "remove", &at, &a, "--when-idle"]))
            })
            .collect();
        while !output_of(&["status", &at]).contains("leaving") {
            std::thread::yield_now();
        }
        // A request that arrives after the cancellation is a new removal.
        while !asking.iter().all(std::thread::JoinHandle::is_finished) {
            output_of(&["branch", "mode", &at, &a, "RW"]);
        }
        asking.into_iter().for_each(|asked| assert_eq!(asked.join().unwrap().code, 1));
    }
    drop(open);
    // The removal was cancelled: the branch is still there after any number of checks.
    let threads = || sh("/", &format!("cat /proc/{}/task/*/comm", pool.daemon().pid));
    while threads().contains("branch-leaving") {
        std::thread::yield_now();
    }
    assert_eq!(json("status", &["status", &at])["pools"][0]["branches"].as_array().unwrap().len(), 2);
    assert_eq!(pool.read("file"), b"x");
}

#[test]
fn mode_and_floor_change() {
    needs!(mounting());
    let pool = pool();
    let (at, a) = (at(&pool), branch(&pool, "a"));
    assert_eq!(output_of(&["branch", "mode", &at, &a, "RO"]), format!("{a}: RW -> RO\n"));
    pool.write("file", b"x");
    assert_eq!(pool.holders("file"), ["b"]);
    output_of(&["branch", "mode", &at, &a, "rw"]);
    let changed = json("branch", &["branch", "floor", &at, &a, "8000P"]);
    assert_eq!((&changed["from"], &changed["to"]), (&"pool".into(), &"8000P".into()));
    pool.write("second", b"x");
    assert_eq!(pool.holders("second"), ["b"], "the first is under its floor");
    output_of(&["branch", "floor", &at, &a, "pool"]);
    pool.write("third", b"x");
    assert_eq!(pool.holders("third"), ["a"]);
}

#[test]
fn the_only_branch_stays_and_a_disk_has_no_connection_to_abort() {
    needs!(mounting(), not_on_gluster("its volumes have connections to abort"));
    let pool = lab::pool().tmp_branch("a").mount();
    let (code, last) = refused(&["branch", "remove", &at(&pool), &branch(&pool, "a")]);
    assert_eq!(code, 1);
    assert!(last.contains("only branch"), "{last}");
    let (code, disk) = refused(&["branch", "abort", &at(&pool), &branch(&pool, "a")]);
    assert_eq!(code, 1);
    assert!(disk.contains("not on a FUSE file system"), "{disk}");
}

#[test]
fn abort_frees_the_callers_of_a_fuse_branch() {
    needs!(mounting(), root());
    // A pool as the branch of another: a FUSE file system whose daemon can be frozen.
    let below = lab::pool().tmp_branch("disk").mount();
    let inner = below.at("branch");
    below.mkdir("branch");
    let source = inner.to_str().unwrap().to_owned();
    let above = lab::pool().tmp_branch("mine").mount();
    output_of(&["branch", "add", &at(&above), &source]);
    fs::write(inner.join("film"), "x").unwrap();
    assert_eq!(above.read("film"), b"x");
    below.daemon().signal(rustix::process::Signal::STOP).unwrap();
    let stuck = {
        let film = above.at("film");
        std::thread::spawn(move || fs::read(film).is_err())
    };
    let aborted = output_of(&["branch", "abort", &at(&above), &source]);
    below.daemon().signal(rustix::process::Signal::CONT).unwrap();
    assert!(aborted.contains("aborted"), "{aborted}");
    let _freed_either_way = stuck.join().unwrap();
    assert!(fs::read(inner.join("film")).is_err(), "the branch answers errors from now on");
}

/// In a separate mount namespace, because the kernel's control files are global.
#[test]
fn abort_brings_the_kernels_switches_or_says_that_it_cannot() {
    needs!(mounting(), root(), program("unshare"));
    let below = lab::pool().tmp_branch("disk").mount();
    below.mkdir("branch");
    let source = below.at("branch").to_str().unwrap().to_owned();
    let above = lab::pool().tmp_branch("mine").mount();
    output_of(&["branch", "add", &at(&above), &source]);
    let abort_after = |first: &str| {
        let scenario = format!("{first}; exec \"$0\" branch abort \"$1\" \"$2\"");
        let run = command("unshare").args(["--mount", "--propagation", "private", "sh", "-c", &scenario]);
        run.arg(binary()).args([&at(&above), &source]).output().unwrap()
    };
    let hidden = abort_after("mount -t tmpfs none /sys/fs/fuse");
    assert_eq!((hidden.code, hidden.stderr.lines().count()), (3, 1), "{}", hidden.stderr);
    assert!(
        hidden.stderr.contains("fusectl is not mounted at /sys/fs/fuse/connections"),
        "{}",
        hidden.stderr
    );
    assert!(fs::read_dir(below.path()).is_ok(), "it goes on");
    let brought = abort_after("while umount /sys/fs/fuse/connections 2> /dev/null; do :; done");
    assert!(brought.code == 0 && brought.stdout.contains("aborted"), "{}", brought.stderr);
    assert!(fs::read_dir(below.path()).is_err(), "it answers errors from now on");
}
