//! A faulty branch: "cannot reach" is never reported as ENOENT.

use std::fs::{self, OpenOptions};
use std::io;

use fsstack_lab::{self as lab, MiB, needs};

use crate::script::sh;

const EIO: Option<i32> = Some(5);

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn a_name_on_a_dead_branch_is_an_error_and_never_missing() {
    needs!(mounting(), loops(), program("xfs_io"));
    let pool = lab::pool()
        .xfs_branch("a", MiB(300))
        .tmp_branch("b")
        .option("create=ff")
        .option("attr-timeout=0")
        .option("entry-timeout=0")
        .mount();
    pool.write("here", b"on a");
    fs::write(pool.branch("b").path().join("there"), "on b").unwrap();
    sh("/", &format!("xfs_io -x -c shutdown '{}'", pool.branch("a").path().display()));

    assert_eq!(errno(fs::read(pool.at("here"))), EIO);
    assert_eq!(errno(fs::symlink_metadata(pool.at("nowhere"))), EIO);
    let exclusive = OpenOptions::new().write(true).create_new(true).open(pool.at("here"));
    assert_eq!(errno(exclusive), EIO);
    assert!(pool.holders("here").iter().all(|branch| *branch != "b"));
    let listing = fs::read_dir(pool.path()).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
    assert_eq!(errno(listing), EIO);
    assert_eq!(errno(fs::remove_file(pool.at("nowhere"))), EIO);
    assert_eq!(pool.read("there"), b"on b");
    sh("/", &format!("stat -f '{}'", pool.path().display()));
}
