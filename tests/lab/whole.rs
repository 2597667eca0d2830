//! A pool over four kinds of volumes without faults.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use fsstack_lab::gluster::KINDS;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, daemon, needs};
use rustix::fs::RenameFlags;

use crate::scenario::{eventually, over_all_kinds};

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
fn a_bulk_copy_reaches_volumes_of_every_kind() {
    needs!(mounting(), gluster());
    let pool = over_all_kinds(&["create=rand"]);
    let from = tempfile::tempdir().unwrap();
    let bytes = |n: usize| n.to_le_bytes().repeat(8192);
    (0..16).for_each(|n| fs::write(from.path().join(n.to_string()), bytes(n)).unwrap());
    pool.mkdir("copied");
    let operator = daemon::helper().unwrap().with_file_name("fsstack");
    command(operator).arg("copy").arg(from.path().join(".")).arg(pool.at("copied")).run().unwrap();
    (0..16).for_each(|n| assert_eq!(pool.read(format!("copied/{n}")), bytes(n)));
    // A copy, or a rename that must not replace, removes nothing.
    assert_eq!(pool.list("copied").len(), 16);
    let rename = |to: &str| {
        let (from, to) = (pool.at("copied/0"), pool.at(to));
        rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, RenameFlags::NOREPLACE)
    };
    assert_eq!(rename("copied/1"), Err(rustix::io::Errno::EXIST));
    rename("copied/new").unwrap();
    assert_eq!(pool.read("copied/new"), bytes(0));
}

#[test]
fn a_volume_mounted_again_is_used_again() {
    needs!(mounting(), gluster());
    let mut pool = over_all_kinds(&["create=ff", "attr-timeout=0", "entry-timeout=0"]);
    pool.write("film", b"frames");
    pool.branch_mut("dt4").unmount_lazily();
    pool.branch_mut("dt4").remount();
    eventually("the branch is found again", || {
        fs::read(pool.at("film")).is_ok_and(|bytes| bytes == b"frames")
    });
}

/// For a second after a change of a mounted subdirectory's root, its client reports another inode number for it.
#[test]
fn a_volume_given_away_a_moment_ago_is_mounted_and_known_again() {
    needs!(mounting(), gluster());
    let mut pool = lab::pool().gluster_branch("a", "dt4").gluster_branch("b", "dt2rp2").unmounted();
    let given_away = |pool: &lab::Pool| {
        (1..3).for_each(|owner| {
            pool.branches().iter().for_each(|b| chown(b.path(), Some(owner), None).unwrap())
        });
    };
    given_away(&pool);
    pool.remount_with(&["create=ff", "attr-timeout=0", "entry-timeout=0"]);
    pool.write("film", b"frames");
    pool.unmount();
    // Now its root has the id, and the mount does not change it.
    given_away(&pool);
    pool.remount();
    pool.branch_mut("a").unmount_lazily();
    pool.branch_mut("a").remount();
    eventually("the branch is found again", || {
        fs::read(pool.at("film")).is_ok_and(|bytes| bytes == b"frames")
    });
}

/// The mode set by an ACL is not cached in its old value.
#[test]
fn an_acl_lets_in_at_once_on_volumes_of_every_kind() {
    const STRANGER: u32 = 65534;
    needs!(mounting(), gluster(), program("setfacl"));
    let pool = over_all_kinds(&["create=ff"]);
    for kind in KINDS {
        let dir = pool.branch(kind).path().join(kind);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), kind).unwrap();
        fs::set_permissions(pool.at(kind), fs::Permissions::from_mode(0o700)).unwrap();
        let rights = format!("u:{STRANGER}:rx");
        command("setfacl").args(["-m", &rights]).arg(pool.at(kind)).run().unwrap();
        let output =
            command("cat").arg(pool.at(kind).join("file")).as_user(STRANGER, STRANGER).run().unwrap();
        assert_eq!(output.stdout, kind);
        assert_eq!(fs::metadata(pool.at(kind)).unwrap().mode() & 0o7777, 0o750, "{kind}");
    }
}
