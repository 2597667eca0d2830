//! Refusals: one line, mount(8)'s exit status, and nothing mounted.

use std::fs;
use std::path::Path;

use fsstack_lab::cleanup::Entry;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, MiB, Pool, daemon, mounts, needs};

use crate::script::{bash, sh};

/// Runs the helper; returns its exit status and its one line.
#[track_caller]
fn refused(source: &str, target: &Path, options: &str) -> (i32, String) {
    let helper = daemon::helper().unwrap();
    let output = command(helper).arg(source).arg(target).args(["-o", options]).output().unwrap();
    assert_eq!(output.stderr.trim_end().lines().count(), 1, "{}", output.stderr);
    (output.code, output.stderr)
}

fn paths(pool: &Pool) -> (String, String) {
    let path = |name| pool.branch(name).path().display().to_string();
    (path("a"), path("b"))
}

#[test]
fn a_missing_branch() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    let (a, _) = paths(&pool);
    let (code, said) = refused(&format!("{a}:{a}/gone"), pool.path(), "rw");
    assert_eq!(code, 32);
    assert!(said.contains("gone"), "{said}");
    assert_eq!(mounts::at(pool.path()).unwrap(), None);
}

#[test]
fn an_unknown_option_and_a_bad_value_are_usage() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    let (a, b) = paths(&pool);
    let (code, said) = refused(&format!("{a}:{b}"), pool.path(), "write-pth=stacked");
    assert_eq!(code, 1);
    assert!(said.contains("write-path"), "{said}");
    let (code, said) = refused(&format!("{a}:{b}"), pool.path(), "create=nonsense");
    assert_eq!(code, 1);
    assert!(said.contains("nonsense"), "{said}");
    assert_eq!(mounts::at(pool.path()).unwrap(), None);
}

#[test]
fn a_log_that_cannot_be_opened_is_the_systems_failure() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    let (a, b) = paths(&pool);
    // A directory where files cannot be made.
    let (code, said) = refused(&format!("{a}:{b}"), pool.path(), "log=/proc/fsstack.log");
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("log: cannot be opened"), "{said}");
    assert_eq!(mounts::at(pool.path()).unwrap(), None);
}

#[test]
fn a_mount_point_that_is_taken() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    let other = tempfile::tempdir().unwrap();
    let (code, said) = refused(&other.path().display().to_string(), pool.path(), "rw");
    assert_eq!(code, 32);
    assert!(said.contains("already"), "{said}");
    assert_eq!(daemon::serving(pool.path()).unwrap(), [pool.daemon()]);
}

#[test]
fn a_mount_point_that_is_not_empty() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    let (a, b) = paths(&pool);
    fs::write(pool.at("hidden"), "x").unwrap();
    let (code, said) = refused(&format!("{a}:{b}"), pool.path(), "rw");
    assert_eq!(code, 32);
    assert!(said.contains("nonempty"), "{said}");
    pool.remount_with(&["nonempty"]);
    assert!(pool.list("").is_empty());
}

#[test]
fn the_branches_of_a_live_pool_and_what_is_below_and_above() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    let (a, _) = paths(&pool);
    fs::create_dir_all(format!("{a}/below")).unwrap();
    let target = tempfile::tempdir().unwrap();
    let above = Path::new(&a).parent().unwrap().display().to_string();
    for taken in [a.clone(), format!("{a}/below"), above] {
        let (code, said) = refused(&taken, target.path(), "rw");
        assert_eq!(code, 32, "{taken}");
        assert!(said.contains("unmount that pool first"), "{said}");
        assert_eq!(mounts::at(target.path()).unwrap(), None);
    }
}

#[test]
fn branches_are_free_again_after_the_daemon_died() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    pool.kill_daemon();
    pool.remount();
    pool.write("file", b"x");
}

#[test]
fn a_mount_point_in_a_branch_and_a_branch_in_the_mount_point() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    let (a, _) = paths(&pool);
    let inside = Path::new(&a).join("mount");
    fs::create_dir(&inside).unwrap();
    assert_eq!(refused(&a, &inside, "rw").0, 32);
    assert_eq!(refused(&inside.display().to_string(), Path::new(&a), "nonempty").0, 32);
}

#[test]
fn the_same_directory_twice() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    let (a, b) = paths(&pool);
    fs::create_dir(format!("{b}/link")).unwrap();
    assert_eq!(refused(&format!("{a}:{b}/../a"), pool.path(), "rw").0, 32);
}

/// The machine started without the disk: its bare directory looks like an empty branch.
#[test]
fn a_branch_whose_disk_is_not_mounted_when_the_pool_is() {
    needs!(mounting(), loops(), not_on_gluster("its branches are mounts"));
    let mut pool = lab::pool().xfs_branch("a", MiB(300)).tmp_branch("b").option("create=ff").mount();
    pool.write("file", b"on the disk");
    pool.unmount();
    pool.branch_mut("a").unmount();
    let refused = pool.try_remount_with(&[]).unwrap().unwrap_err();
    assert_eq!(refused.code, 32);
    assert!(refused.said.contains("as it was when it was last used"), "{refused}");
    let bare = pool.branch("a").path().to_owned();
    assert_eq!(fs::read_dir(&bare).unwrap().count(), 0, "nothing is written there");
    pool.branch_mut("a").remount();
    pool.remount();
    assert_eq!(pool.read("file"), b"on the disk");
    // `require=directory` accepts it, and later mounts need no such option.
    pool.unmount();
    pool.branch_mut("a").unmount();
    pool.remount_with(&["create=ff", "require=directory"]);
    pool.write("new", b"bare");
    assert_eq!(pool.holders("new"), ["a"]);
    pool.unmount();
    pool.remount_with(&["create=ff"]);
    assert_eq!(pool.read("new"), b"bare");
}

#[test]
fn a_branch_that_is_no_mount_where_one_is_required() {
    needs!(mounting(), not_on_gluster("its branches are mounts"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    let (a, _) = paths(&pool);
    let (code, said) = refused(&a, pool.path(), "require=mountpoint");
    assert_eq!(code, 32);
    assert!(said.contains("mount point"), "{said}");
}

/// Mount points of udisks go with their disks.
#[test]
fn a_pattern_tells_of_a_remembered_disk_whose_directory_is_gone() {
    needs!(mounting(), loops(), not_on_gluster("its branches are mounts"));
    let mut pool = lab::pool().xfs_branch("disk1", MiB(300)).tmp_branch("disk2").mount();
    let disk = pool.branch("disk1").path().to_owned();
    pool.unmount();
    pool.branch_mut("disk1").unmount();
    fs::remove_dir(&disk).unwrap();
    let _mount = Entry::mount(pool.path()).unwrap();
    let pattern = disk.with_file_name("disk*");
    let state = format!("state-dir={}", pool.state_dir().display());
    let mounted =
        command(daemon::helper().unwrap()).arg(pattern).arg(pool.path()).args(["-o", &state]).output();
    let told = mounted.unwrap();
    sh("/", &format!("umount {}", pool.path().display()));
    fs::create_dir(&disk).unwrap();
    assert_eq!(told.code, 0, "{}", told.stderr);
    assert!(told.stderr.contains(&format!("branch {}", disk.display())), "{}", told.stderr);
    assert!(told.stderr.contains("left out"), "{}", told.stderr);
}

/// A directory of a mounted disk, as mergerfs's users have them, is no mount point.
#[test]
fn mergerfss_test_for_mounted_branches() {
    needs!(mounting(), loops(), not_on_gluster("its branches are mounts"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).tmp_branch("b").unmounted();
    let below = pool.branch("a").path().join("pool");
    fs::create_dir(&below).unwrap();
    let both = "branches-mount-timeout=600,branches-mount-timeout-fail=true";
    let _mount = Entry::mount(pool.path()).unwrap();
    command(daemon::helper().unwrap()).arg(&below).arg(pool.path()).args(["-o", both]).run().unwrap();
    sh("/", &format!("umount {}", pool.path().display()));
    let (_, b) = paths(&pool);
    let (code, said) = refused(&b, pool.path(), "branches-mount-timeout-fail=true");
    assert_eq!(code, 32);
    assert!(said.contains("on the file system of the mount point"), "{said}");
}

/// Checks what docs/limits.md says; a branch by itself can be an upper directory.
#[test]
fn the_kernel_takes_no_pool_as_upper_directory_and_no_file_of_it_as_swap() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).mount();
    let overlay = |at: &Path| {
        let script = "mkdir -p lower upper work merged && \
             unshare -m mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged";
        bash(at, script).output().unwrap().code
    };
    assert_ne!(overlay(pool.path()), 0);
    assert_eq!(overlay(pool.branch("a").path()), 0);
    let swap = "dd if=/dev/zero of=swap bs=1M count=1 status=none && chmod 600 swap && mkswap -q swap && ! swapon swap";
    sh(pool.path(), swap);
}
