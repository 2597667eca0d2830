//! What a pool's log tells, and where it goes.

use std::fs;

use fsstack_lab::{self as lab, MiB, needs};
use rustix::process::Signal;

use crate::command::{at, branch, told};
use crate::script::sh;

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
    let said = fs::read_to_string(log.path()).unwrap();
    assert!(said.lines().any(|line| line.contains("hidden") && line.contains("clash")), "{said}");
    let reasons = said.lines().find(|line| line.contains("branches/a") && line.contains("branches/c"));
    assert!(reasons.is_some(), "one line has each branch's reason: {said}");
}

#[test]
fn what_is_a_file_here_and_a_directory_there_is_told_once() {
    needs!(mounting());
    let log = tempfile::NamedTempFile::new().unwrap();
    let pool = lab::pool().tmp_branch("a").tmp_branch("b");
    let mut pool = pool.option(&format!("log={}", log.path().display())).unmounted();
    sh(pool.branch("a").path(), "mkdir clash; echo file > clash2; mkdir -p sub/clash");
    sh(pool.branch("b").path(), "echo file > clash; mkdir clash2; mkdir sub; echo file > sub/clash");
    pool.remount();
    let told = sh(pool.path(), "stat -c %F clash clash2; for n in 1 2 3; do ls -U; ls -U sub; done");
    assert!(told.starts_with("directory\nregular file\nclash"), "{told}");
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

#[test]
fn signals_turn_the_level_up_and_down() {
    needs!(mounting());
    let log = tempfile::NamedTempFile::new().unwrap();
    let option = format!("log={}", log.path().display());
    let mut pool = lab::pool().tmp_branch("a").option(&option).mount();
    let level = |wanted: &str| {
        let patience = std::time::Instant::now();
        while told(&["get", &at(&pool), "log-level"]).trim() != wanted {
            assert!(patience.elapsed().as_secs() < 20, "the level does not become {wanted}");
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

/// With a syslog daemon of the test's own, in a mount namespace that has its own /dev.
#[test]
fn without_a_word_the_log_goes_to_syslog() {
    needs!(mounting(), program("unshare"), program("python3"));
    let pool = lab::pool().tmp_branch("a").unmounted();
    let mount = lab::daemon::helper().unwrap();
    let story = format!(
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
    fs::write(home.join("story"), story).unwrap();
    let said = sh(home, "unshare --mount --propagation private bash -euo pipefail story");
    // Facility "daemon", severity "informational".
    assert!(said.starts_with("<30>fsstack[") && said.contains("1 branches mounted"), "{said}");
}
