//! Bulk copy: space is reserved, a file is written without the daemon, and gets its name in one step.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use fsstack_engine::Caller;
use fsstack_engine::admin::live::{BadChange, Removal};
use fsstack_engine::admin::reserve::{CopyId, Reserved, Wanted};
use fsstack_engine::admin::watch::Invalidator;
use fsstack_engine::ops::New;
use fsstack_pool::{BranchIx, EntryName, Ino};
use fsstack_sys::at::RenameFlags;
use fsstack_sys::locks::{self, Lock, LockType, TO_THE_END};
use fsstack_sys::{Errno, OFlags};

use crate::test_bed::TestBed;

fn refused<T: std::fmt::Debug>(answer: fsstack_engine::Result<T>) -> Errno {
    answer.unwrap_err().errno()
}

fn wanted(name: &str, size: u64) -> Wanted {
    Wanted { name: CString::new(name).unwrap(), size, not_on: Vec::new() }
}

/// Reserves space for one file.
fn reserve(
    pool: &TestBed,
    copy: CopyId,
    dir: Ino,
    name: &str,
    size: u64,
) -> fsstack_engine::Result<Reserved> {
    pool.union.reserve(copy, dir, &[wanted(name, size)])?.remove(0)
}

/// Path at which the reserved file is to be written.
fn staged(pool: &TestBed, copy: CopyId, of: Reserved) -> PathBuf {
    let place = pool.union.staging_place(copy, of.branch).unwrap();
    place.branch.join(place.folder).join(of.id.to_string())
}

fn commit(pool: &TestBed, copy: CopyId, of: Reserved) -> fsstack_engine::Result<()> {
    pool.union.commit(copy, &[of.id]).remove(0)
}

const ROOT: Ino = Ino::ROOT;

/// Number of calls to the kernel.
#[derive(Debug, Default)]
struct Told(Mutex<Vec<(Ino, CString)>>);

impl Invalidator for Told {
    fn name(&self, parent: Ino, name: &CStr) {
        self.0.lock().unwrap().push((parent, name.to_owned()));
    }
    fn all_names(&self) -> bool {
        true
    }
    fn attributes(&self, ino: Ino) {
        self.0.lock().unwrap().push((ino, CString::default()));
    }
    fn data(&self, _: Ino) {}
}

#[test]
fn nothing_is_seen_until_it_is_whole() {
    let pool = TestBed::new(2);
    pool.put_dir(1, "d");
    let result = Arc::new(Told::default());
    pool.union.set_invalidator(result.clone());
    let dir = pool.ino("d");
    assert_eq!(pool.find("d/film").map(drop), Err(Errno::NOENT), "the kernel may remember that");
    let copy = pool.union.start_copy();
    let place = reserve(&pool, copy, dir, "film", 5).unwrap();
    assert_eq!(place.branch, BranchIx(0));
    let staged = staged(&pool, copy, place);
    fs::write(&staged, "whole").unwrap();
    assert!(pool.names("d").is_empty() && pool.names("") == ["d"], "the staging folder is hidden");
    assert_eq!(pool.union.status().branches[0].reserved, 5);
    assert_eq!(pool.union.reservations(), 1);
    commit(&pool, copy, place).unwrap();
    assert_eq!(pool.read("d/film").unwrap(), "whole");
    assert_eq!(*result.0.lock().unwrap(), [(dir, c"film".to_owned()), (dir, CString::default())]);
    assert_eq!(pool.union.status().branches[0].reserved, 0);
    assert_eq!(refused(commit(&pool, copy, place)), Errno::NOENT);
    pool.union.end_copy(copy);
    assert_eq!(pool.holders(".fsstack.moving"), [0_usize; 0], "nothing is left over");
    assert_eq!(pool.create("d/film").map(drop), Err(Errno::EXIST));
}

#[test]
fn a_name_that_came_meanwhile_is_kept() {
    let pool = TestBed::new(1);
    let copy = pool.union.start_copy();
    let place = reserve(&pool, copy, ROOT, "film", 1).unwrap();
    fs::write(staged(&pool, copy, place), "second").unwrap();
    pool.write("film", "first");
    assert_eq!(refused(commit(&pool, copy, place)), Errno::EXIST);
    assert_eq!(pool.read("film").unwrap(), "first");
    assert_eq!(pool.names(""), ["film"]);
    assert_eq!(refused(reserve(&pool, copy, Ino(7 << 40), "film", 1)), Errno::STALE);
    assert_eq!(refused(reserve(&pool, copy, ROOT, ".fsstack.moving", 1)), Errno::PERM);
    pool.union.end_copy(copy);
    assert_eq!(pool.holders(".fsstack.moving"), [0_usize; 0]);
    assert_eq!(refused(reserve(&pool, copy, ROOT, "late", 1)), Errno::STALE, "the copy is over");
}

/// The kernel serialises creators of a name in a directory, but does not know of a copy.
#[test]
fn one_wins_where_a_copy_and_others_make_a_name() {
    let pool = TestBed::new(2);
    let dir = pool.mkdir("d").unwrap();
    pool.put_dir(1, "d");
    pool.put(0, "d/source", "x");
    let source = pool.ino("d/source");
    let copy = pool.union.start_copy();
    let (name, from) = (EntryName::new(c"film").unwrap(), EntryName::new(c"source").unwrap());
    let mut won = [0; 2];
    for round in 0..400 {
        let wanted = Wanted { not_on: vec![BranchIx(0)], ..wanted("film", 1) };
        let place = pool.union.reserve(copy, dir, &[wanted]).unwrap().remove(0).unwrap();
        fs::write(staged(&pool, copy, place), "copied").unwrap();
        // Like the kernel: a lookup before the create. A rename replaces an existing name instead.
        assert!(pool.union.lookup(dir, name).is_err());
        let barrier = Barrier::new(2);
        let (made, copied) = thread::scope(|scope| {
            let made = scope.spawn(|| {
                barrier.wait();
                let (union, caller) = (&pool.union, Caller::DAEMON);
                match round % 4 {
                    0 => union.create(dir, name, 0o644, OFlags::RDWR | OFlags::EXCL, caller).map(|made| {
                        union.release(made.opened.handle);
                        made.entry
                    }),
                    1 => union.make(dir, name, New::Symlink(c"there"), caller),
                    2 => union.link(source, dir, name),
                    _ => union
                        .rename((dir, from), (dir, name), RenameFlags::NOREPLACE)
                        .and_then(|()| union.lookup(dir, name)),
                }
            });
            barrier.wait();
            let copied = commit(&pool, copy, place);
            (made.join().unwrap(), copied)
        });
        let refused = match (&made, &copied) {
            (Ok(entry), Err(refused)) => {
                pool.hold(entry);
                won[0] += 1;
                refused
            }
            (Err(refused), Ok(())) => {
                won[1] += 1;
                refused
            }
            both => panic!("round {round}: {both:?}"),
        };
        assert_eq!(refused.errno(), Errno::EXIST, "round {round}");
        assert_eq!(pool.holders("d/film").len(), 1, "round {round}");
        if round % 4 == 3 && made.is_ok() {
            pool.rename("d/film", "d/source").unwrap();
        } else {
            pool.unlink("d/film").unwrap();
        }
    }
    assert!(won.iter().all(|won| *won > 0), "they never met: {won:?}");
    pool.union.end_copy(copy);
}

#[test]
fn the_file_follows_its_directory() {
    let pool = TestBed::new(1);
    pool.mkdir("d").unwrap();
    let dir = pool.ino("d");
    let copy = pool.union.start_copy();
    let place = reserve(&pool, copy, dir, "film", 0).unwrap();
    fs::write(staged(&pool, copy, place), "").unwrap();
    pool.rename("d", "renamed").unwrap();
    commit(&pool, copy, place).unwrap();
    assert_eq!(pool.names("renamed"), ["film"]);
    let place = reserve(&pool, copy, dir, "second", 0).unwrap();
    let second = staged(&pool, copy, place);
    fs::write(&second, "").unwrap();
    pool.unlink("renamed/film").unwrap();
    pool.rmdir("renamed").unwrap();
    assert_eq!(refused(commit(&pool, copy, place)), Errno::NOENT);
    assert!(pool.names("").is_empty() && !second.exists());
    pool.union.end_copy(copy);
}

#[test]
fn promised_space_counts_as_taken_and_keeps_the_branch() {
    let pool = TestBed::new(2);
    let free = |at: usize| pool.union.status().branches[at].space.unwrap().available;
    let most = free(0) / 2 + (1 << 20);
    let copy = pool.union.start_copy();
    // One request has the same result as several.
    let both = pool.union.reserve(copy, ROOT, &[wanted("first", most), wanted("second", most)]).unwrap();
    let [first, second] = [0, 1].map(|at| *both[at].as_ref().unwrap());
    assert_eq!(first.branch, BranchIx(0));
    assert_eq!(second.branch, BranchIx(1), "the first has no room for both");
    assert_eq!(refused(reserve(&pool, copy, ROOT, "third", u64::MAX)), Errno::NOSPC);
    let stays = pool.union.remove_branch(BranchIx(0), Removal::IfIdle).unwrap_err();
    assert!(matches!(stays, BadChange::InUse { open: 1, .. }), "{stays}");
    let half = staged(&pool, copy, first);
    fs::write(&half, "half").unwrap();
    pool.union.abandon(copy, &[first.id, second.id]);
    pool.union.abandon(copy, &[second.id]);
    assert!(!half.exists());
    assert_eq!(pool.union.reservations(), 0);
    pool.union.end_copy(copy);
    pool.union.remove_branch(BranchIx(0), Removal::IfIdle).unwrap();
    let copy = pool.union.start_copy();
    let last = reserve(&pool, copy, ROOT, "last", 1).unwrap();
    let last = staged(&pool, copy, last);
    fs::write(&last, "half").unwrap();
    pool.union.destroy();
    assert!(!last.exists(), "the mount's end leaves nothing");
}

/// The file system counts written space; the reservation counts the rest.
#[test]
fn written_bytes_are_not_counted_twice() {
    const LARGE: u64 = 1 << 30;
    let pool = TestBed::new(1);
    let free = || pool.union.status().branches[0].space.unwrap().available;
    let copy = pool.union.start_copy();
    let before = free();
    let film = reserve(&pool, copy, ROOT, "film", LARGE).unwrap();
    assert!(free() <= before - LARGE + LARGE / 2, "promised");
    let made = fs::File::create(staged(&pool, copy, film)).unwrap();
    rustix::fs::fallocate(&made, rustix::fs::FallocateFlags::empty(), 0, LARGE).unwrap();
    let look_again = || pool.union.pool().branches[0].distrust_space();
    look_again();
    assert!(before - LARGE - LARGE / 2 < free(), "there, and not promised any more");
    commit(&pool, copy, film).unwrap();
    assert!(before - LARGE - LARGE / 2 < free(), "named");
    look_again();
    assert!(before - LARGE - LARGE / 2 < free(), "asked again");
    pool.union.end_copy(copy);
}

#[test]
fn a_branch_that_could_not_take_it_is_passed_over() {
    let pool = TestBed::new(2);
    let copy = pool.union.start_copy();
    let again = Wanted { not_on: vec![BranchIx(0)], ..wanted("film", 1) };
    let place = pool.union.reserve(copy, ROOT, std::slice::from_ref(&again)).unwrap().remove(0).unwrap();
    assert_eq!(place.branch, BranchIx(1));
    let nowhere = Wanted { not_on: vec![BranchIx(0), BranchIx(1)], ..again };
    assert_eq!(refused(pool.union.reserve(copy, ROOT, &[nowhere]).unwrap().remove(0)), Errno::NOSPC);
    pool.union.end_copy(copy);
}

#[test]
fn leftovers_of_a_copy_are_cleared_by_the_next_mount_after_a_kill() {
    let mut pool = TestBed::new(1);
    let left = pool.on(0, ".fsstack.moving/0123456789abcdef.copy");
    for dir in [left.parent().unwrap(), &left] {
        fs::create_dir(dir).unwrap();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).unwrap();
    }
    fs::write(left.join("7"), "half").unwrap();
    // Another host's daemon is working on it.
    let lock = fs::File::create_new(left.join(".lock")).unwrap();
    let all = Lock { start: 0, end: TO_THE_END, kind: LockType::Write, pid: 0 };
    locks::try_lock(lock.as_fd(), all).unwrap();
    pool.remount(|_| {});
    assert!(left.join("7").exists());
    drop(lock);
    pool.remount(|_| {});
    assert!(!left.exists());
    assert_eq!(pool.holders(".fsstack.moving"), [0_usize; 0]);
}
