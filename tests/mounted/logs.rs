//! A pool's log: lines and destinations.

use std::fs;

use fsstack_lab::{self as lab, MiB, needs, until};
use rustix::process::Signal;

use crate::command::{at, branch, output_of};
use crate::hung_branches::{FrozenDaemon, described, filled};
use crate::script::{log_with, sh};

#[test]
fn the_log_tells_what_is_hidden_and_why_nothing_could_be_made() {
    needs!(mounting());
    let log = tempfile::NamedTempFile::new().unwrap();
    let pool = lab::pool().tmpfs_branch("a", MiB(16)).tmpfs_branch("b", MiB(16)).tmp_branch("c").mode("RO");
    let pool = pool.option("minfreespace=8M").option("create=mfs");
    let mut pool = pool.option(&format!("log={}", log.path().display())).unmounted();
    sh(pool.branch("a").path(), "mkdir clash; head -c 15M /dev/zero > ballast");
    sh(pool.branch("b").path(), "echo file > clash; head -c 15M /dev/zero > ballast");
    pool.remount();
    assert!(fs::metadata(pool.at("clash")).unwrap().is_dir());
    let full = fs::write(pool.at("new"), "x").unwrap_err();
    assert_eq!(full.raw_os_error(), Some(28), "{full}");
    for n in 0..200 {
        assert!(fs::write(pool.at(format!("more-{n}")), "x").is_err());
    }
    pool.unmount();
    let said = fs::read_to_string(log.path()).unwrap();
    assert!(said.lines().any(|line| line.contains("hidden") && line.contains("clash")), "{said}");
    let mut refused = said.lines().filter(|line| line.contains("create refused"));
    let reasons =
        |line: &str| line.contains("branches/a: full, or under its floor; ") && line.contains("branches/c: ");
    assert!(refused.any(reasons), "one line has each branch's reason: {said}");
    // A line a minute.
    assert!(refused.count() < 100, "a program that tries again does not fill the log: {said}");
}

/// Sixteen sets of reasons are remembered: as many others follow on the first.
#[test]
fn refused_creates_whose_reasons_give_way_to_others_are_counted() {
    needs!(mounting());
    let log = tempfile::NamedTempFile::new().unwrap();
    let names = ["a", "b", "c", "d", "e"];
    let pool = names.iter().fold(lab::pool(), |pool, name| pool.tmp_branch(name));
    let pool = pool.option("create=mfs").option("minfreespace=1P");
    let pool = pool.option(&format!("log={}", log.path().display())).mount();
    let refuse = |set: u32, tries: usize| {
        for (number, name) in names.iter().enumerate() {
            let mode = if set >> number & 1 == 0 { "RW" } else { "RO" };
            output_of(&["branch", "mode", &at(&pool), &branch(&pool, name), mode]);
        }
        (0..tries).for_each(|_| assert!(fs::write(pool.at("new"), "").is_err()));
    };
    refuse(0, 4);
    (1..=16).for_each(|set| refuse(set, 1));
    let said = log_with(log.path(), "unlogged=");
    let counted: Vec<_> = said.lines().filter(|line| line.contains("unlogged=")).collect();
    assert!(matches!(counted[..], [one] if one.contains("unlogged=2")), "{said}");
}

/// Consequences of the options are only in the log: a script that mounts prints nothing.
#[test]
fn a_mount_that_is_as_asked_says_nothing_and_its_log_tells_what_follows() {
    needs!(mounting());
    let log = tempfile::NamedTempFile::new().unwrap();
    let pool = lab::pool().tmpfs_branch("a", MiB(16)).tmpfs_branch("b", MiB(16)).unmounted();
    let _mount = lab::cleanup::Entry::mount(pool.path()).unwrap();
    let options = format!("page-cache=writeback,create=rand,minfreespace=4G,log={}", log.path().display());
    let run = pool.mount_command().unwrap().arg("-o").arg(options);
    assert_eq!(run.output().unwrap().stderr, "");
    log_with(log.path(), "INFO page-cache=writeback: the kernel has no passthrough beside it");
    let said = log_with(log.path(), "nothing can be made now");
    let line = said.lines().find(|line| line.contains("nothing can be made now")).unwrap();
    for part in ["WARN create=rand", "branches/a", "branches/b", "minfreespace=", ">any"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert_eq!(fs::create_dir(pool.at("new")).unwrap_err().raw_os_error(), Some(28));
}

#[test]
fn a_file_here_and_a_directory_there_are_logged_once() {
    needs!(mounting());
    let log = tempfile::NamedTempFile::new().unwrap();
    let pool = lab::pool().tmp_branch("a").tmp_branch("b");
    let mut pool = pool.option(&format!("log={}", log.path().display())).unmounted();
    sh(pool.branch("a").path(), "mkdir clash; echo file > clash2; mkdir -p sub/clash");
    sh(pool.branch("b").path(), "echo file > clash; mkdir clash2; mkdir sub; echo file > sub/clash");
    pool.remount();
    let listed = sh(pool.path(), "stat -c %F clash clash2; for n in 1 2 3; do ls -U; ls -U sub; done");
    assert!(listed.starts_with("directory\nregular file\nclash"), "{listed}");
    pool.unmount();
    let said = fs::read_to_string(log.path()).unwrap();
    let hidden =
        |name: &str| said.lines().filter(|line| line.contains("hidden") && line.contains(name)).count();
    assert_eq!(
        (hidden("\"clash\""), hidden("\"clash2\"")),
        (2, 1),
        "one each, \"clash\" in two directories: {said}"
    );
}

/// A user has put something in place of the hidden folders, so that no branch takes a record of a rename.
#[test]
fn renames_without_a_record_are_a_line_a_minute_with_the_reasons() {
    needs!(mounting());
    let log = tempfile::NamedTempFile::new().unwrap();
    let pool = lab::pool().tmp_branch("a").tmp_branch("b");
    let mut pool = pool.option(&format!("log={}", log.path().display())).unmounted();
    for branch in pool.branches() {
        sh(
            branch.path(),
            "mkdir -p dir0 .fsstack.moving; echo > .fsstack.moving/x; chown 1234 .fsstack.moving",
        );
    }
    pool.remount();
    for n in 0..5 {
        fs::rename(pool.at(format!("dir{n}")), pool.at(format!("dir{}", n + 1))).unwrap();
    }
    pool.unmount();
    let said = fs::read_to_string(log.path()).unwrap();
    let lines: Vec<_> = said.lines().filter(|line| line.contains("no branch can store its record")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(
        pool.branches().iter().all(|branch| lines[0].contains(branch.path().to_str().unwrap())),
        "{said}"
    );
}

#[test]
fn signals_turn_the_level_up_and_down() {
    needs!(mounting());
    let log = tempfile::NamedTempFile::new().unwrap();
    let option = format!("log={}", log.path().display());
    let mut pool = lab::pool().tmp_branch("a").option(&option).mount();
    let level = |wanted: &str| {
        let began = std::time::Instant::now();
        while output_of(&["get", &at(&pool), "log-level"]).trim() != wanted {
            assert!(began.elapsed().as_secs() < 20, "the level does not become {wanted}");
        }
    };
    level("info");
    pool.daemon().signal(Signal::USR1).unwrap();
    level("debug");
    pool.daemon().signal(Signal::USR2).unwrap();
    level("info");
    pool.daemon().signal(Signal::USR1).unwrap();
    level("debug");
    pool.unmount();
    let said = fs::read_to_string(log.path()).unwrap();
    assert!(said.contains(" DEBUG unmounted"), "{said}");
}

/// Rotation as by logrotate: the file is renamed, SIGHUP begins a new one, and the pool stays mounted.
#[test]
fn a_log_that_was_renamed_is_begun_anew_by_sighup() {
    needs!(mounting());
    let home = tempfile::tempdir().unwrap();
    let (log, old) = (home.path().join("log"), home.path().join("log.1"));
    let mut pool = lab::pool().tmp_branch("a").option(&format!("log={}", log.display())).mount();
    log_with(&log, "branches mounted");
    let daemon = pool.daemon();
    fs::rename(&log, &old).unwrap();
    daemon.signal(Signal::HUP).unwrap();
    until("a new file is begun", || log.exists());
    pool.write("file", b"served on");
    assert_eq!(pool.daemon(), daemon);
    pool.unmount();
    let (said, before) = (fs::read_to_string(&log).unwrap(), fs::read_to_string(&old).unwrap());
    assert!(said.contains(": unmounted") && !before.contains(": unmounted"), "{before}---{said}");
}

/// The monitor of a branch logs before it answers for stuck callers.
fn a_log_on_a_branch_that_hangs_blocks_no_request(transport: &str) {
    let mut pool = filled(described());
    let log = format!("log={}", pool.branch("a").path().join("daemon.log").display());
    pool.remount_with(&[
        "create=ff",
        "write-path=stacked",
        "attr-timeout=0",
        "entry-timeout=0",
        "branch-timeout=1",
        "log-level=debug",
        &log,
        transport,
    ]);
    assert_eq!(pool.read("on-a/0"), b"on-a/0");
    let frozen = FrozenDaemon::new(pool.branch("a").daemon());
    let asked: Vec<_> = (0..3)
        .map(|n| {
            let at = pool.at(format!("on-a/{n}"));
            std::thread::spawn(move || fs::read(at).unwrap_err().raw_os_error())
        })
        .collect();
    until("all who wait for the branch are answered while it hangs", || {
        asked.iter().all(|asked| asked.is_finished())
    });
    pool.daemon().signal(Signal::HUP).unwrap();
    assert_eq!(pool.read("on-b/1"), b"on-b/1");
    asked.into_iter().for_each(|asked| assert_eq!(asked.join().unwrap(), Some(5)));
    drop(frozen);
    until("the branch answers again", || fs::read(pool.at("on-a/1")).is_ok());
}

#[test]
fn a_log_on_a_branch_that_hangs_blocks_no_request_by_the_device() {
    needs!(mounting(), program("mergerfs"));
    a_log_on_a_branch_that_hangs_blocks_no_request("transport=dev");
}

#[test]
fn a_log_on_a_branch_that_hangs_blocks_no_request_by_the_ring() {
    needs!(mounting(), program("mergerfs"), rings());
    a_log_on_a_branch_that_hangs_blocks_no_request("transport=ring");
}

/// With the test's own syslog daemon, in a mount namespace with its own /dev.
#[test]
fn without_a_word_the_log_goes_to_syslog() {
    needs!(mounting(), program("unshare"), program("python3"));
    let pool = lab::pool().tmp_branch("a").unmounted();
    let mount = lab::daemon::helper().unwrap();
    let scenario = format!(
        r#"mount -t tmpfs tmpfs /dev; mknod -m 666 /dev/fuse c 10 229; mknod -m 666 /dev/null c 1 3
        python3 -c 'import socket
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); log.bind("/dev/log"); log.settimeout(60)
print(log.recv(9999).decode())' > said &
        until [ -S /dev/log ]; do sleep 0.01; done
        trap 'umount pool' EXIT
        {} {} {}; wait %1; cat said"#,
        mount.display(),
        branch(&pool, "a"),
        at(&pool),
    );
    let home = pool.path().parent().unwrap();
    fs::write(home.join("scenario"), scenario).unwrap();
    let said = sh(home, "unshare --mount --propagation private bash -euo pipefail scenario");
    // Facility "daemon", severity "informational".
    assert!(said.starts_with("<30>fsstack[") && said.contains("1 branches mounted"), "{said}");
}
