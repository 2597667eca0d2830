//! Each server fault under a pool over four kinds of volumes: faults of one volume, and of all.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;

use fsstack_lab::gluster::{KINDS, Which};
use fsstack_lab::{MiB, Pool, needs};

use crate::scenario::{
    Breakable, EIO, PATIENCE, errno, eventually, is_not_made, is_out_of_reach, listing, over_all_kinds,
    volume,
};

/// The kernel's caches answer nothing.
const UNCACHED: [&str; 3] = ["create=ff", "attr-timeout=0", "entry-timeout=0"];

const ENOSPC: Option<i32> = Some(28);

/// Files on each volume, enough for each of its bricks to have some.
const FILES: usize = 32;

/// Callers that wait for a silent brick.
const WAITERS: usize = 8;

fn name(kind: &str, n: usize) -> String {
    format!("{kind}-{n}")
}

fn all() -> impl Iterator<Item = (&'static str, usize)> {
    KINDS.iter().flat_map(|kind| (0..FILES).map(|n| (*kind, n)))
}

/// File content, larger than what a client caches of small files.
fn content(kind: &str) -> Vec<u8> {
    kind.as_bytes().repeat(32 << 10)
}

/// A pool with files on every volume, not read yet.
fn with_files() -> Pool {
    let pool = over_all_kinds(&UNCACHED);
    for (kind, n) in all() {
        fs::write(pool.branch(kind).path().join(name(kind, n)), content(kind)).unwrap();
    }
    assert_eq!(listing(pool.path()).unwrap().len(), all().count());
    pool
}

/// Checks that everything is available again through the same mount.
#[track_caller]
fn assert_whole(pool: &Pool) {
    for (kind, n) in all() {
        eventually(&name(kind, n), || {
            fs::read(pool.at(name(kind, n))).is_ok_and(|bytes| bytes == content(kind))
        });
    }
    eventually("all is listed", || {
        listing(pool.path()).is_ok_and(|names| all().all(|(kind, n)| names.contains(&name(kind, n).into())))
    });
    pool.write("afterwards", b"goes on");
    assert_eq!(pool.read("afterwards"), b"goes on");
    assert_eq!(pool.holders("afterwards").len(), 1);
    fs::remove_file(pool.at("afterwards")).unwrap();
}

/// Checks that lookups fail with an error, and creates do too.
#[track_caller]
fn assert_out_of_reach(pool: &Pool) {
    for kind in KINDS {
        assert!(is_out_of_reach(fs::read(pool.at(name(kind, 0)))), "{kind}");
        assert!(is_not_made(make_new(&pool.at(name(kind, 0)))), "{kind}");
    }
    assert_eq!(errno(fs::symlink_metadata(pool.at("nowhere"))), EIO);
    assert_eq!(errno(fs::create_dir(pool.at("nowhere"))), EIO);
    assert_eq!(errno(fs::remove_file(pool.at("nowhere"))), EIO);
    assert_eq!(errno(listing(pool.path())), EIO);
}

fn make_new(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

#[test]
fn a_dead_brick_of_each_redundant_volume_shows_nowhere() {
    needs!(mounting(), gluster());
    let pool = with_files();
    let lab = Breakable::new();
    for (kind, brick) in [("dp3rd1", 2), ("dt2rp2", 3), ("dt2dp3rd1", 5)] {
        lab.kill_brick(volume(kind), brick).unwrap();
    }
    assert_eq!(listing(pool.path()).unwrap().len(), all().count());
    for (kind, n) in all() {
        assert!(pool.read(name(kind, n)) == content(kind), "{kind} {n}");
        // On the same volume, because the directory is there.
        fs::rename(pool.at(name(kind, n)), pool.at(format!("{kind}-renamed-{n}"))).unwrap();
        pool.write(name(kind, n), b"new");
    }
    pool.mkdir("a/b/c");
    pool.write("a/b/c/file", b"new");
    assert_eq!(pool.read("a/b/c/file"), b"new");
    lab.mend();
    for (kind, n) in all() {
        assert_eq!(pool.read(name(kind, n)), b"new");
        fs::remove_file(pool.at(name(kind, n))).unwrap();
        fs::rename(pool.at(format!("{kind}-renamed-{n}")), pool.at(name(kind, n))).unwrap();
    }
    fs::remove_dir_all(pool.at("a")).unwrap();
    assert_whole(&pool);
}

#[test]
fn parts_that_volumes_lost_are_errors_and_all_else_goes_on() {
    needs!(mounting(), gluster());
    let pool = with_files();
    let lab = Breakable::new();
    // A subvolume of each volume that has several; the dispersed one has one, and survives this.
    for (kind, brick) in
        [("dt4", 2), ("dt2rp2", 1), ("dt2rp2", 2), ("dt2dp3rd1", 1), ("dt2dp3rd1", 3), ("dp3rd1", 1)]
    {
        lab.kill_brick(volume(kind), brick).unwrap();
    }
    eventually("the clients know", || listing(pool.path()).is_err());
    for kind in KINDS {
        let check = (0..FILES).map(|n| fs::read(pool.at(name(kind, n))));
        let (there, lost): (Vec<_>, Vec<_>) = check.partition(Result::is_ok);
        assert!(there.into_iter().flatten().all(|bytes| bytes == content(kind)), "{kind}");
        assert_eq!(lost.is_empty(), kind == "dp3rd1", "{kind}: {} are lost", lost.len());
        assert!(lost.into_iter().all(is_out_of_reach), "{kind}");
    }
    // These names may be on the lost part.
    assert_eq!(errno(fs::symlink_metadata(pool.at("nowhere"))), EIO);
    assert_eq!(errno(make_new(&pool.at("nowhere"))), EIO);
    assert_eq!(errno(listing(pool.path())), EIO);
    lab.mend();
    assert_whole(&pool);
    let made_twice = all().find(|(kind, n)| pool.holders(name(kind, *n)) != [*kind]);
    assert_eq!(made_twice, None);
}

#[test]
fn a_volume_that_is_dead_takes_its_files_alone() {
    needs!(mounting(), gluster());
    let pool = with_files();
    let lab = Breakable::new();
    // More bricks than it can lose: all of it is unreachable.
    (1..=2).for_each(|brick| lab.kill_brick(volume("dp3rd1"), brick).unwrap());
    for (kind, n) in all() {
        let check = fs::read(pool.at(name(kind, n)));
        match kind {
            "dp3rd1" => assert!(is_out_of_reach(check)),
            _ => assert!(check.unwrap() == content(kind), "{kind} {n}"),
        }
    }
    assert_eq!(errno(fs::symlink_metadata(pool.at("nowhere"))), EIO);
    fs::write(pool.at(name("dt4", 0)), "written meanwhile").unwrap();
    lab.mend();
    eventually("what was written is there", || {
        fs::read(pool.at(name("dt4", 0))).is_ok_and(|bytes| bytes == b"written meanwhile")
    });
    pool.write(name("dt4", 0), &content("dt4"));
    assert_whole(&pool);
}

#[test]
fn a_dead_server_of_all_volumes_is_an_error() {
    needs!(mounting(), gluster());
    let pool = with_files();
    let lab = Breakable::new();
    lab.stop().unwrap();
    assert_out_of_reach(&pool);
    lab.mend();
    assert_whole(&pool);
}

/// Requests while no server answers fail, each within the client's timeout; afterwards everything works.
fn while_all_are_silent(silence: impl FnOnce(&Breakable)) {
    let pool = with_files();
    let lab = Breakable::new();
    silence(&lab);
    let paths: Vec<PathBuf> = KINDS.iter().map(|kind| pool.at(name(kind, 0))).collect();
    let (tell, check) = channel();
    for path in paths {
        let tell = tell.clone();
        thread::spawn(move || tell.send(is_out_of_reach(fs::read(path))));
    }
    for _ in KINDS {
        assert!(check.recv_timeout(PATIENCE).unwrap());
    }
    assert_eq!(errno(fs::symlink_metadata(pool.at("never seen"))), EIO);
    assert_out_of_reach(&pool);
    lab.mend();
    assert_whole(&pool);
}

#[test]
fn a_frozen_server_of_all_volumes_is_an_error() {
    needs!(mounting(), gluster());
    while_all_are_silent(|lab| lab.freeze(Which::Server).unwrap());
}

#[test]
fn a_cut_cable_to_all_volumes_is_an_error() {
    needs!(mounting(), gluster());
    while_all_are_silent(|lab| lab.cut_link().unwrap());
}

#[test]
fn a_frozen_brick_of_one_volume_does_not_block_the_others() {
    needs!(mounting(), gluster());
    let pool = with_files();
    let lab = Breakable::new();
    lab.freeze(Which::Brick(volume("dt4"), 1)).unwrap();
    let paths: Vec<PathBuf> = (0..WAITERS).map(|n| pool.at(name("dt4", n))).collect();
    let (tell, check) = channel();
    for path in paths {
        let tell = tell.clone();
        // Files on other bricks may or may not be served: the whole client may wait.
        thread::spawn(move || tell.send(fs::read(path)));
    }
    for (kind, n) in all().filter(|(kind, _)| *kind != "dt4") {
        assert!(pool.read(name(kind, n)) == content(kind), "{kind} {n}");
        pool.write(name(kind, n), b"written meanwhile");
    }
    for _ in 0..WAITERS {
        match check.recv_timeout(PATIENCE).unwrap() {
            Ok(bytes) => assert!(bytes == content("dt4")),
            refused => assert!(is_out_of_reach(refused)),
        }
    }
    lab.mend();
    for (kind, n) in all().filter(|(kind, _)| *kind != "dt4") {
        assert_eq!(pool.read(name(kind, n)), b"written meanwhile");
        pool.write(name(kind, n), &content(kind));
    }
    assert_whole(&pool);
}

#[test]
fn dead_clients_take_their_volumes_alone_until_these_are_mounted_again() {
    needs!(mounting(), gluster());
    let mut pool = with_files();
    for kind in ["dt2rp2", "dt2dp3rd1"] {
        let clients = fsstack_lab::daemon::serving(pool.branch(kind).path()).unwrap();
        clients.into_iter().for_each(|client| client.kill().unwrap());
    }
    for (kind, n) in all() {
        let check = fs::read(pool.at(name(kind, n)));
        match kind {
            "dt2rp2" | "dt2dp3rd1" => assert!(is_out_of_reach(check)),
            _ => assert!(check.unwrap() == content(kind), "{kind} {n}"),
        }
    }
    for kind in ["dt2rp2", "dt2dp3rd1"] {
        pool.branch_mut(kind).unmount_lazily();
        pool.branch_mut(kind).remount();
    }
    assert_whole(&pool);
}

#[test]
fn full_bricks_under_all_volumes_refuse_and_lose_nothing() {
    needs!(mounting(), gluster());
    let pool = over_all_kinds(&["create=ff", "minfreespace=0", "passthrough-headroom=0"]);
    let lab = Breakable::new();
    let bytes = |n: usize| n.to_le_bytes().repeat(128 << 10);
    let save = |name: &str, n: usize| fs::write(pool.at(name), bytes(n)).map(|()| n);
    // One brick is full, in each volume: most names go to another brick or volume.
    lab.fill(1, MiB(0)).unwrap();
    let check: Vec<_> = (0..24).map(|n| save(&name("one", n), n)).collect();
    let (saved, refused): (Vec<_>, Vec<_>) = check.into_iter().partition(Result::is_ok);
    let saved: Vec<usize> = saved.into_iter().flatten().collect();
    assert!(12 <= saved.len(), "{refused:?}");
    assert!(refused.into_iter().all(|check| errno(check) == ENOSPC));
    let all_there = || saved.iter().all(|n| pool.read(name("one", *n)) == bytes(*n));
    assert!(all_there());
    // All are full: an error, and earlier content is intact.
    (1..=6).for_each(|brick| lab.fill(brick, MiB(0)).unwrap());
    let refused: Vec<_> = (0..24).map(|n| errno(save(&name("all", n), n))).filter(Option::is_some).collect();
    assert!(!refused.is_empty() && refused.iter().all(|check| *check == ENOSPC), "{refused:?}");
    assert!(all_there());
    lab.mend();
    eventually("there is room again", || fs::write(pool.at("later"), bytes(1)).is_ok());
    assert!(pool.read("later") == bytes(1));
}
