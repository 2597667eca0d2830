//! Settings of `chattr` and `xfs_io` are copied with a moved file, with the directories above it, and by a bulk copy.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fsstack_lab::cleanup::Entry;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, MiB, Pool, daemon, needs};

use crate::command::output_of;
use crate::relocate::{assert_clean, assert_mibs, mib, nearly_full, refused_after, writer};
use crate::script::sh;

/// Writes more than the first branch has room for.
fn outgrow(path: impl AsRef<Path>) {
    let file = writer(path);
    (0..40).for_each(|n| file.write_all_at(&mib(n), n << 20).unwrap());
}

#[test]
fn a_project_and_flags_move_with_a_file() {
    needs!(mounting(), loops(), program("chattr"), program("xfs_io"));
    let pool = nearly_full(MiB(24), &[]);
    sh(pool.path(), "touch film; chattr +SdA -p 42 film");
    sh(pool.branch("a").path(), "xfs_io -c 'extsize 131072' -c 'chattr +f' film");
    let look = "lsattr -p film; xfs_io -c extsize -c lsattr film";
    let before = sh(pool.branch("a").path(), look);
    assert!(before.trim_start().starts_with("42 ") && before.contains("131072"), "{before}");
    outgrow(pool.at("film"));
    assert_eq!(pool.holders("film"), ["b"]);
    assert_eq!(sh(pool.branch("b").path(), look), before);
    assert_eq!(sh(pool.path(), "lsattr -p film"), before.lines().next().unwrap());
    assert_mibs(&pool, "film", 40);
    assert_clean(&pool);
}

#[test]
fn flags_unknown_to_another_file_system_are_left_and_its_own_stay() {
    needs!(mounting(), loops(), program("chattr"));
    let pool = lab::pool().xfs_branch("a", MiB(310)).ext4_branch("b", MiB(300));
    let pool = pool.option("create=ff").option("write-path=stacked").option("relocate").mount();
    pool.branch("a").fill_until_free(MiB(24));
    // This ext4 has no project ids. The flag 'e' is the type of block mapping.
    sh(pool.path(), "mkdir d; touch d/film; chattr +dA -p 42 d/film; chattr +dP -p 42 d");
    outgrow(pool.at("d/film"));
    assert_eq!(pool.holders("d/film"), ["b"]);
    let flags = sh(pool.branch("b").path(), "lsattr -d d d/film | tr -d -");
    assert!(flags.contains("dAe d/film") && flags.contains("de") && flags.contains("d\n"), "{flags}");
    assert_mibs(&pool, "d/film", 40);
    assert_clean(&pool);
}

#[test]
fn a_file_whose_writes_are_synced_moves_only_where_they_would_be() {
    needs!(mounting(), loops(), program("chattr"), program("getfattr"));
    let pool = lab::pool().xfs_branch("a", MiB(310)).tmpfs_branch("b", MiB(100));
    let pool = pool.option("create=ff").option("write-path=stacked").option("relocate").mount();
    pool.branch("a").fill_until_free(MiB(24));
    sh(pool.path(), "touch film; chattr +S film");
    let file = writer(pool.at("film"));
    refused_after(&file);
    assert_eq!(pool.holders("film"), ["a"]);
    let why = sh(pool.path(), "getfattr --only-values -n user.fsstack.why film");
    assert!(why.contains("attributes"), "{why}");
    assert_clean(&pool);
}

#[test]
fn a_file_that_is_overwritten_in_place_stays_so() {
    needs!(mounting(), root(), loops(), program("mkfs.btrfs"), program("chattr"));
    let disks = lab::pool().btrfs_branch("one", MiB(400)).btrfs_branch("two", MiB(200)).unmounted();
    let (one, two) = (disks.branch("one").path(), disks.branch("two").path());
    let script = "btrfs -q subvolume create a; btrfs quota enable .; btrfs quota rescan -w . >/dev/null
                  btrfs qgroup limit 24M a";
    sh(one, script);
    let at = tempfile::tempdir().unwrap();
    let _mount = Entry::mount(at.path()).unwrap();
    let branches = format!("{}/a:{}", one.display(), two.display());
    let options = ["-o", "create=ff,write-path=stacked,relocate,minfreespace=4M"];
    command(daemon::helper().unwrap()).arg(branches).arg(at.path()).args(options).run().unwrap();
    sh(at.path(), "mkdir d; chattr +C d; touch d/film");
    outgrow(at.path().join("d/film"));
    let flags = sh(two, "lsattr -d d d/film | tr -d -");
    assert_eq!(flags, "C d\nC d/film");
    assert!(!one.join("a/d/film").exists());
    command("umount").arg(at.path()).run().unwrap();
}

/// A directory on `a` only; new files in it go to `b`.
fn two_disks(pool: lab::Builder, dress: &str) -> Pool {
    let mut pool = pool.unmounted();
    fs::create_dir_all(pool.branch("a").path().join("top/dir")).unwrap();
    sh(pool.branch("a").path(), dress);
    pool.branch("a").fill_until_free(MiB(60));
    pool.remount_with(&["create=mfs"]);
    pool
}

#[test]
fn a_directory_gives_its_project_on_every_branch() {
    needs!(mounting(), loops(), program("chattr"));
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300));
    let pool = two_disks(pool, "chattr +SdP -p 42 top top/dir");
    pool.write("top/dir/file", b"x");
    assert_eq!(pool.holders("top/dir/file"), ["b"]);
    let look = "lsattr -pd top top/dir";
    let flags = sh(pool.branch("b").path(), look);
    assert_eq!(flags, sh(pool.branch("a").path(), look));
    assert_eq!(flags.matches("42 ").count(), 2, "{flags}");
    let file = sh(pool.branch("b").path(), "lsattr -p top/dir/file");
    assert!(file.trim_start().starts_with("42 "), "{file}");
    assert!(!pool.branch("b").path().join(".fsstack.moving").exists());
}

/// The branch has its own project: quotas there count the pool's files.
#[test]
fn a_project_of_the_branch_itself_stays() {
    needs!(mounting(), loops(), program("chattr"));
    let mut pool = lab::pool().xfs_branch("a", MiB(310)).xfs_branch("b", MiB(400)).option("create=ff");
    for option in ["write-path=stacked", "relocate"] {
        pool = pool.option(option);
    }
    let pool = pool.mount();
    pool.branch("a").fill_until_free(MiB(24));
    sh(pool.branch("b").path(), "chattr +P -p 7 .");
    sh(pool.path(), "mkdir d; touch d/film; chattr -p 42 d/film; chattr +P -p 42 d");
    outgrow(pool.at("d/film"));
    assert_eq!(pool.holders("d/film"), ["b"]);
    let flags = sh(pool.branch("b").path(), "lsattr -pd d d/film");
    assert!(flags.lines().all(|line| line.trim_start().starts_with("7 ")), "{flags}");
    assert_mibs(&pool, "d/film", 40);
}

#[test]
fn a_directory_whose_files_are_overwritten_in_place_is_so_on_every_branch() {
    needs!(mounting(), loops(), program("mkfs.btrfs"), program("chattr"));
    let pool = lab::pool().btrfs_branch("a", MiB(200)).btrfs_branch("b", MiB(400));
    let pool = two_disks(pool, "chattr +CD top/dir");
    pool.write("top/dir/disk", b"x");
    assert_eq!(pool.holders("top/dir/disk"), ["b"]);
    assert_eq!(
        sh(pool.branch("b").path(), "lsattr -d top/dir top/dir/disk | tr -d -"),
        "DC top/dir\nC top/dir/disk"
    );
}

#[test]
fn a_bulk_copy_brings_flags_along_and_goes_into_projects() {
    needs!(mounting(), root(), loops(), program("mkfs.btrfs"), program("chattr"));
    let sources = lab::pool().btrfs_branch("s", MiB(200)).unmounted();
    let pool = lab::pool().btrfs_branch("a", MiB(200)).mount();
    let tree = sources.branch("s").path().join("tree");
    fs::create_dir(&tree).unwrap();
    sh(
        &tree,
        "touch disk; chattr +C disk; head -c 300000 /dev/urandom > disk; echo x > small; chattr +d small",
    );
    output_of(&["copy", tree.to_str().unwrap(), pool.path().to_str().unwrap()]);
    let look = "lsattr disk small";
    assert_eq!(sh(pool.at("tree"), look), sh(&tree, look));
    // A directory with an inherited project: a file written elsewhere gets it too.
    let pool = lab::pool().xfs_branch("a", MiB(300)).mount();
    sh(pool.path(), "mkdir tree; chattr +P -p 42 tree");
    output_of(&["copy", tree.to_str().unwrap(), pool.path().to_str().unwrap()]);
    let flags = sh(pool.at("tree"), "lsattr -p small disk");
    assert!(flags.lines().all(|line| line.trim_start().starts_with("42 ")), "{flags}");
    assert_eq!(sh(pool.at("tree"), "cat disk | md5sum"), sh(&tree, "cat disk | md5sum"));
}
