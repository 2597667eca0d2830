//! What a branch could not write back, and says once: each who has the file open is told of it once.

use std::fs;
use std::path::Path;

use fsstack_engine::ops::WriteTerms;
use fsstack_pool::Handle;
use fsstack_sys::{Call, Errno, OFlags, fault};
use tempfile::TempDir;

use crate::engine::{Answer, Engine, settings};

/// A pool of these many branches with a file `d/film` on the first.
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

/// Syncs by each.
fn sync<const N: usize>(engine: &Engine, handles: [Handle; N]) -> [Answer<()>; N] {
    handles.map(|handle| engine.union.fsync(handle, false).map_err(|error| error.errno()))
}

/// Does `act`, whose first call of the kind fails with `errno`.
fn failing<T>(call: Call, errno: Errno, act: impl Fn() -> fsstack_engine::Result<T>) -> Answer<T> {
    let mut nth = 0;
    loop {
        nth += 1;
        let (told, failed) = fault::fail(nth, errno, &act);
        match failed {
            Some(failed) if failed == call => return told.map_err(|error| error.errno()),
            Some(_) => {}
            None => panic!("it makes no {call:?}"),
        }
    }
}

const OK: Answer<()> = Ok(());
const LOST: Answer<()> = Err(Errno::IO);

#[test]
fn each_who_has_the_file_open_is_told_once() {
    let (_homes, mut engine) = pool(1);
    let [one, two, reader] = open(&engine, [OFlags::RDWR, OFlags::RDWR, OFlags::RDONLY]);
    assert_eq!(sync(&engine, [one, two, reader]), [OK; 3]);
    assert_eq!(failing(Call::Fsync, Errno::IO, || engine.union.fsync(two, true)), LOST);
    let [late] = open(&engine, [OFlags::RDWR]);
    assert_eq!(sync(&engine, [one, two, reader, late]), [LOST, OK, LOST, OK]);
    assert_eq!(sync(&engine, [one, two, reader, late]), [OK; 4]);
    // Another one, which is no fault of the branch's: all are told of that.
    let full = failing(Call::Fsync, Errno::NOSPC, || engine.union.fsync(late, true));
    assert_eq!(full, Err(Errno::NOSPC));
    assert_eq!(sync(&engine, [one, two, late]), [Err(Errno::NOSPC), Err(Errno::NOSPC), OK]);
    // When nobody has the file open any more, it is over.
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
    // What is refused of a write is that write's own.
    assert_eq!(failing(Call::Write, Errno::IO, || write(one)), LOST);
    assert_eq!(failing(Call::Write, Errno::NOSPC, || write(synced)), Err(Errno::NOSPC));
    assert_eq!(sync(&engine, [one, synced]), [OK; 2]);
    [one, synced].into_iter().for_each(|handle| engine.union.release(handle));
    engine.remount();
}

#[test]
fn a_copy_of_a_directory_that_cannot_be_synced_is_told() {
    let (homes, engine) = pool(3);
    let dir = engine.ino(Path::new("d")).unwrap();
    let sync = || engine.union.fsyncdir(dir, false);
    // One that was removed behind the pool's back has nothing to be synced; one that cannot be asked may have.
    fs::remove_dir(homes[1].path().join("d")).unwrap();
    sync().unwrap();
    let (_, calls) = fault::count(sync);
    for nth in 1..=calls {
        for errno in [Errno::IO, Errno::NOTCONN, Errno::STALE] {
            let (told, failed) = fault::fail(nth, errno, sync);
            assert_eq!(told.map_err(|error| error.errno()), LOST, "{failed:?}: {errno}");
        }
    }
}
