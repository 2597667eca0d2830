//! Random operations on a pool of three branches, a plain directory and an in-memory model: every result, and the whole
//! tree after every operation, must agree.
//!
//! `PROPTEST_RNG_SEED` replays a run. A failed run prints its seed, and its operations are shrunk.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

mod act;
mod bare;
mod engine;
mod test_bed;
mod tree;

use act::{Act, acts};
use bare::Bare;
use fsstack_lab::{self as lab, needs};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use test_bed::{Directory, PoolGround, TestBed};
use tree::Tree;

/// Runs the operations everywhere, and compares after each.
fn agree(acts: &[Act], pool: &mut dyn TestBed) -> Result<(), TestCaseError> {
    let (mut model, mut plain) = (Tree::default(), Directory::fresh());
    for (n, act) in acts.iter().enumerate() {
        let step = act.choose(&model);
        let (result, wanted) = (pool.take(&step), model.take(&step));
        prop_assert_eq!(plain.take(&step), wanted.clone(), "the directory, act {}: {:?}", n, step);
        prop_assert_eq!(result, wanted, "the pool, act {}: {:?}", n, step);
        prop_assert_eq!(plain.seen(), model.seen(), "the directory after act {}: {:?}", n, step);
        prop_assert_eq!(pool.seen(), model.seen(), "the pool after act {}: {:?}", n, step);
    }
    Ok(())
}

/// Runs `cases` random sequences, each on a fresh pool.
fn pools_agree<G: TestBed>(cases: u32, fresh: impl Fn() -> G) {
    // The same modes everywhere, whatever umask this process inherited.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let mut config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    if config.rng_seed == RngSeed::Random {
        use std::hash::{BuildHasher, RandomState};
        config.rng_seed = RngSeed::Fixed(RandomState::new().hash_one(()));
    }
    config.max_shrink_iters = 8 * cases;
    let seed = config.rng_seed;
    let done = TestRunner::new(config).run(&acts(), |acts| agree(&acts, &mut fresh()));
    if let Err(error) = done {
        panic!("PROPTEST_RNG_SEED={seed}: {error}");
    }
}

#[test]
fn the_engine_agrees_with_files_on_one_branch() {
    pools_agree(300, || Bare::fresh("ff"));
}

#[test]
fn the_engine_agrees_with_files_spread() {
    pools_agree(700, || Bare::fresh("rand"));
}

fn mounted(options: &'static [&'static str]) {
    let pool = || options.iter().fold(lab::pool(), |pool, option| pool.option(option));
    let pool = || pool().tmp_branch("a").tmp_branch("b").tmp_branch("c");
    pools_agree(40, || PoolGround::over(pool().mount()));
}

#[test]
fn a_pool_agrees_with_files_on_one_branch() {
    needs!(mounting());
    mounted(&["transport=dev", "create=ff"]);
}

#[test]
fn a_pool_agrees_with_files_spread() {
    needs!(mounting());
    mounted(&["transport=dev", "create=rand"]);
}

#[test]
fn a_stacked_pool_agrees() {
    needs!(mounting());
    mounted(&["transport=dev", "create=rand", "write-path=stacked"]);
}

#[test]
fn a_pool_by_rings_agrees_with_files_on_one_branch() {
    needs!(rings());
    mounted(&["transport=ring", "create=ff"]);
}

#[test]
fn a_pool_by_rings_agrees_with_files_spread() {
    needs!(rings());
    mounted(&["transport=ring", "create=rand"]);
}

#[test]
fn a_stacked_pool_by_rings_agrees() {
    needs!(rings());
    mounted(&["transport=ring", "create=rand", "write-path=stacked"]);
}
