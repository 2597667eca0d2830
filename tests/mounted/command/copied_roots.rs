//! A branch's root copied onto another, with the mark that it is being drained: as `mergerfs.balance` ends, and by `cp -a`.

use std::fs;
use std::os::unix::fs::MetadataExt;

use fsstack_lab::{self as lab, MiB, needs, until};

use super::*;
use crate::relocate::mib;
use crate::script::{python, sh};

/// The modes of the branches, in order.
fn modes(pool: &Pool) -> Vec<String> {
    let status = json("status", &["status", &at(pool)]);
    let branches = status["pools"][0]["branches"].as_array().unwrap();
    branches.iter().map(|branch| branch["mode"].as_str().unwrap().to_owned()).collect()
}

/// Ends the daemon while it empties the branch `a`, which has large files.
fn drained_halfway(pool: &Pool) {
    drained_halfway_to(pool, &[]);
}

fn drained_halfway_to(pool: &Pool, targets: &[&str]) {
    (0..6).for_each(|n| fs::write(pool.branch("a").path().join(format!("large{n}")), mib(n)).unwrap());
    let (at, a) = (at(pool), branch(pool, "a"));
    let targets: Vec<String> = targets.iter().map(|&word| word.to_owned()).collect();
    let drains = std::thread::spawn(move || {
        let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
        run(&[&["branch", "drain", &at, &a, "--rate", "300k"], targets.as_slice()].concat())
    });
    until("it moves", || super::drain::job(pool)["state"] == "moving");
    pool.kill_daemon();
    drains.join().unwrap();
}

#[test]
fn a_drain_goes_on_where_it_began_and_nowhere_else() {
    needs!(mounting(), loops(), program("python3"));
    let pool = lab::pool().ext4_branch("a", MiB(100)).ext4_branch("b", MiB(100)).ext4_branch("c", MiB(100));
    let mut pool = pool.option("create=ff").option("nfs-export").mount();
    fs::write(pool.branch("b").path().join("b"), "b").unwrap();
    let number = fs::metadata(pool.at("b")).unwrap().ino();
    drained_halfway(&pool);
    let root = |name: &str| pool.branch(name).path().display().to_string();
    python("/", &format!("import shutil; shutil.copystat({:?}, {:?})", root("a"), root("b")));
    pool.remount();
    until("it goes on", || super::drain::job(&pool)["state"] == "moving");
    assert_eq!(modes(&pool), ["NC", "RW", "RW"]);
    assert_eq!(pool.holders("b"), ["b"]);
    assert_ne!(
        fs::metadata(pool.at("b")).unwrap().ino(),
        number,
        "the id of b is overwritten: it is a new one"
    );
    // Beside a daemon that ends as it should, nothing is lost.
    let number = fs::metadata(pool.at("b")).unwrap().ino();
    let root = |name: &str| pool.branch(name).path().display().to_string();
    python("/", &format!("import shutil; shutil.copystat({:?}, {:?})", root("a"), root("b")));
    pool.unmount();
    pool.remount();
    until("it goes on", || super::drain::job(&pool)["state"] == "moving");
    assert_eq!(modes(&pool), ["NC", "RW", "RW"]);
    assert_eq!(fs::metadata(pool.at("b")).unwrap().ino(), number);
}

#[test]
fn a_copy_of_a_branch_that_is_drained_is_not_drained_elsewhere() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).xfs_branch("c", MiB(300));
    let mut pool = pool.xfs_branch("d", MiB(300)).option("create=ff").unmounted();
    pool.remount_of(&["a", "b"]);
    drained_halfway(&pool);
    sh("/", &format!("cp -a {}/. {}", pool.branch("a").path().display(), pool.branch("c").path().display()));
    pool.remount_of(&["c", "d"]);
    assert_eq!((run(&["job", "status", &at(&pool)]).code, modes(&pool)), (3, vec!["RW".into(), "RW".into()]));
    // Nor is the branch itself, in another pool.
    pool.unmount();
    pool.remount_of(&["c", "d", "a"]);
    assert_eq!((run(&["job", "status", &at(&pool)]).code, modes(&pool).concat()), (3, "RWRWRW".into()));
    // The mark is gone, whatever pool it is in next.
    pool.unmount();
    pool.remount_of(&["a", "b"]);
    assert_eq!((run(&["job", "status", &at(&pool)]).code, modes(&pool).concat()), (3, "RWRW".into()));
}

/// The drain is not resumed, as a branch that takes its files is not in the pool.
#[test]
fn a_branch_that_is_removed_loses_the_mark_of_a_drain_that_was_not_resumed() {
    needs!(mounting(), loops());
    let pool = lab::pool().ext4_branch("a", MiB(100)).ext4_branch("b", MiB(100)).ext4_branch("c", MiB(100));
    let mut pool = pool.option("create=ff").mount();
    drained_halfway_to(&pool, &["--to", &branch(&pool, "c")]);
    let root = pool.branch("a").path().to_owned();
    let is_marked = || rustix::fs::getxattr(&root, c"trusted.fsstack.drain", &mut [0_u8; 64][..]).is_ok();
    pool.unmount();
    pool.remount_of(&["a", "b"]);
    assert_eq!((run(&["job", "status", &at(&pool)]).code, modes(&pool).concat()), (3, "NCRW".into()));
    assert!(is_marked());
    output_of(&["branch", "remove", &at(&pool), &branch(&pool, "a")]);
    assert!(!is_marked());
}
