//! The branch modes RW, NC and RO.

use std::fs;

use fsstack_lab::{self as lab, MiB, needs, until};

use crate::command::{self, json};
use crate::script::{refused, sh};

#[test]
fn a_branch_without_creation_serves_and_changes_what_it_has() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").mode("NC").tmp_branch("b").option("create=ff").unmounted();
    fs::write(pool.branch("a").path().join("old"), "old").unwrap();
    pool.remount();
    pool.write("new", b"x");
    assert_eq!(pool.holders("new"), ["b"]);
    pool.write("old", b"changed");
    assert_eq!(fs::read(pool.branch("a").path().join("old")).unwrap(), b"changed");
    sh(pool.path(), "rm old");
    assert!(pool.holders("old").is_empty());
}

#[test]
fn a_read_only_branch_is_only_read() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").mode("RO").tmp_branch("b").option("create=ff").unmounted();
    fs::write(pool.branch("a").path().join("old"), "old").unwrap();
    pool.remount();
    assert_eq!(pool.read("old"), b"old");
    for change in
        ["echo x >> old", "rm old", "chmod 600 old", "mv old other", "truncate -s 0 old", "touch old"]
    {
        assert!(refused(pool.path(), change).contains("Read-only"), "{change}");
    }
    assert_eq!(pool.read("old"), b"old");
    pool.write("new", b"x");
    assert_eq!(pool.holders("new"), ["b"]);
}

#[test]
fn only_read_only_branches_answer_so() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").mode("RO").tmp_branch("b").mode("NC").mount();
    assert!(refused(pool.path(), "echo > new").contains("Read-only"));
    assert!(refused(pool.path(), "mkdir new").contains("Read-only"));
}

#[test]
fn a_branch_that_turns_read_only_is_treated_so() {
    needs!(mounting());
    let pool = lab::pool().tmpfs_branch("a", MiB(16)).tmpfs_branch("b", MiB(16)).option("create=ff").mount();
    pool.write("old", b"x");
    assert_eq!(pool.holders("old"), ["a"]);
    pool.branch("a").remount_ro();
    pool.write("new", b"x");
    assert_eq!(pool.holders("new"), ["b"]);
    sh(pool.path(), "rm new");
    assert_eq!(pool.list(""), ["old"]);
    pool.write("new", b"x");
    assert!(refused(pool.path(), "rm old").contains("Read-only"));
    pool.branch("a").remount_rw();
    // That it was read-only is cached for a second.
    std::thread::sleep(std::time::Duration::from_millis(1200));
    sh(pool.path(), "rm old");
    assert_eq!(pool.list(""), ["new"]);
}

/// Linux 6.15 and later do not report such a file system as read-only by statfs(2).
#[test]
fn a_branch_whose_file_system_has_found_an_error_is_read_only() {
    needs!(mounting(), loops());
    let pool = lab::pool().ext4_branch("a", MiB(32)).xfs_branch("b", MiB(300)).option("create=ff");
    let mut pool = pool.option("minfreespace=8M").mount();
    pool.write("old", b"x");
    assert_eq!(pool.holders("old"), ["a"]);
    sh(pool.branch("a").path(), "sync -f .");
    pool.branch("a").find_an_error();
    pool.write("new", b"x");
    assert_eq!(pool.holders("new"), ["b"]);
    assert!(refused(pool.path(), "rm old").contains("Read-only"));
    let at = pool.path().display().to_string();
    let state = || json("status", &["status", &at])["pools"][0]["branches"][0]["state"].clone();
    until("the branch counts as read-only", || state() == "read-only");
    // A drain does not wait for a branch that takes nothing.
    let to = pool.branch("b").path().display().to_string();
    let (_, why) = command::refused(&["branch", "drain", &at, &to]);
    assert!(why.contains("no other branch takes anything"), "{why}");
    pool.branch_mut("a").revive();
    until("the branch is writable", || state() == "up");
    sh(pool.path(), "rm old && touch again");
    assert_eq!(pool.holders("again"), ["a"]);
}
