//! The daemon dies while a branch is away or dead: the next one serves the others, and takes nothing else for it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use fsstack_lab::cleanup::Entry;
use fsstack_lab::{self as lab, Kind, MiB, Pool, mounts, needs, until};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::Signal;

use super::{crash, crash_and_serve};
use crate::dead_branches::errno;
use crate::hung_branches::FrozenDaemon;
use crate::script::sh;
use crate::taken_away::IdleProgram;

const EIO: Option<i32> = Some(5);

/// New files go to `b`, which can be taken away; the kernel caches nothing.
fn pool(kind: Kind) -> Pool {
    let pool = lab::pool().branch("b", kind).tmp_branch("a");
    let pool = pool
        .option("transport=dev,restart=keep,create=ff,minfreespace=1M,attr-timeout=0,entry-timeout=0")
        .mount();
    fs::write(pool.branch("b").path().join("there"), "content").unwrap();
    // A disk that fails loses the rest.
    rustix::fs::syncfs(File::open(pool.branch("b").path()).unwrap()).unwrap();
    fs::write(pool.branch("a").path().join("here"), "here").unwrap();
    assert_eq!(pool.read("there"), b"content");
    pool
}

fn is_missed(pool: &Pool) -> bool {
    errno(fs::read(pool.at("there"))) == EIO
}

/// Names of the branch are errors until `comes_back` has brought it back.
#[track_caller]
fn is_served_without(pool: &mut Pool, comes_back: impl FnOnce(&mut Pool)) {
    assert!(is_missed(pool), "{:?}", fs::read(pool.at("there")));
    assert_eq!(errno(fs::write(pool.at("new"), "new")), EIO);
    assert_eq!(pool.read("here"), b"here");
    comes_back(pool);
    until("the branch is back", || fs::read(pool.at("there")).is_ok_and(|text| text == b"content"));
    pool.write("new", b"new");
    assert_eq!(pool.holders("new"), ["b"]);
}

/// Nobody would see that files on the system disk are in place of those on the branch.
#[test]
fn the_directory_below_a_branch_that_is_away_is_not_taken_for_it() {
    needs!(mounting(), loops());
    for is_known in [true, false] {
        let mut pool = pool(Kind::Xfs(MiB(300)));
        pool.branch_mut("b").unmount_lazily();
        if is_known {
            until("the branch is missed", || is_missed(&pool));
        }
        crash_and_serve(&pool);
        is_served_without(&mut pool, |pool| {
            let below = fs::read_dir(pool.branch("b").path()).unwrap();
            assert_eq!(below.count(), 0, "the daemon has written below the branch");
            pool.branch_mut("b").remount();
        });
        crash_and_serve(&pool);
        assert_eq!(pool.read("new"), b"new");
    }
}

/// The branch was mounted again before the death: its root is not the one that was noted.
#[test]
fn a_branch_that_was_mounted_again_is_found() {
    needs!(mounting(), loops());
    let mut pool = pool(Kind::Xfs(MiB(300)));
    pool.branch_mut("b").unmount_lazily();
    until("the branch is missed", || is_missed(&pool));
    pool.branch_mut("b").remount();
    until("the branch is back", || fs::read(pool.at("there")).is_ok());
    crash_and_serve(&pool);
    until("the branch is there", || fs::read(pool.at("there")).is_ok_and(|text| text == b"content"));
}

#[test]
fn a_disk_that_has_failed_does_not_end_the_pool_with_the_daemon() {
    needs!(mounting(), loops(), program("xfs_io"));
    let mut pool = pool(Kind::Xfs(MiB(300)));
    sh("/", &format!("xfs_io -x -c shutdown '{}'", pool.branch("b").path().display()));
    until("the branch is missed", || is_missed(&pool));
    crash_and_serve(&pool);
    is_served_without(&mut pool, |pool| {
        pool.branch_mut("b").unmount();
        pool.branch_mut("b").remount();
    });
}

#[test]
fn a_dead_server_of_a_branch_does_not_end_the_pool_with_the_daemon() {
    needs!(mounting(), program("mergerfs"));
    let mut pool = pool(Kind::Numbered);
    pool.branch("b").daemon().kill().unwrap();
    until("the branch is missed", || is_missed(&pool));
    crash_and_serve(&pool);
    is_served_without(&mut pool, |pool| {
        pool.branch_mut("b").unmount_by_force();
        pool.branch_mut("b").remount();
    });
}

/// A service manager may start a client again that died together with the daemon, for want of memory.
#[test]
fn a_branch_that_is_back_at_once_keeps_its_open_files() {
    needs!(mounting());
    let home = tempfile::tempdir().unwrap();
    let [source, at] = ["source", "at"].map(|name| home.path().join(name));
    [&source, &at].iter().for_each(|dir| fs::create_dir(dir).unwrap());
    fs::write(source.join("there"), "content").unwrap();
    let mounted = Entry::mount(&at).unwrap();
    mount_bind(&source, &at).unwrap();
    let pool = lab::pool().tmp_branch("a").over(&[at.to_str().unwrap()]);
    let pool = pool.option("transport=dev,restart=keep,write-path=stacked").mount();
    let open = File::open(pool.at("there")).unwrap();
    unmount(&at, UnmountFlags::DETACH).unwrap();
    crash(&pool);
    mount_bind(&source, &at).unwrap();
    until("the pool answers", || fs::metadata(pool.path()).is_ok());
    let mut text = [0; 7];
    open.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"content");
    drop((open, pool, mounted));
}

/// The pool lives on for a program in it, and its path is used otherwise.
#[test]
fn a_keeper_that_gives_up_unmounts_its_own_pool_only() {
    needs!(mounting());
    let pool = super::pool(&[]);
    let (path, keeper) = (pool.path().to_owned(), pool.daemon());
    let inside = IdleProgram::start(&[], &path);
    sh("/", &format!("umount -l '{}'", path.display()));
    let other = Entry::mount(&path).unwrap();
    sh("/", &format!("mount -t tmpfs tmpfs '{}'", path.display()));
    File::create(path.join("file")).unwrap();
    for _ in 0..2 {
        let dies = keeper.child().unwrap();
        dies.kill().unwrap();
        until("another daemon", || keeper.child().is_some_and(|next| next != dies));
    }
    keeper.child().unwrap().kill().unwrap();
    until("the keeper ends", || !keeper.lives());
    let at_path = mounts::at(&path).unwrap().map(|mount| mount.fs_type);
    drop(inside);
    assert_eq!(at_path.as_deref(), Some("tmpfs"));
    assert!(path.join("file").exists());
    other.undo().unwrap();
}

/// A server that hangs holds up no file of the other branches; what is open on it goes on when it answers again.
#[test]
fn a_branch_that_hangs_at_the_death_does_not_hold_up_the_others() {
    needs!(mounting(), program("mergerfs"));
    let pool = lab::pool().branch("b", Kind::Numbered).tmp_branch("a");
    let options = "transport=dev,restart=keep,create=ff,minfreespace=1M,branch-timeout=2,write-path=stacked";
    let pool = pool.option(options).option("attr-timeout=0,entry-timeout=0").mount();
    pool.write("there", b"content");
    fs::write(pool.branch("a").path().join("here"), "here").unwrap();
    let open = File::options().read(true).write(true).open(pool.at("there")).unwrap();
    let frozen = FrozenDaemon::new(pool.branch("b").daemon());
    crash(&pool);
    until("the others are served", || fs::read(pool.at("here")).is_ok_and(|text| text == b"here"));
    assert!(is_missed(&pool), "{:?}", fs::read(pool.at("there")));
    assert_eq!(errno(open.read_at(&mut [0; 7], 0)), EIO);
    drop(frozen);
    until("the branch is back", || fs::read(pool.at("there")).is_ok_and(|text| text == b"content"));
    open.write_all_at(b"C", 0).unwrap();
    assert_eq!(pool.read("there"), b"Content");
    assert_eq!(fs::read(pool.branch("b").path().join("there")).unwrap(), b"Content");
}

/// SIGTERM ends a pool whose next daemon waits for a branch that hangs.
#[test]
fn a_pool_ends_while_its_next_daemon_waits_for_a_branch() {
    needs!(mounting(), program("mergerfs"));
    let pool = lab::pool().branch("b", Kind::Numbered).tmp_branch("a");
    let pool = pool.option("transport=dev,restart=keep,branch-timeout=2").mount();
    let keeper = pool.daemon();
    let frozen = FrozenDaemon::new(pool.branch("b").daemon());
    crash(&pool);
    keeper.signal(Signal::TERM).unwrap();
    until("the keeper ends", || !keeper.lives());
    assert_eq!(mounts::at(pool.path()).unwrap(), None);
    drop(frozen);
}
