//! A pool comes, goes, dies and comes back.

use fsstack_lab as lab;
use fsstack_lab::needs;

#[test]
fn a_killed_daemon_is_replaced_by_a_mount() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    pool.write("kept", b"before");
    let first = pool.daemon();
    pool.kill_daemon();
    assert!(std::fs::read(pool.at("kept")).is_err());
    pool.remount();
    assert_ne!(pool.daemon(), first);
    assert_eq!(pool.read("kept"), b"before");
}

#[test]
fn a_missing_branch_is_refused_in_one_line() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").unmounted();
    let gone = pool.branch("a").path().join("gone");
    let helper = lab::daemon::helper().unwrap();
    let told = lab::shell::command(helper).arg(&gone).arg(pool.path()).output().unwrap();
    assert_ne!(told.code, 0);
    assert_eq!(told.stderr.trim_end().lines().count(), 1, "{}", told.stderr);
    assert!(told.stderr.contains("gone"), "{}", told.stderr);
    assert_eq!(lab::mounts::at(pool.path()).unwrap(), None);
}
