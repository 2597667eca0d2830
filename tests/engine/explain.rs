//! Explanations of where objects are, and where they would be placed.

use fsstack_engine::admin::explain::Placement;
use fsstack_engine::settings::Settings;
use fsstack_pool::{BranchIx, BranchMode, Floor};
use fsstack_sys::{Errno, Kind, OFlags};

use crate::test_bed::{TestBed, settings};

/// Branches of a placement as `turn:slot`, rejected ones as `-:slot`.
fn order(placement: &Placement) -> Vec<String> {
    let shown = |turn: Option<usize>| turn.map_or_else(|| "-".to_owned(), |turn| turn.to_string());
    placement.ranking.iter().map(|row| format!("{}:{}", shown(row.turn), row.branch)).collect()
}

#[test]
fn every_copy_is_listed_and_the_served_one_marked() {
    let pool = TestBed::new(3);
    pool.put(0, "d/one", "12345");
    pool.put(1, "d/film", "served");
    pool.put(2, "d/film", "hidden");
    let film = pool.union.where_is(b"/d/film").unwrap();
    assert_eq!(film.kind, Kind::File);
    let rows: Vec<_> = film.copies.iter().map(|copy| (copy.branch.0, copy.size, copy.served)).collect();
    assert_eq!(rows, [(1, 6, true), (2, 6, false)]);
    assert_eq!(film.copies[0].path, pool.on(1, "d/film"));
    let dir = pool.union.where_is(b"d").unwrap();
    assert_eq!((dir.kind, dir.copies.len()), (Kind::Dir, 3));
    assert!(dir.copies.iter().all(|copy| copy.served));
    assert_eq!(pool.union.where_is(b"").unwrap().copies.len(), 3);
    let refused = |path: &[u8]| pool.union.where_is(path).unwrap_err().errno();
    assert_eq!(refused(b"d/none"), Errno::NOENT);
    assert_eq!(refused(b"none/film"), Errno::NOENT);
    assert_eq!(refused(b"d/../d"), Errno::INVAL);
    assert_eq!(
        pool.union.held(),
        fsstack_engine::TableCounts::default(),
        "the kernel was explained of nothing"
    );
}

#[test]
fn a_file_tells_its_way_closed_and_open() {
    let pool = TestBed::new(1);
    pool.put(0, "film", "x");
    let closed = pool.union.explain(b"film").unwrap().way.unwrap();
    assert!(closed.is.is_none());
    assert_eq!(closed.would.to_string(), "stacked: the pool's write-path=stacked");
    let film = pool.ino("film");
    let open = pool.open(film, OFlags::RDWR).unwrap();
    let explained = pool.union.explain(b"film").unwrap().way.unwrap();
    assert_eq!(explained.is, Some(closed.would));
    pool.close(open);
    pool.put_dir(0, "d");
    assert!(pool.union.explain(b"d").unwrap().way.is_none());
}

#[test]
fn a_ranking_is_the_one_that_a_create_follows() {
    let modes = [BranchMode::ReadOnly, BranchMode::ReadWrite, BranchMode::ReadWrite, BranchMode::NoCreate];
    let chosen = Settings { create: "epff>ff".parse().unwrap(), ..settings() };
    let pool = TestBed::with(&modes, chosen);
    pool.put_dir(2, "d");
    let explained = pool.union.explain_create(b"d/new/film", 1).unwrap();
    assert_eq!(explained.policy, "epff>ff");
    assert_eq!(explained.parent, b"d");
    assert_eq!(order(&explained), ["1:2", "2:1", "-:0", "-:3"]);
    let why: Vec<_> = explained.ranking.iter().map(|row| row.why.as_str()).collect();
    assert_eq!(
        why,
        [
            "epff: holds the parent directory, by the order of the branches",
            "ff: by the order of the branches",
            "read-only (mode RO)",
            "takes nothing new (mode NC)"
        ]
    );
    assert!(explained.ranking.iter().all(|row| row.fits) && !explained.by_lot);
    pool.write("d/film", "");
    assert_eq!(pool.holders("d/film"), [2], "as reported");
    let refused = |path: &[u8]| pool.union.explain_create(path, 0).unwrap_err().errno();
    assert_eq!(refused(b"d/film"), Errno::EXIST);
    assert_eq!(refused(b"d/film/below"), Errno::NOTDIR);
    assert_eq!(refused(b"/"), Errno::EXIST);
}

#[test]
fn figures_are_given_with_the_reason() {
    let pool =
        TestBed::with(&[BranchMode::ReadWrite; 2], Settings { create: "mfs".parse().unwrap(), ..settings() });
    pool.union.set_branch_floor(BranchIx(0), Some(Floor::PerMille(1000)), None).unwrap();
    let explained = pool.union.explain_create(b"film", u64::MAX).unwrap();
    assert_eq!(order(&explained), ["1:1", "-:0"]);
    let [taken, refused] = &explained.ranking[..] else { panic!("two branches") };
    assert!(!taken.fits, "more than any disk has");
    assert!(taken.why.starts_with("mfs: ") && taken.why.ends_with(" available"), "{}", taken.why);
    assert!(refused.why.contains("under its floor of"), "{}", refused.why);
    pool.union.change(|now| now.create = "rand".parse().unwrap()).unwrap();
    assert!(pool.union.explain_create(b"film", 0).unwrap().by_lot);
}
