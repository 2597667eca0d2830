//! Branches are added, removed and changed while the pool is in use.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use fsstack_engine::Caller;
use fsstack_engine::admin::live::{BadChange, Position, Removal};
use fsstack_engine::ops::{New, WriteTerms};
use fsstack_pool::{BranchIx, BranchMode, BranchSpec, Floor, Ino};
use fsstack_sys::{Errno, OFlags};
use tempfile::TempDir;

use crate::test_bed::{TestBed, buf, wary};

/// A directory with these files, which contain the directory's own name.
fn home(files: &[&str]) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    for file in files {
        let path = home.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "from outside").unwrap();
    }
    home
}

fn spec(home: &TempDir) -> BranchSpec {
    BranchSpec::new(home.path().to_owned())
}

fn add(pool: &TestBed, home: &TempDir, position: Position) -> BranchIx {
    pool.union.add_branch(&spec(home), position).unwrap()
}

fn order(pool: &TestBed) -> Vec<u16> {
    pool.union.pool().branches.iter().map(|branch| branch.ix.0).collect()
}

#[test]
fn the_content_of_an_added_branch_is_there_at_once() {
    let pool = TestBed::new(1);
    pool.put(0, "d/e/here", "x");
    // The directories' copies are cached for an hour.
    assert_eq!(pool.names("d/e"), ["here"]);
    assert_eq!(pool.find("d/new").map(drop), Err(Errno::NOENT));
    let more = home(&["d/new", "d/e/there", "top"]);
    let ix = add(&pool, &more, Position::Last);
    assert_eq!(order(&pool), [0, ix.0]);
    assert_eq!(pool.names(""), ["d", "top"]);
    assert_eq!(pool.names("d/e"), ["here", "there"]);
    assert_eq!(pool.read("d/new").unwrap(), "from outside");
    assert_eq!(pool.create("d/e/there").map(drop), Err(Errno::EXIST));
}

#[test]
fn a_directory_that_a_program_is_in_learns_of_its_new_copy() {
    let pool = TestBed::new(1);
    pool.put(0, "d/here", "x");
    let dir = pool.ino("d");
    let more = home(&["d/there"]);
    add(&pool, &more, Position::Last);
    // By its number, without a lookup.
    assert!(pool.lookup(dir, "there").is_ok());
    assert_eq!(pool.ino("d"), dir, "its number stays");
}

#[test]
fn an_earlier_branch_decides_from_then_on() {
    let pool = TestBed::new(1);
    pool.write("film", "old");
    let more = home(&["film"]);
    let ix = add(&pool, &more, Position::Before(BranchIx(0)));
    assert_eq!(order(&pool), [ix.0, 0]);
    assert_eq!(pool.read("film").unwrap(), "from outside");
    pool.union.remove_branch(ix, Removal::IfIdle).unwrap();
    assert_eq!(pool.read("film").unwrap(), "old");
}

#[test]
fn a_removed_branch_takes_its_names_along_and_nothing_else() {
    let mut pool = TestBed::new(2);
    pool.put(0, "d/first", "1");
    pool.put(1, "d/second", "2");
    pool.put(1, "only/there", "3");
    let (dir, there) = (pool.ino("d"), pool.ino("only/there"));
    assert_eq!(pool.names("d"), ["first", "second"]);
    pool.union.remove_branch(BranchIx(1), Removal::IfIdle).unwrap();
    assert_eq!(pool.names("d"), ["first"]);
    assert_eq!(pool.find("d/second").map(drop), Err(Errno::NOENT));
    assert_eq!(pool.find("only").map(drop), Err(Errno::NOENT));
    assert_eq!(pool.getattr(there).map(drop), Err(Errno::STALE));
    assert_eq!(pool.ino("d"), dir);
    pool.write("d/second", "mine now");
    assert_eq!(pool.holders("d/second"), [0, 1], "the branch itself is as it was");
    pool.remount(|_| ());
}

#[test]
fn a_directory_keeps_its_number_when_the_branch_that_it_came_from_leaves() {
    for leaves in [BranchIx(0), BranchIx(1)] {
        let pool = TestBed::with(&[BranchMode::ReadWrite; 2], wary());
        pool.put(0, "d/first", "1");
        pool.put(1, "d/second", "2");
        let dir = pool.ino("d");
        pool.union.remove_branch(leaves, Removal::IfIdle).unwrap();
        assert_eq!(pool.ino("d"), dir);
        assert_eq!(pool.list("").first().unwrap().ino, dir.0);
    }
}

#[test]
fn a_branch_that_comes_back_shows_the_same_files_under_the_same_numbers() {
    let pool = TestBed::new(1);
    let more = home(&["d/film"]);
    let first = add(&pool, &more, Position::Last);
    let film = pool.ino("d/film");
    pool.union.remove_branch(first, Removal::IfIdle).unwrap();
    assert_eq!(pool.find("d").map(drop), Err(Errno::NOENT));
    let again = add(&pool, &more, Position::Last);
    assert_eq!(again, first, "nothing remembers the slot: it is used again");
    assert_eq!(pool.ino("d/film"), film);
    assert_eq!(pool.read_ino(film).unwrap(), "from outside");
}

#[test]
fn a_listing_goes_on_where_its_branch_has_left() {
    let pool = TestBed::new(1);
    (0..3).for_each(|n| pool.put(0, &format!("last-{n}"), ""));
    let more = home(&["a", "b", "c", "d"]);
    let ix = add(&pool, &more, Position::Before(BranchIx(0)));
    for room in [2, 3, 4, 6] {
        let ix = pool.union.pool().branches.first().map_or(ix, |branch| branch.ix);
        let dir = pool.opendir(Ino::ROOT);
        let rows = pool.readdir(dir, 0, false, room).unwrap();
        pool.union.remove_branch(ix, Removal::IfIdle).unwrap();
        let mut rest: Vec<_> =
            pool.rest(dir, rows.last().unwrap().cookie, 1).into_iter().map(|row| row.name).collect();
        rest.sort();
        assert_eq!(rest, ["last-0", "last-1", "last-2"], "after {room}");
        add(&pool, &more, Position::Before(BranchIx(0)));
    }
}

#[test]
fn a_branch_with_open_files_stays_unless_it_may_wait() {
    let pool = TestBed::new(2);
    pool.put(1, "film", "frames");
    let film = pool.ino("film");
    let open = pool.open(film, OFlags::RDWR).unwrap();
    let refused = pool.union.remove_branch(BranchIx(1), Removal::IfIdle).unwrap_err();
    assert!(matches!(refused, BadChange::InUse { open: 1, .. }), "{refused}");
    assert!(refused.to_string().contains(": 1 files are open there"), "{refused}");
    assert_eq!(pool.union.write(open.handle, 0, b"F", WriteTerms::default()).unwrap(), 1);
    // The caller has given up waiting: nothing has changed.
    let given_up = pool.union.remove_branch(BranchIx(1), Removal::WhenIdle(&|| false)).unwrap_err();
    assert!(matches!(given_up, BadChange::InUse { .. }));
    assert_eq!(pool.union.pool().branch(BranchIx(1)).mode(), BranchMode::ReadWrite);
    let waits = AtomicBool::new(false);
    thread::scope(|scope| {
        let union = &pool.union;
        let goes_on = || {
            waits.store(true, Relaxed);
            true
        };
        let removal = scope.spawn(move || union.remove_branch(BranchIx(1), Removal::WhenIdle(&goes_on)));
        while !waits.load(Relaxed) {
            thread::yield_now();
        }
        // Open files continue; nothing new is placed there; a second removal is refused with that reason.
        assert_eq!(pool.union.write(open.handle, 1, b"R", WriteTerms::default()).unwrap(), 1);
        assert_eq!(pool.union.pool().branch(BranchIx(1)).mode(), BranchMode::NoCreate);
        let second = pool.union.remove_branch(BranchIx(1), Removal::IfIdle).unwrap_err();
        assert!(matches!(second, BadChange::Leaving(_)), "{second}");
        pool.close(open);
        removal.join().unwrap().unwrap();
    });
    assert_eq!(pool.find("film").map(drop), Err(Errno::NOENT));
    assert_eq!(std::fs::read_to_string(pool.on(1, "film")).unwrap(), "FRames");
}

#[test]
fn changes_that_cannot_be_are_refused_and_change_nothing() {
    let pool = TestBed::new(2);
    let error_of = |changed: Result<BranchIx, BadChange>| changed.unwrap_err().to_string();
    let missing = BranchSpec::new("/nowhere/at/all".into());
    assert!(
        error_of(pool.union.add_branch(&missing, Position::Last)).starts_with("branch /nowhere/at/all: ")
    );
    let again = BranchSpec::new(pool.branch(1).to_owned());
    assert!(error_of(pool.union.add_branch(&again, Position::Last)).contains("the same directory as branch"));
    let more = home(&[]);
    // A disk that was mounted or unmounted since the directory was checked.
    let other = std::fs::metadata(pool.branch(1)).unwrap();
    let found = Some((other.dev(), other.ino()));
    let replaced = pool.union.add_found_branch(&spec(&more), found, Position::Last);
    assert!(error_of(replaced).contains("another directory is there"));
    let after = Position::After(BranchIx(9));
    assert_eq!(pool.union.add_branch(&spec(&more), after), Err(BadChange::NoBranch(BranchIx(9))));
    assert_eq!(pool.union.remove_branch(BranchIx(9), Removal::IfIdle), Err(BadChange::NoBranch(BranchIx(9))));
    assert_eq!(order(&pool), [0, 1]);
    pool.union.remove_branch(BranchIx(0), Removal::IfIdle).unwrap();
    assert_eq!(pool.union.remove_branch(BranchIx(1), Removal::IfIdle), Err(BadChange::Last));
    assert_eq!(
        pool.union.set_branch_mode(BranchIx(0), BranchMode::ReadOnly),
        Err(BadChange::NoBranch(BranchIx(0)))
    );
}

#[test]
fn modes_and_floors_hold_from_the_next_request_on() {
    let pool = TestBed::new(2);
    pool.write("first", "");
    assert_eq!(pool.holders("first"), [0]);
    pool.union.set_branch_mode(BranchIx(0), BranchMode::NoCreate).unwrap();
    pool.write("second", "");
    assert_eq!(pool.holders("second"), [1]);
    pool.union.set_branch_mode(BranchIx(0), BranchMode::ReadOnly).unwrap();
    assert_eq!(pool.unlink("first"), Err(Errno::ROFS));
    pool.union.set_branch_mode(BranchIx(0), BranchMode::ReadWrite).unwrap();
    pool.unlink("first").unwrap();
    pool.union.set_branch_floor(BranchIx(0), Some(Floor::PerMille(1000)), None).unwrap();
    pool.write("third", "");
    assert_eq!(pool.holders("third"), [1]);
    pool.union.set_branch_floor(BranchIx(0), None, None).unwrap();
    pool.write("fourth", "");
    assert_eq!(pool.holders("fourth"), [0]);
}

#[test]
fn no_write_begins_on_a_branch_that_is_set_read_only() {
    let pool = TestBed::new(1);
    let log = pool.write("log", "old");
    let open = |how| pool.union.open(log, how, Caller::DAEMON).map(|opened| opened.handle);
    let writer = open(OFlags::WRONLY).unwrap();
    pool.union.set_branch_mode(BranchIx(0), BranchMode::ReadOnly).unwrap();
    assert_eq!(open(OFlags::WRONLY).unwrap_err().errno(), Errno::ROFS);
    // Readers and earlier writers continue.
    let reader = open(OFlags::RDONLY).unwrap();
    assert_eq!(pool.union.write(writer, 0, b"new", WriteTerms::default()).unwrap(), 3);
    [writer, reader].into_iter().for_each(|handle| pool.union.release(handle));
    assert_eq!(pool.read("log").unwrap(), "new");
}

/// Threads work on one branch while others are added and removed before and after it.
#[test]
fn callers_on_other_branches_do_not_notice_a_branch_come_or_go() {
    let pool = TestBed::with(&[BranchMode::ReadWrite], wary());
    pool.put(0, "d/stays", "steady");
    pool.ino("d");
    let more = home(&["d/comes", "d/sub/film", "other/film"]);
    let over = AtomicBool::new(false);
    let union = &pool.union;
    thread::scope(|scope| {
        for worker in 0..3 {
            let over = &over;
            scope.spawn(move || {
                let mut held = Vec::new();
                let mut round = 0_u64;
                while !over.load(Relaxed) {
                    round += 1;
                    held.extend(work(union, worker, round));
                    let forget = |(ino, count)| union.forget(ino, count);
                    held.drain(..).for_each(forget);
                }
                assert!(round > 0);
            });
        }
        for n in 0..40 {
            let position = if n % 2 == 0 { Position::Last } else { Position::Before(BranchIx(0)) };
            let spec = BranchSpec { mode: BranchMode::NoCreate, ..spec(&more) };
            let ix = union.add_branch(&spec, position).unwrap();
            union.remove_branch(ix, Removal::IfIdle).unwrap();
        }
        over.store(true, Relaxed);
    });
    assert_eq!(order(&pool), [0]);
    assert_eq!(pool.names("d"), ["stays"]);
}

/// One round of a worker, in which no call may fail. Returns the lookups that it holds.
fn work(union: &fsstack_engine::Union, worker: u64, round: u64) -> Vec<(Ino, u64)> {
    let caller = fsstack_engine::Caller::DAEMON;
    let mut held = Vec::new();
    let d = union.lookup(Ino::ROOT, buf("d").as_name()).unwrap();
    held.push((d.ino, 1));
    let stays = union.lookup(d.ino, buf("stays").as_name()).unwrap();
    held.push((stays.ino, 1));
    assert_eq!(union.getattr(stays.ino, None).unwrap().stat.size, 6);
    let (name, next) = (buf(&format!("file-{worker}-{round}")), buf(&format!("moved-{worker}-{round}")));
    let made = union.create(d.ino, name.as_name(), 0o644, OFlags::RDWR | OFlags::EXCL, caller).unwrap();
    held.push((made.entry.ino, 1));
    assert_eq!(union.write(made.opened.handle, 0, b"abc", WriteTerms::default()).unwrap(), 3);
    union.release(made.opened.handle);
    let flags = fsstack_sys::at::RenameFlags::empty();
    union.rename((d.ino, name.as_name()), (d.ino, next.as_name()), flags).unwrap();
    union.unlink(d.ino, next.as_name()).unwrap();
    let dir = union.make(d.ino, name.as_name(), New::Dir(0o755), caller).unwrap();
    held.push((dir.ino, 1));
    union.rename((d.ino, name.as_name()), (d.ino, next.as_name()), flags).unwrap();
    union.rmdir(d.ino, next.as_name()).unwrap();
    held
}
