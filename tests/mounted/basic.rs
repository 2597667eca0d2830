//! A pool stores files visibly on one branch.

use std::fs;

use fsstack_lab::{self as lab, MiB, mounts, needs, zeros};

#[test]
fn a_file_lies_whole_on_one_branch() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=ff").mount();
    pool.write("film.mkv", b"frames");
    assert_eq!(pool.read("film.mkv"), b"frames");
    assert_eq!(pool.holders("film.mkv"), ["a"]);
    assert_eq!(fs::read(pool.branch("a").path().join("film.mkv")).unwrap(), b"frames");

    let daemon = pool.daemon();
    pool.unmount();
    assert!(!daemon.lives());
    assert_eq!(mounts::at(pool.path()).unwrap(), None);
    assert_eq!(pool.holders("film.mkv"), ["a"]);
}

#[test]
fn branches_are_seen_as_one_tree() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    for (branch, file) in [("a", "one"), ("b", "two")] {
        let dir = pool.branch(branch).path().join("shows");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(file), branch).unwrap();
    }
    pool.remount();
    assert_eq!(pool.list(""), ["shows"]);
    assert_eq!(pool.list("shows"), ["one", "two"]);
    assert_eq!(pool.read("shows/two"), b"b");
}

#[test]
fn a_full_branch_sends_new_files_to_the_next() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=ff").mount();
    pool.branch("a").fill_until_free(MiB(1));
    pool.write("film.mkv", &zeros(MiB(8)));
    assert_eq!(pool.holders("film.mkv"), ["b"]);
}
