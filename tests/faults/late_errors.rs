//! Write-back errors that a branch reports once: each open file gets them once.

use std::fs;
use std::path::Path;

use fsstack_engine::ops::WriteTerms;
use fsstack_lab::needs;
use fsstack_pool::Handle;
use fsstack_sys::{Call, Errno, OFlags, fault};
use tempfile::TempDir;

use crate::beside::Served;
use crate::engine::{Answer, Engine, settings};

/// A pool with this many branches and a file `d/film` on the first.
fn pool(branches: usize) -> (Vec<TempDir>, Engine) {
    let homes: Vec<_> = (0..branches).map(|_| tempfile::tempdir().unwrap()).collect();
    homes.iter().for_each(|home| fs::create_dir(home.path().join("d")).unwrap());
    fs::write(homes[0].path().join("d/film"), "x").unwrap();
    let engine = Engine::over(homes.iter().map(TempDir::path), settings("ff"));
    (homes, engine)
}

fn open<const N: usize>(engine: &Engine, how: [OFlags; N]) -> [Handle; N] {
    how.map(|how| engine.open(Path::new("d/film"), how).unwrap())
}

/// Syncs through each handle.
fn sync<const N: usize>(engine: &Engine, handles: [Handle; N]) -> [Answer<()>; N] {
    handles.map(|handle| engine.union.fsync(handle, false).map_err(|error| error.errno()))
}

/// Runs `act`, in which the first call of the given kind fails with `errno`.
fn failing<T>(call: Call, errno: Errno, act: impl Fn() -> fsstack_engine::Result<T>) -> Answer<T> {
    let mut nth = 0;
    loop {
        nth += 1;
        let (check, failed) = fault::fail(nth, errno, &act);
        match failed {
            Some(failed) if failed == call => return check.map_err(|error| error.errno()),
            Some(_) => {}
            None => panic!("it makes no {call:?}"),
        }
    }
}

const OK: Answer<()> = Ok(());
const LOST: Answer<()> = Err(Errno::IO);

#[test]
fn each_open_file_description_gets_an_error_once() {
    let (_homes, mut engine) = pool(1);
    let [one, two, reader] = open(&engine, [OFlags::RDWR, OFlags::RDWR, OFlags::RDONLY]);
    assert_eq!(sync(&engine, [one, two, reader]), [OK; 3]);
    assert_eq!(failing(Call::Fsync, Errno::IO, || engine.union.fsync(two, true)), LOST);
    let [late] = open(&engine, [OFlags::RDWR]);
    assert_eq!(sync(&engine, [one, two, reader, late]), [LOST, OK, LOST, OK]);
    assert_eq!(sync(&engine, [one, two, reader, late]), [OK; 4]);
    // A different error, not a fault of the branch: all handles get it.
    let full = failing(Call::Fsync, Errno::NOSPC, || engine.union.fsync(late, true));
    assert_eq!(full, Err(Errno::NOSPC));
    assert_eq!(sync(&engine, [one, two, late]), [Err(Errno::NOSPC), Err(Errno::NOSPC), OK]);
    // When all handles are closed, the error is dropped.
    [one, two, reader, late].into_iter().for_each(|handle| engine.union.release(handle));
    let again = open(&engine, [OFlags::RDWR]);
    assert_eq!(sync(&engine, again), [OK]);
    again.into_iter().for_each(|handle| engine.union.release(handle));
    engine.remount();
}

#[test]
fn a_synced_write_tells_the_others_of_what_was_lost() {
    let (_homes, mut engine) = pool(1);
    let [one, synced] = open(&engine, [OFlags::RDWR, OFlags::RDWR | OFlags::SYNC]);
    let write = |handle| engine.union.write(handle, 0, b"x", WriteTerms::default()).map(drop);
    assert_eq!(failing(Call::Write, Errno::IO, || write(synced)), LOST);
    assert_eq!(sync(&engine, [one, synced]), [LOST, OK]);
    // The error of a refused write belongs to that write.
    assert_eq!(failing(Call::Write, Errno::IO, || write(one)), LOST);
    assert_eq!(failing(Call::Write, Errno::NOSPC, || write(synced)), Err(Errno::NOSPC));
    assert_eq!(sync(&engine, [one, synced]), [OK; 2]);
    [one, synced].into_iter().for_each(|handle| engine.union.release(handle));
    engine.remount();
}

#[test]
fn a_copy_of_a_directory_that_cannot_be_synced_is_reported() {
    let (homes, engine) = pool(3);
    let dir = engine.ino(Path::new("d")).unwrap();
    let sync = || engine.union.fsyncdir(dir, fsstack_pool::Handle(0), false);
    // A copy removed out of band needs no sync; one that cannot be asked may need one.
    fs::remove_dir(homes[1].path().join("d")).unwrap();
    sync().unwrap();
    let (_, calls) = fault::count(sync);
    for nth in 1..=calls {
        for errno in [Errno::IO, Errno::NOTCONN, Errno::STALE] {
            let (check, failed) = fault::fail(nth, errno, sync);
            assert_eq!(check.map_err(|error| error.errno()), LOST, "{failed:?}: {errno}");
        }
    }
}

/// A remote branch with the file, and one with room for it.
fn served_pool() -> (Served, TempDir, Engine) {
    let (served, home) = (Served::mount(), tempfile::tempdir().unwrap());
    fs::write(served.path.join("d/film"), "x").unwrap();
    let engine = Engine::over([&*served.path, home.path()].into_iter(), settings("ff"));
    (served, home, engine)
}

/// A process closes an inherited descriptor and ignores the result.
#[test]
fn the_fsync_reports_the_error_of_the_close_too() {
    needs!(mounting());
    let (_served, _home, engine) = served_pool();
    let [one, two] = open(&engine, [OFlags::RDWR, OFlags::RDWR]);
    let write = |handle| engine.union.write(handle, 0, b"y", WriteTerms::default()).unwrap();
    write(one);
    assert_eq!(failing(Call::Fsync, Errno::IO, || engine.union.fsync(two, false)), LOST);
    let close = |handle| engine.union.flush(handle).map_err(|error| error.errno());
    assert_eq!([close(one), close(one)], [LOST; 2]);
    assert_eq!(sync(&engine, [one, two, one]), [LOST, OK, OK]);
    assert_eq!(close(one), OK);
    // The close itself reports it.
    write(two);
    assert_eq!(failing(Call::Write, Errno::NOSPC, || engine.union.flush(two)), Err(Errno::NOSPC));
    assert_eq!(sync(&engine, [one, two, one, two]), [Err(Errno::NOSPC), Err(Errno::NOSPC), OK, OK]);
}

/// A write finds the branch full, and earlier writes were lost too: the error is returned, and the file is not moved.
#[test]
fn a_file_is_not_moved_without_what_was_acknowledged() {
    needs!(mounting());
    let check = (1..16).map(|later| {
        let (served, _home, engine) = served_pool();
        let [one, two] = open(&engine, [OFlags::RDWR, OFlags::RDWR]);
        let write = |at| engine.union.write(one, at, b"y", WriteTerms::default());
        write(1).unwrap();
        let (check, failed) = fault::fail_twice(1, later, Errno::NOSPC, || write(2));
        assert_eq!(failed, Some(Call::Write));
        let stays = served.path.join("d/film").exists();
        (check.map_err(|error| error.errno()), stays, sync(&engine, [one, two, one, two]))
    });
    let full = Err(Errno::NOSPC);
    let check: Vec<_> = check.collect();
    assert!(check.contains(&(Err(Errno::NOSPC), true, [full, full, OK, OK])), "{check:?}");
    // If everything was stored there is no error.
    let (served, _home, engine) = served_pool();
    let [one, two] = open(&engine, [OFlags::RDWR, OFlags::RDWR]);
    let write = |at| engine.union.write(one, at, b"y", WriteTerms::default()).unwrap();
    write(1);
    assert_eq!(fault::fail(1, Errno::NOSPC, || write(2)).0, 1);
    assert!(!served.path.join("d/film").exists());
    assert_eq!(sync(&engine, [one, two]), [OK; 2]);
}
