//! A pool over volumes of four kinds, nothing broken.

use std::fs;

use fsstack_lab::gluster::KINDS;
use fsstack_lab::{self as lab, Pool, needs};

/// A pool with a branch on each kind of volume, called as the volume is.
fn over_all_kinds(options: &[&str]) -> Pool {
    let pool = KINDS.iter().fold(lab::pool(), |pool, kind| pool.gluster_branch(kind, kind));
    options.iter().fold(pool, |pool, option| pool.option(option)).mount()
}

#[test]
fn files_lie_whole_on_volumes_of_every_kind() {
    needs!(mounting(), gluster());
    let pool = over_all_kinds(&["create=rand"]);
    pool.mkdir("shows");
    let bytes = |n: usize| n.to_le_bytes().repeat(8192);
    (0..32).for_each(|n| pool.write(format!("shows/{n}"), &bytes(n)));
    for n in 0..32 {
        let name = format!("shows/{n}");
        assert_eq!(pool.read(&name), bytes(n));
        let holders = pool.holders(&name);
        assert_eq!(holders.len(), 1, "{name} is on {holders:?}");
        assert_eq!(fs::read(pool.branch(holders[0]).path().join(&name)).unwrap(), bytes(n));
    }
    assert_eq!(pool.list("shows").len(), 32);
    let used = |kind: &&&str| pool.branch(kind).path().join("shows").exists();
    assert!(1 < KINDS.iter().filter(used).count(), "all went to one volume");
}

#[test]
fn a_volume_mounted_again_is_used_again() {
    needs!(mounting(), gluster());
    let mut pool = over_all_kinds(&["create=ff", "attr-timeout=0", "entry-timeout=0"]);
    pool.write("film", b"frames");
    pool.branch_mut("dt4").unmount_lazily();
    pool.branch_mut("dt4").remount();
    crate::story::eventually("the branch is found again", || {
        fs::read(pool.at("film")).is_ok_and(|bytes| bytes == b"frames")
    });
}
