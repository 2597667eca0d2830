//! Frozen servers and cut links: which callers wait, how long, and which do not.

use std::fs;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use fsstack_lab::gluster::Which;
use fsstack_lab::{Pool, needs};

use crate::scenario::{
    Breakable, EIO, PATIENCE, beside_a_local_branch, errno, eventually, is_out_of_reach, volume,
};

/// While a call on the silent branch waits, others are served; then it fails; afterwards everything works.
fn others_are_served(pool: &Pool, lab: &Breakable, silence: impl FnOnce()) {
    pool.write("here", b"on a");
    fs::write(pool.branch("b").path().join("there"), "on b").unwrap();
    assert_eq!(pool.read("there"), b"on b");
    // A file open on the other branch needs no request to the silent one.
    let open = fs::File::open(pool.at("there")).unwrap();
    silence();
    let (tell, answer) = channel();
    let path = pool.at("here");
    let waiter = thread::spawn(move || tell.send(is_out_of_reach(fs::read(path))).unwrap());
    assert!(answer.recv_timeout(Duration::from_millis(300)).is_err(), "nobody waits for a silent server");
    assert_eq!(open.metadata().unwrap().len(), 4);
    assert!(answer.recv_timeout(PATIENCE).unwrap());
    waiter.join().unwrap();
    assert_eq!(errno(fs::symlink_metadata(pool.at("nowhere"))), EIO);
    lab.mend();
    eventually("the pool goes on without a new mount", || {
        fs::read(pool.at("here")).is_ok_and(|bytes| bytes == b"on a")
    });
}

#[test]
fn a_frozen_server_is_an_error_when_its_client_gives_it_up() {
    needs!(mounting(), gluster());
    let pool = beside_a_local_branch("dt4", &[]);
    let lab = Breakable::new();
    others_are_served(&pool, &lab, || lab.freeze(Which::Server).unwrap());
}

#[test]
fn a_cut_cable_is_an_error_when_the_client_gives_the_server_up() {
    needs!(mounting(), gluster());
    let pool = beside_a_local_branch("dt2rp2", &[]);
    let lab = Breakable::new();
    others_are_served(&pool, &lab, || lab.cut_link().unwrap());
}

#[test]
fn a_frozen_brick_of_a_redundant_volume_delays_and_no_more() {
    needs!(mounting(), gluster());
    let pool = beside_a_local_branch("dp3rd1", &["branch-timeout=30"]);
    let lab = Breakable::new();
    pool.write("here", b"on a");
    lab.freeze(Which::Brick(volume("dp3rd1"), 1)).unwrap();
    assert_eq!(pool.read("here"), b"on a");
    pool.write("more", b"on a too");
    assert_eq!(pool.read("more"), b"on a too");
}
