//! Cached space of a branch between two queries.

use fsstack_engine::Caller;
use fsstack_engine::settings::Settings;
use fsstack_pool::{BranchIx, Floor};
use fsstack_sys::{Call, count};

use crate::test_bed::{TestBed, settings};

/// Space that `act` takes on the first branch, as (bytes, inodes), without a query of its file system in between.
fn taken(pool: &TestBed, act: impl Fn(u32)) -> (u64, u64) {
    let branch = pool.union.pool().branches[0].clone();
    for round in 0..20 {
        branch.distrust_space();
        let before = branch.space().unwrap();
        let (after, made) = count::scope(|| {
            act(round);
            branch.space().unwrap()
        });
        if made.of(Call::Statfs) == 0 {
            assert!(before.inodes_total > 0, "this file system counts no inodes");
            return (before.available - after.available, before.inodes_free - after.inodes_free);
        }
        // After a second, other users' changes are included.
    }
    panic!("twenty times a second passed in between");
}

#[test]
fn space_of_new_objects_is_subtracted() {
    let pool = TestBed::new(1);
    let made = taken(&pool, |round| {
        pool.write(&format!("film{round}"), "four");
        pool.mkdir(&format!("dir{round}")).unwrap();
        pool.make(&format!("link{round}"), fsstack_engine::ops::New::Symlink(c"film")).unwrap();
    });
    assert_eq!(made, (4, 3));
    let file = pool.create("allocated").unwrap();
    let allocate = |mode, len| pool.union.fallocate(file.handle, mode, 0, len, Caller::DAEMON).unwrap();
    assert_eq!(taken(&pool, |_| allocate(0, 1 << 20)), (1 << 20, 0));
    // A hole takes nothing (FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE).
    assert_eq!(taken(&pool, |_| allocate(3, 1 << 20)), (0, 0));
}

#[test]
fn a_skeleton_takes_an_inode_too() {
    let pool = TestBed::with(&[fsstack_pool::BranchMode::ReadWrite; 2], settings());
    let made = taken(&pool, |round| {
        pool.put_dir(1, &format!("a{round}/b"));
        pool.write(&format!("a{round}/b/film"), "");
    });
    assert_eq!(made, (0, 3));
}

#[test]
fn space_is_asked_once_a_second_a_branch() {
    let pool = TestBed::new(3);
    let began = std::time::Instant::now();
    let ((), made) = count::scope(|| {
        for n in 0..100 {
            pool.write(&format!("film{n}"), "");
        }
    });
    let seconds = 1 + began.elapsed().as_secs();
    assert!(made.of(Call::Statfs) <= 3 * seconds, "{} times in {seconds} s", made.of(Call::Statfs));
}

/// Space taken and freed within a second still counts as taken, until nothing else is left.
#[test]
fn space_given_back_keeps_no_file_out() {
    const PIECE: u64 = 64 << 20;
    let settings = Settings { floor: Floor::Bytes(1), ..settings() };
    let pool = TestBed::with(&[fsstack_pool::BranchMode::ReadWrite; 2], settings);
    let file = pool.create("film").unwrap();
    let branches = pool.union.pool().branches.clone();
    let available = branches[0].space().unwrap().available;
    // The first time takes space, later ones do not.
    for _ in 0..available / PIECE + 2 {
        pool.union.fallocate(file.handle, 0, 0, PIECE, Caller::DAEMON).unwrap();
    }
    pool.union.set_branch_floor(BranchIx(1), Some(Floor::PerMille(1000)), None).unwrap();
    pool.create("another").unwrap();
}
