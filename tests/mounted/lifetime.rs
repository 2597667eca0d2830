//! Start, end, crash and restart of a pool.

use std::fs;
use std::time::Duration;

use fsstack_lab::{self as lab, cleanup::Entry, daemon, mounts, needs};
use rustix::process::Signal;

use crate::script::{files_held, sh};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn the_helper_returns_when_the_mount_answers() {
    needs!(mounting());
    for _ in 0..5 {
        // Without waiting: the first access must find the pool.
        let mut pool = lab::pool().tmp_branch("a").mount();
        pool.write("at once", b"x");
        assert_eq!(pool.holders("at once"), ["a"]);
        pool.unmount();
    }
}

#[test]
fn umount_ends_the_daemon() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    let daemon = pool.daemon();
    pool.write("file", b"x");
    sh("/", &format!("umount {}", pool.path().display()));
    daemon.wait(SOON).unwrap();
    assert_eq!(daemon::serving(pool.path()).unwrap(), []);
    pool.unmount();
}

#[test]
fn a_pool_is_mounted_again_right_after_umount() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").unmounted();
    let _mount = Entry::mount(pool.path()).unwrap();
    let mount = pool.mount_command().unwrap().line();
    let target = pool.path().display();
    sh("/", &format!("for i in $(seq 10); do {mount}; echo > {target}/file; umount {target}; done"));
}

#[test]
fn a_signal_unmounts_cleanly() {
    needs!(mounting());
    for signal in [Signal::TERM, Signal::INT] {
        let mut pool = lab::pool().tmp_branch("a").mount();
        pool.write("file", b"x");
        let daemon = pool.daemon();
        daemon.signal(signal).unwrap();
        daemon.wait(SOON).unwrap();
        assert_eq!(mounts::at(pool.path()).unwrap(), None);
        pool.unmount();
    }
}

#[test]
fn the_limit_on_file_sizes_is_the_callers_own() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("write-path=stacked").unmounted();
    let _mount = Entry::mount(pool.path()).unwrap();
    let target = pool.path().display();
    let mount = pool.mount_command().unwrap().line();
    let large = format!("head -c 1M /dev/zero > {target}/file");
    sh("/", &format!("(ulimit -S -f 100; {mount}); {large}; umount {target}"));
    assert_eq!(fs::metadata(pool.branch("a").path().join("file")).unwrap().len(), 1 << 20);
    // If the limit cannot be raised, a write beyond it fails, and the daemon runs on.
    sh("/", &format!("(ulimit -f 100; {mount}); {large} || :; ls {target}; umount {target}"));
}

#[test]
fn in_the_foreground_the_exit_status_tells_of_a_clean_end() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("foreground").unmounted();
    let _mount = Entry::mount(pool.path()).unwrap();
    for end in ["kill -TERM $pid", "kill -INT $pid", "umount $target"] {
        let script = format!(
            "target={}; {} & pid=$!
             until mountpoint -q $target; do kill -0 $pid; sleep 0.02; done
             echo x > $target/file; kill -0 $pid
             {end}; wait $pid; echo $?; ! mountpoint -q $target",
            pool.path().display(),
            pool.mount_command().unwrap().line(),
        );
        assert_eq!(sh("/", &script), "0", "{end}");
    }
    assert_eq!(pool.holders("file"), ["a"]);
}

#[test]
fn in_a_container_that_has_its_session_from_outside_it_mounts() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("foreground").unmounted();
    let script = format!(
        "unshare --pid --fork --kill-child --mount-proc bash -euc '
             {} & pid=$!
             until mountpoint -q $0; do kill -0 $pid; sleep 0.02; done
             echo x > $0/file; kill -TERM $pid; wait $pid' {}",
        pool.mount_command().unwrap().line(),
        pool.path().display(),
    );
    sh("/", &script);
    assert_eq!(pool.holders("file"), ["a"]);
}

/// A script that holds a lock mounts a pool: the lock ends with the script.
#[test]
fn descriptors_of_the_starting_program_are_closed() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").unmounted();
    let _mount = Entry::mount(pool.path()).unwrap();
    let home = pool.path().parent().unwrap();
    fs::write(home.join("conf"), "create = \"ff\"\n").unwrap();
    let mount = pool.mount_command().unwrap().line();
    let target = pool.path().display();
    for (start, end) in [
        (format!("{mount} -o config=/dev/fd/7 7< conf"), ""),
        (format!("{{ exec {mount} -o foreground & }}"), "wait"),
    ] {
        let script = format!(
            "(exec 9> lock; flock 9; {start}); until mountpoint -q {target}; do sleep 0.02; done
             flock -n lock echo free; umount {target}; {end}"
        );
        assert_eq!(sh(home, &script), "free", "{start}");
    }
}

#[test]
fn the_daemon_holds_no_terminal_and_no_pipe_of_the_helper() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").mount();
    // A reader of the helper's output must see its end, though the daemon runs on.
    let descriptors = format!("/proc/{}/fd", pool.daemon().pid);
    for number in 0..=2 {
        let held = fs::read_link(format!("{descriptors}/{number}")).unwrap();
        assert_eq!(held.to_str(), Some("/dev/null"), "descriptor {number}");
    }
    assert_eq!(fs::read_link(format!("/proc/{}/cwd", pool.daemon().pid)).unwrap().to_str(), Some("/"));
}

#[test]
fn work_leaves_no_descriptor_open() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    let work = "mkdir d; for i in $(seq 200); do echo $i > d/$i; cat d/$i >> all; done
                mv d e; find . -type f | wc -l; rm -r e all";
    for _ in 0..3 {
        assert_eq!(sh(pool.path(), work), "201");
    }
    let before = files_held(&pool);
    for _ in 0..3 {
        sh(pool.path(), work);
    }
    sh("/", "echo 2 > /proc/sys/vm/drop_caches");
    let after = files_held(&pool);
    assert!(after <= before, "{before} descriptors became {after}");
}

#[test]
fn a_killed_daemon_is_replaced_by_a_mount() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    pool.write("kept", b"before");
    let first = pool.daemon();
    pool.kill_daemon();
    assert!(fs::read(pool.at("kept")).is_err());
    pool.remount();
    assert_ne!(pool.daemon(), first);
    assert_eq!(pool.read("kept"), b"before");
}

#[test]
fn a_daemon_killed_at_work_leaves_every_file_on_one_branch() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    let work = "trap '' TERM; for i in $(seq 100000); do
                  mkdir -p $((i % 7))/x; echo $i > $((i % 7))/$i; mv $((i % 7))/$i $((i % 7))/x/; done";
    let (path, daemon) = (pool.path().to_owned(), pool.daemon());
    let worker = std::thread::spawn(move || {
        // It ends when the pool below it is gone.
        lab::shell::command("bash").args(["-ec", work]).dir(path).output().unwrap().code
    });
    std::thread::sleep(Duration::from_millis(700));
    daemon.kill().unwrap();
    assert_ne!(worker.join().unwrap(), 0);
    pool.remount();
    let twice = "cd branches; (cd a; find . -type f) > ../in_a; (cd b; find . -type f) > ../in_b
                 sort ../in_a ../in_b | uniq -d; wc -l < ../in_a | awk '{exit !($1 > 0)}'";
    assert_eq!(sh(pool.path().parent().unwrap(), twice), "");
    let seen = sh(pool.path(), "find . -type f | wc -l");
    assert_eq!(sh(pool.path().parent().unwrap(), "cat in_a in_b | wc -l"), seen);
    assert_eq!(sh(pool.path(), "rm -rf ./*; ls -A"), "");
}
