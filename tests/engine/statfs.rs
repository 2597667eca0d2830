//! The pool's size: each file system counts once.

use fsstack_engine::settings::{Settings, StatfsMode};
use fsstack_pool::BranchMode::{NoCreate, ReadOnly, ReadWrite};
use fsstack_pool::Floor;

use crate::test_bed::{TestBed, distinct_homes, settings};

fn bytes(pool: &TestBed) -> (u64, u64) {
    let stat = pool.union.statfs().unwrap();
    (stat.blocks * u64::from(stat.block_size), stat.available * u64::from(stat.block_size))
}

#[test]
fn a_file_system_with_several_branches_counts_once() {
    let one = bytes(&TestBed::new(1)).0;
    assert_eq!(bytes(&TestBed::new(3)).0, one);
}

#[test]
fn two_file_systems_add_up() {
    let homes = match distinct_homes() {
        Err(skip) => return skip.announce(),
        Ok(homes) => homes,
    };
    let sizes: Vec<u64> = homes
        .iter()
        .map(|home| rustix::fs::statvfs(home.path()).map(|stat| stat.f_blocks * stat.f_frsize).unwrap())
        .collect();
    let pool = TestBed::over(homes, &[ReadWrite, ReadWrite], settings());
    assert_eq!(bytes(&pool).0 >> 20, sizes.iter().sum::<u64>() >> 20);
}

/// The same as in mergerfs, with its `statfs_ignore` as none, nc and ro.
#[test]
fn modes_whose_space_is_available() {
    let available = |statfs, mode| {
        bytes(&TestBed::with(&[mode], Settings { statfs, floor: Floor::Bytes(u64::MAX), ..settings() })).1
    };
    for (statfs, counted) in [
        (StatfsMode::All, [true, true, true]),
        (StatfsMode::IgnoreNc, [true, false, true]),
        (StatfsMode::IgnoreRo, [true, false, false]),
    ] {
        let found = [ReadWrite, NoCreate, ReadOnly].map(|mode| 0 < available(statfs, mode));
        assert_eq!(found, counted, "{statfs}");
    }
    // One file system, through two branches, in either order.
    for modes in [[ReadOnly, ReadWrite], [ReadWrite, ReadOnly]] {
        let pool = TestBed::with(&modes, Settings { statfs: StatfsMode::IgnoreRo, ..settings() });
        assert!(bytes(&pool).1 > 0, "{modes:?}");
    }
}

#[test]
fn as_placed_leaves_the_floor_out() {
    let placed = |floor| Settings { statfs: StatfsMode::AsPlaced, floor, ..settings() };
    let all = bytes(&TestBed::with(&[ReadWrite], placed(Floor::NONE))).1;
    let above = bytes(&TestBed::with(&[ReadWrite], placed(Floor::Bytes(all / 2)))).1;
    // Other programs write to the disk meanwhile.
    assert!(all / 4 < above && above < all / 4 * 3, "{all} {above}");
    assert_eq!(bytes(&TestBed::with(&[NoCreate], placed(Floor::NONE))).1, 0);
    assert_eq!(bytes(&TestBed::with(&[ReadWrite], placed(Floor::Bytes(u64::MAX)))).1, 0);
}
