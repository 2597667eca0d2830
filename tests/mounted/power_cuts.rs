//! A branch loses what is not in its journal on disk, and is mounted again: each branch has its own journal.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use fsstack_lab::{self as lab, MiB, Pool, needs, until};
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, setxattr};

use crate::command::remount;
use crate::script::sh;

/// An XFS with the result of `prepare`, on which nothing new is placed, and a branch for new files.
fn pool(prepare: &str, options: &[&str]) -> Pool {
    let pool = lab::pool().xfs_branch("a", MiB(300)).mode("NC").tmp_branch("b").option("create=ff");
    let mut pool = options.iter().fold(pool, |pool, option| pool.option(option)).unmounted();
    fill(&pool, "a", prepare);
    pool.remount();
    pool
}

fn fill(pool: &Pool, branch: &str, prepare: &str) {
    sh(pool.branch(branch).path(), &format!("{prepare}\nsync -f ."));
}

/// Drops data that the branch has not stored.
fn shut_down(pool: &Pool, branch: &str) {
    sh(pool.branch(branch).path(), "xfs_io -x -c shutdown .");
}

/// Simulates a power cut that loses what the XFS `a` had not stored.
fn cut(pool: &mut Pool) {
    shut_down(pool, "a");
    pool.reboot();
}

/// Loses what the XFS `a` had not stored, and mounts it again below the running pool.
fn lose(pool: &mut Pool) {
    shut_down(pool, "a");
    pool.branch_mut("a").revive();
}

/// Writes durably, as programs do.
fn keep(pool: &Pool, name: &str, text: &str) {
    let at = pool.at(name);
    fs::write(&at, text).unwrap();
    File::open(&at).unwrap().sync_all().unwrap();
}

#[test]
fn fsynced_files_are_not_hidden_by_removed_ones() {
    needs!(mounting(), loops(), program("xfs_io"));
    let prepare =
        "echo old > file; echo old > log; mkdir -m 777 dir; echo old > was; mkdir from; echo old > from/old";
    let mut pool = pool(prepare, &[]);
    fs::remove_file(pool.at("file")).unwrap();
    keep(&pool, "file", "new");

    keep(&pool, "tmp", "new ");
    fs::rename(pool.at("tmp"), pool.at("log")).unwrap();
    keep(&pool, "log", "newer");

    fs::remove_dir(pool.at("dir")).unwrap();
    fs::create_dir(pool.at("dir")).unwrap();
    fs::set_permissions(pool.at("dir"), fs::Permissions::from_mode(0o700)).unwrap();
    keep(&pool, "dir/secret", "secret");

    fs::remove_file(pool.at("was")).unwrap();
    fs::create_dir(pool.at("was")).unwrap();
    keep(&pool, "was/file", "new");

    fs::rename(pool.at("from"), pool.at("to")).unwrap();
    keep(&pool, "to/new", "new");
    cut(&mut pool);
    let files = ["file", "log", "dir/secret", "was/file", "to/new", "to/old"];
    assert_eq!(
        files.map(|name| pool.read(name)),
        ["new", "newer", "secret", "new", "new", "old\n"].map(Vec::from)
    );
    assert_eq!(fs::metadata(pool.at("dir")).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(!pool.at("from").exists());
}

#[test]
fn fsynced_files_are_not_hidden_by_what_a_killed_daemon_removed() {
    needs!(mounting(), loops(), program("xfs_io"));
    let mut pool = pool("echo old > removed", &[]);
    fs::remove_file(pool.at("removed")).unwrap();
    pool.kill_daemon();
    pool.remount();
    keep(&pool, "removed", "new");
    cut(&mut pool);
    assert_eq!(pool.read("removed"), b"new");
}

#[test]
fn a_rename_over_another_branchs_file_leaves_one_of_them_whichever_is_cut() {
    needs!(mounting(), loops(), program("xfs_io"));
    // The old file is on the XFS, before or after the other branch; the new one is.
    for (first, old, new) in [("a", "a", "b"), ("b", "a", "b"), ("a", "b", "a"), ("b", "b", "a")] {
        let lab = lab::pool();
        let lab = match first {
            "a" => lab.xfs_branch("a", MiB(300)).tmp_branch("b"),
            _ => lab.tmp_branch("b").xfs_branch("a", MiB(300)),
        };
        let mut pool = lab.unmounted();
        fill(&pool, old, "echo old > target");
        fill(&pool, new, "echo new > tmp");
        pool.remount();
        fs::rename(pool.at("tmp"), pool.at("target")).unwrap();
        cut(&mut pool);
        let case = format!("{first} is first, {old} has the old one");
        assert_eq!(pool.read("target"), b"new\n", "{case}: it was answered");
        assert_eq!(pool.list(""), ["target"], "{case}");
        assert_eq!(pool.holders("target"), [new], "{case}");
    }
}

#[test]
fn no_hidden_copy_comes_to_light() {
    needs!(mounting(), loops(), program("xfs_io"));
    let lab = lab::pool().tmp_branch("b").xfs_branch("a", MiB(300));
    let mut pool = lab.unmounted();
    fill(&pool, "a", "echo older > file; echo older > log");
    fill(&pool, "b", "echo old > file; echo old > log");
    pool.remount();
    fs::remove_file(pool.at("file")).unwrap();
    fs::rename(pool.at("log"), pool.at("log.1")).unwrap();
    cut(&mut pool);
    assert_eq!(pool.list(""), ["log.1"]);
    assert_eq!(pool.read("log.1"), b"old\n");
}

#[test]
fn an_open_directory_gets_one_error_for_names_that_a_lost_mount_may_have_lost() {
    needs!(mounting(), loops(), program("xfs_io"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).tmp_branch("b").option("create=ff");
    let mut pool = pool.option("attr-timeout=0").option("entry-timeout=0").mount();
    let open = |pool: &Pool| File::open(pool.path()).unwrap();
    let sync = |dir: &File| dir.sync_all().map_err(|error| error.raw_os_error().unwrap());
    let [one, two] = [open(&pool), open(&pool)];
    pool.mkdir("kept");
    assert_eq!([&one, &two].map(sync), [Ok(()), Ok(())]);
    pool.mkdir("lost");
    lose(&mut pool);
    until("the branch is back", || fs::metadata(pool.at("kept")).is_ok());
    assert!(!pool.at("lost").exists());
    assert_eq!([&one, &one, &two, &two].map(sync), [Err(5), Ok(()), Err(5), Ok(())]);
    assert_eq!(sync(&open(&pool)), Ok(()), "who came later");
}

#[test]
fn an_open_file_gets_one_error_for_changes_that_a_lost_mount_may_have_lost() {
    needs!(mounting(), loops(), program("xfs_io"));
    let pool =
        lab::pool().ext4_branch("a", MiB(64)).tmp_branch("b").option("create=ff").option("minfreespace=0");
    let mut pool =
        pool.option("write-path=stacked").option("attr-timeout=0").option("entry-timeout=0").mount();
    let names = ["untouched", "shorter", "allocated", "mode", "owner", "attribute"];
    names.iter().for_each(|name| keep(&pool, name, "text"));
    let open = |name: &&str| File::options().write(true).open(pool.at(name)).unwrap();
    let files: Vec<File> = names.iter().map(open).collect();
    files[1].set_len(1).unwrap();
    fallocate(&files[2], FallocateFlags::empty(), 0, 1 << 20).unwrap();
    fs::set_permissions(pool.at("mode"), PermissionsExt::from_mode(0o600)).unwrap();
    chown(pool.at("owner"), Some(1000), Some(1000)).unwrap();
    setxattr(pool.at("attribute"), "user.lost", b"value", XattrFlags::empty()).unwrap();
    shut_down(&pool, "a");
    pool.branch_mut("a").unmount_lazily();
    // The open files keep the dead file system alive. A disk that is plugged in again is a new device, like this copy.
    let image = pool.branch("a").image().unwrap().to_owned();
    let copy = image.with_extension("copy");
    fs::copy(&image, &copy).unwrap();
    fs::rename(&copy, &image).unwrap();
    pool.branch_mut("a").remount();
    until("the branch is back", || pool.at("untouched").exists());
    let length = |name: &str| fs::metadata(pool.at(name)).unwrap().len();
    assert_eq!(names.map(length), [4; 6], "nothing was stored");
    let sync = |file: &File| file.sync_all().map_err(|error| error.raw_os_error().unwrap());
    let first: Vec<_> = files.iter().map(sync).collect();
    assert_eq!(first, [Ok(()), Err(5), Err(5), Err(5), Err(5), Err(5)], "{names:?}");
    let then: Vec<_> = files.iter().map(sync).collect();
    assert_eq!(then, [Ok(()); 6], "{names:?}");
}

#[test]
fn sync_and_dirsync_mean_what_mount_says() {
    needs!(mounting(), loops(), program("xfs_io"));
    let lab = || lab::pool().xfs_branch("a", MiB(300));
    for (option, by_remount) in [("dirsync", false), ("sync", false), ("dirsync", true), ("sync", true)] {
        let mut pool = if by_remount { lab().mount() } else { lab().option(option).mount() };
        if by_remount {
            let remount = remount(&pool, option);
            assert_eq!(remount.code, 0, "{}", remount.stderr);
        }
        fs::write(pool.at("from"), "written").unwrap();
        pool.mkdir("dir");
        fs::rename(pool.at("from"), pool.at("dir/to")).unwrap();
        fs::hard_link(pool.at("dir/to"), pool.at("link")).unwrap();
        pool.mkdir("gone");
        fs::remove_dir(pool.at("gone")).unwrap();
        cut(&mut pool);
        assert_eq!(pool.list(""), ["dir", "link"], "{option}");
        assert!(pool.at("dir/to").exists(), "{option}");
        if option == "sync" {
            assert_eq!(pool.read(Path::new("dir/to")), b"written");
        }
    }
}
