//! Bricks and servers that die: an error at once, never ENOENT.

use std::fs::{self, OpenOptions};

use fsstack_lab::needs;

use crate::scenario::{
    Breakable, EIO, beside_a_local_branch, errno, eventually, is_not_made, is_out_of_reach, listing, volume,
};

#[test]
fn a_dead_brick_of_a_redundant_volume_shows_nowhere() {
    needs!(mounting(), gluster());
    for (kind, brick) in [("dp3rd1", 2), ("dt2rp2", 1), ("dt2dp3rd1", 4)] {
        let pool = beside_a_local_branch(kind, &[]);
        let lab = Breakable::new();
        (0..12).for_each(|n| pool.write(format!("old-{n}"), kind.as_bytes()));
        lab.kill_brick(volume(kind), brick).unwrap();
        for n in 0..12 {
            assert_eq!(pool.read(format!("old-{n}")), kind.as_bytes());
            pool.write(format!("new-{n}"), kind.as_bytes());
            assert_eq!(pool.holders(format!("new-{n}")), ["a"]);
        }
        assert_eq!(pool.list("").len(), 24);
        lab.mend();
        (0..12).for_each(|n| assert_eq!(pool.read(format!("new-{n}")), kind.as_bytes()));
    }
}

/// Bricks whose loss makes a part of a volume unreachable.
fn lost_bricks(kind: &str) -> &'static [usize] {
    if kind == "dt4" { &[2] } else { &[1, 2] }
}

#[test]
fn a_name_that_a_volume_without_a_brick_does_not_find_is_an_error() {
    needs!(mounting(), gluster());
    for kind in ["dt4", "dt2rp2", "dt2dp3rd1"] {
        let pool = beside_a_local_branch(kind, &[]);
        let lab = Breakable::new();
        let name = |n: usize| format!("d/old-{n}");
        pool.mkdir("d");
        (0..24).for_each(|n| pool.write(name(n), kind.as_bytes()));
        for brick in lost_bricks(kind) {
            lab.kill_brick(volume(kind), *brick).unwrap();
        }
        eventually("the client knows", || listing(&pool.at("d")).is_err());
        let (mut there, mut lost) = (0, 0);
        for n in 0..24 {
            match fs::read(pool.at(name(n))) {
                Ok(bytes) if bytes == kind.as_bytes() => there += 1,
                answer => {
                    assert!(is_out_of_reach(answer), "{kind}: {n}");
                    let again = OpenOptions::new().write(true).create_new(true).open(pool.at(name(n)));
                    assert!(is_not_made(again), "{kind}: {n}");
                    lost += 1;
                }
            }
        }
        assert!(there > 0 && lost > 0, "{kind}: {there} and {lost}");
        assert_eq!(errno(listing(&pool.at("d"))), EIO, "{kind}");
        assert_eq!(errno(fs::symlink_metadata(pool.at("d/nowhere"))), EIO, "{kind}");
        // A new mount has no memory of the complete volume.
        let mut pool = pool;
        pool.unmount();
        pool.remount();
        assert_eq!(errno(listing(&pool.at("d"))), EIO, "{kind}, mounted anew");
        lab.mend();
        for n in 0..24 {
            eventually("all is there", || {
                fs::read(pool.at(name(n))).is_ok_and(|read| read == kind.as_bytes())
            });
        }
        eventually("it is listed again", || listing(&pool.at("d")).is_ok_and(|names| names.len() == 24));
        assert!(!pool.branch("b").path().join("d").exists(), "{kind}: a second file of a name was made");
    }
}

#[test]
fn a_dead_server_is_an_error_and_never_missing() {
    needs!(mounting(), gluster());
    let pool = beside_a_local_branch("dt2rp2", &[]);
    let lab = Breakable::new();
    pool.write("here", b"on a");
    fs::write(pool.branch("b").path().join("there"), "on b").unwrap();
    assert_eq!(pool.read("there"), b"on b");
    lab.stop().unwrap();

    assert!(is_out_of_reach(fs::read(pool.at("here"))));
    assert_eq!(errno(fs::symlink_metadata(pool.at("nowhere"))), EIO);
    assert!(is_not_made(OpenOptions::new().write(true).create_new(true).open(pool.at("here"))));
    assert_eq!(errno(fs::remove_file(pool.at("nowhere"))), EIO);
    assert_eq!(errno(listing(pool.path())), EIO);
    assert!(!pool.branch("b").path().join("here").exists(), "a second file of the name was made");
    assert_eq!(pool.read("there"), b"on b");

    lab.mend();
    eventually("the pool goes on without a new mount", || {
        fs::read(pool.at("here")).is_ok_and(|bytes| bytes == b"on a")
    });
    eventually("it is listed again", || listing(pool.path()).is_ok_and(|names| names.len() == 2));
}

#[test]
fn a_dead_client_is_an_error_until_the_volume_is_mounted_again() {
    needs!(mounting(), gluster());
    let mut pool = beside_a_local_branch("dp3rd1", &[]);
    pool.write("here", b"on a");
    let clients = fsstack_lab::daemon::serving(pool.branch("a").path()).unwrap();
    clients.into_iter().for_each(|client| client.kill().unwrap());
    assert!(is_out_of_reach(fs::read(pool.at("here"))));
    assert_eq!(errno(fs::symlink_metadata(pool.at("nowhere"))), EIO);
    assert_eq!(errno(listing(pool.path())), EIO);
    pool.branch_mut("a").unmount_lazily();
    pool.branch_mut("a").remount();
    eventually("the branch is found again", || fs::read(pool.at("here")).is_ok_and(|bytes| bytes == b"on a"));
}
