//! Meaning of each policy, and properties of all of them.

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;
use crate::branch::BranchMode;
use crate::policy::POLICIES;
use crate::space::Space;

const GIB: u64 = 1 << 30;

/// A healthy branch of 100 GiB that holds the parent, no floor.
fn branch(place: u16, available_gib: u64) -> Candidate {
    let available = available_gib * GIB;
    Candidate {
        branch: BranchIx(place),
        mode: BranchMode::ReadWrite,
        mounted_read_only: false,
        reachable: true,
        holds_parent: true,
        deepest: 3,
        parent_mtime: None,
        space: Space { total: 100 * GIB, free: available, available, inodes_total: 1000, inodes_free: 1000 },
        floor: Floor::NONE,
        min_inodes: 0,
    }
}

/// Does not hold the parent, only `deepest` leading directories of it.
fn strange(candidate: Candidate, deepest: usize) -> Candidate {
    Candidate { holds_parent: false, deepest, ..candidate }
}

fn floored(candidate: Candidate, gib: u64) -> Candidate {
    Candidate { floor: Floor::Bytes(gib * GIB), ..candidate }
}

/// A fixed sequence of random numbers, each with a lower key than the one before.
fn descending() -> impl FnMut() -> u64 {
    let mut next = u64::MAX;
    move || {
        next -= 1 << 60;
        next
    }
}

fn shown(ranking: &Ranking) -> String {
    let order: Vec<String> = ranking.order.iter().map(ToString::to_string).collect();
    let refused: Vec<String> = ranking.refused.iter().map(|(b, why)| format!("{b} {why:?}")).collect();
    match refused.as_slice() {
        [] => order.join(" "),
        refused => format!("{} | {}", order.join(" "), refused.join(", ")),
    }
}

fn check(chain: &str, candidates: &[Candidate], expected: Expect) {
    check_chain(&chain.parse().unwrap(), candidates, expected);
}

fn check_chain(chain: &Chain, candidates: &[Candidate], expected: Expect) {
    expected.assert_eq(&shown(&rank(chain, candidates, &mut descending())));
}

fn three() -> [Candidate; 3] {
    [branch(0, 20), branch(1, 60), branch(2, 40)]
}

#[test]
fn any_branch_by_order_and_space() {
    check("ff", &three(), expect!["0 1 2"]);
    check("all", &three(), expect!["0 1 2"]);
    check("mfs", &three(), expect!["1 2 0"]);
    check("lfs", &three(), expect!["0 2 1"]);
    check("lus", &three(), expect!["1 2 0"]);
    check("lup", &three(), expect!["1 2 0"]);
    check("erofs", &three(), expect![" | 0 ReadOnly, 1 ReadOnly, 2 ReadOnly"]);
}

#[test]
fn least_used_counts_bytes_and_least_used_percent_the_part() {
    let mut pool = three();
    pool[0].space.total = 30 * GIB;
    pool[1].space.total = 1000 * GIB;
    check("lus", &pool, expect!["0 2 1"]);
    pool[2].space.total = 41 * GIB;
    check("lup", &pool, expect!["2 0 1"]);
    pool[2].space = Space::default();
    check("lup", &pool, expect!["0 1 2"]);
}

#[test]
fn equals_keep_the_order_of_the_pool() {
    for name in ["mfs", "lfs", "lus", "lup", "newest", "mspmfs"] {
        let same = [branch(2, 5), branch(0, 5), branch(1, 5)];
        let order = rank(&name.parse().unwrap(), &same, &mut descending()).order;
        assert_eq!(order.as_slice(), [BranchIx(2), BranchIx(0), BranchIx(1)], "{name}");
    }
}

#[test]
fn existing_path_policies_refuse_the_rest() {
    let mut pool = three();
    pool[1] = strange(pool[1], 1);
    for name in ["epall", "epff", "eplfs", "eplus", "epmfs", "eppfrd", "eprand", "newest"] {
        let ranking = rank(&name.parse().unwrap(), &pool, &mut descending());
        assert_eq!(ranking.refused.as_slice(), [(BranchIx(1), Rejection::PathMissing)], "{name}");
    }
    check("epff", &pool, expect!["0 2 | 1 PathMissing"]);
    check("epall", &pool, expect!["0 2 | 1 PathMissing"]);
    check("epmfs", &pool, expect!["2 0 | 1 PathMissing"]);
    check("eplfs", &pool, expect!["0 2 | 1 PathMissing"]);
    check("eplus", &pool, expect!["2 0 | 1 PathMissing"]);
}

#[test]
fn most_shared_path_goes_up_level_by_level() {
    let pool =
        [strange(branch(0, 90), 0), strange(branch(1, 10), 2), branch(2, 1), strange(branch(3, 20), 2)];
    check("mspmfs", &pool, expect!["2 3 1 0"]);
    check("msplfs", &pool, expect!["2 1 3 0"]);
    check("msplus", &pool, expect!["2 3 1 0"]);
    check("msppfrd", &pool, expect!["2 1 3 0"]);
    let mut full_at_the_bottom = pool;
    full_at_the_bottom[2] = floored(pool[2], 4);
    check("mspmfs", &full_at_the_bottom, expect!["3 1 0 | 2 TooFull"]);
}

#[test]
fn newest_is_the_latest_change_of_the_parent() {
    let mut pool = [branch(0, 1), branch(1, 1), branch(2, 1), branch(3, 1)];
    pool[0].parent_mtime = Some((-5, 0));
    pool[1].parent_mtime = Some((7, 1));
    pool[2].parent_mtime = Some((7, 2));
    check("newest", &pool, expect!["2 1 0 3"]);
}

#[test]
fn lots() {
    check("rand", &three(), expect!["2 1 0"]);
    check("pfrd", &[branch(0, 0), branch(1, 1), branch(2, 99)], expect!["2 1 0"]);
}

#[test]
fn a_weighted_lot_falls_as_its_weights() {
    let pool = [branch(0, 10), branch(1, 30), branch(2, 60), branch(3, 0)];
    // A full-period generator, so that the test is deterministic.
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let mut first = [0_u32; 4];
    for _ in 0..10_000 {
        let order = rank(&"pfrd".parse().unwrap(), &pool, &mut random).order;
        assert_eq!(order[3], BranchIx(3), "what has no space comes last");
        first[order[0].index()] += 1;
    }
    for (count, share) in first.into_iter().zip([1000, 3000, 6000, 0_u32]) {
        assert!(count.abs_diff(share) <= 200, "{first:?}");
    }
}

#[test]
fn filters_in_the_order_of_mergerfs() {
    let full = floored(branch(0, 1), 4);
    let mut pool = [branch(0, 9), full, full, full, full, full, full];
    for (place, candidate) in pool.iter_mut().enumerate() {
        candidate.branch = BranchIx::at(place).unwrap();
    }
    pool[2].mounted_read_only = true;
    pool[3] = Candidate { mounted_read_only: true, ..strange(pool[3], 0) };
    pool[4] = Candidate { mode: BranchMode::NoCreate, ..strange(pool[4], 0) };
    pool[5] = Candidate { mode: BranchMode::ReadOnly, reachable: false, ..pool[5] };
    pool[6] = Candidate { reachable: false, ..strange(pool[6], 0) };
    check(
        "epff",
        &pool,
        expect!["0 | 1 TooFull, 2 ReadOnly, 3 PathMissing, 4 ReadOnly, 5 ReadOnly, 6 Unreachable"],
    );
    check(
        "ff",
        &pool,
        expect!["0 | 1 TooFull, 2 ReadOnly, 3 ReadOnly, 4 ReadOnly, 5 ReadOnly, 6 Unreachable"],
    );
    check(
        "epff>ff",
        &pool,
        expect!["0 | 1 TooFull, 2 ReadOnly, 3 ReadOnly, 4 ReadOnly, 5 ReadOnly, 6 Unreachable"],
    );
}

#[test]
fn floors_are_bytes_parts_and_inodes() {
    let mut pool = [branch(0, 10), branch(1, 10), branch(2, 10), branch(3, 10)];
    pool[0].floor = Floor::Bytes(10 * GIB);
    pool[1].floor = Floor::Bytes(10 * GIB + 1);
    pool[2].floor = Floor::PerMille(101);
    pool[3].min_inodes = 1001;
    check("ff", &pool, expect!["0 | 1 TooFull, 2 TooFull, 3 TooFull"]);
    pool[3].space.inodes_total = 0;
    check("ff", &pool, expect!["0 3 | 1 TooFull, 2 TooFull"]);
}

#[test]
fn a_chain_adds_what_the_policies_before_left() {
    let mut pool = three();
    pool[1] = strange(pool[1], 0);
    check("epmfs>mfs", &pool, expect!["2 0 1"]);
    check("epff>lfs", &[strange(branch(0, 9), 0), branch(1, 5), strange(branch(2, 1), 0)], expect!["1 2 0"]);
}

#[test]
fn the_last_resort_is_what_is_under_its_floor_roomiest_first() {
    let mut pool = three().map(|candidate| floored(candidate, 50));
    check("mspmfs", &pool, expect!["1 | 0 TooFull, 2 TooFull"]);
    check("mspmfs>any", &pool, expect!["1 2 0"]);
    pool[2].mode = BranchMode::NoCreate;
    pool[0].reachable = false;
    check("mspmfs>any", &pool, expect!["1 | 0 Unreachable, 2 ReadOnly"]);
    check("epmfs>any", &[strange(branch(0, 50), 0), floored(branch(1, 1), 4)], expect!["1 | 0 PathMissing"]);
}

#[test]
fn the_default_has_an_answer_while_any_branch_can_be_written_to() {
    let pool = [floored(branch(0, 0), 4), strange(floored(branch(1, 1), 4), 0), strange(branch(2, 9), 0)];
    check_chain(&Chain::default_create(), &pool, expect!["2 1 0"]);
}

#[test]
fn mlimit_in_bytes_takes_the_first_with_room_else_the_roomiest() {
    let limit = Chain::mlimit(Floor::Bytes(30 * GIB));
    check_chain(&limit, &three(), expect!["1 2 0"]);
    check_chain(&limit, &[branch(0, 5), branch(1, 29), branch(2, 7)], expect!["1 2 0"]);
    check_chain(&limit, &[branch(0, 0), branch(1, 30), branch(2, 1)], expect!["1 2 | 0 TooFull"]);
    check_chain(&limit, &[branch(0, 0), branch(1, 0)], expect![" | 0 TooFull, 1 TooFull"]);
    // The floor is ignored: the limit replaces it.
    check_chain(&limit, &[floored(branch(0, 31), 99), branch(1, 90)], expect!["0 1"]);
}

#[test]
fn mlimit_in_percent_takes_the_first_with_its_part_else_the_greatest_part() {
    let limit = Chain::mlimit(Floor::PerMille(200));
    check_chain(&limit, &[branch(0, 19), branch(1, 20), branch(2, 90)], expect!["1 2 0"]);
    let mut pool = [branch(0, 19), branch(1, 10), branch(2, 18)];
    pool[1].space.total = 51 * GIB;
    check_chain(&limit, &pool, expect!["1 0 2"]);
}

#[test]
fn mlimit_prefers_branches_with_inodes() {
    let starved = Candidate { min_inodes: 2000, ..branch(0, 90) };
    check("mlimit", &[starved, branch(1, 10)], expect!["1 0"]);
}

fn any_candidate() -> impl Strategy<Value = Candidate> {
    let modes = prop::sample::select(vec![BranchMode::ReadWrite, BranchMode::NoCreate, BranchMode::ReadOnly]);
    let floor = prop_oneof![any::<u64>().prop_map(Floor::Bytes), (0_u16..=1000).prop_map(Floor::PerMille)];
    let space = (any::<u64>(), any::<u64>(), any::<u64>(), 0_u64..3, 0_u64..3).prop_map(
        |(total, free, available, inodes_total, inodes_free)| Space {
            total,
            free,
            available,
            inodes_total,
            inodes_free,
        },
    );
    let path = (any::<bool>(), 0_usize..4, any::<Option<(i64, u32)>>());
    (modes, prop::bool::weighted(0.2), prop::bool::weighted(0.8), path, space, floor, 0_u64..3).prop_map(
        |(
            mode,
            mounted_read_only,
            reachable,
            (holds_parent, deepest, parent_mtime),
            space,
            floor,
            min_inodes,
        )| {
            Candidate {
                branch: BranchIx(0),
                mode,
                mounted_read_only,
                reachable,
                holds_parent,
                deepest,
                parent_mtime,
                space,
                floor,
                min_inodes,
            }
        },
    )
}

fn any_pool() -> impl Strategy<Value = Vec<Candidate>> {
    prop::collection::vec(any_candidate(), 0..40).prop_map(|mut pool| {
        for (place, candidate) in pool.iter_mut().enumerate() {
            candidate.branch = BranchIx::at(place).unwrap();
        }
        pool
    })
}

fn any_chain() -> impl Strategy<Value = Chain> {
    (prop::collection::vec(prop::sample::select(POLICIES), 1..4), any::<bool>()).prop_map(|(rows, last)| {
        let names: Vec<&str> = rows.iter().map(|(name, ..)| *name).chain(last.then_some("any")).collect();
        names.join(">").parse().unwrap()
    })
}

proptest! {
    #[test]
    fn every_candidate_is_ranked_or_refused_once(chain in any_chain(), pool in any_pool(), seed: u64) {
        let ranking = rank(&chain, &pool, &mut || seed);
        let mut seen: Vec<BranchIx> = ranking.order.iter().copied().collect();
        seen.extend(ranking.refused.iter().map(|(branch, _)| *branch));
        seen.sort_unstable();
        let all: Vec<BranchIx> = pool.iter().map(|candidate| candidate.branch).collect();
        prop_assert_eq!(seen, all);
    }

    #[test]
    fn nothing_is_tried_that_cannot_be_written_to(chain in any_chain(), pool in any_pool(), seed: u64) {
        for branch in rank(&chain, &pool, &mut || seed).order {
            let candidate = &pool[branch.index()];
            prop_assert!(candidate.mode == BranchMode::ReadWrite);
            prop_assert!(candidate.reachable && !candidate.mounted_read_only);
        }
    }

    #[test]
    fn the_same_lots_give_the_same_ranking(chain in any_chain(), pool in any_pool(), seed: u64) {
        let once = || {
            let mut state = seed;
            rank(&chain, &pool, &mut || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state
            })
        };
        prop_assert_eq!(once(), once());
    }

    #[test]
    fn the_default_tries_all_that_can_be_written_to(pool in any_pool()) {
        let order = rank(&Chain::default_create(), &pool, &mut || 0).order;
        let writable = pool.iter().filter(|c| c.mode == BranchMode::ReadWrite && c.reachable && !c.mounted_read_only);
        prop_assert_eq!(order.len(), writable.count());
    }
}
