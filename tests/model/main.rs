//! Random acts on a ground, compared with an in-memory model: every errno, and the whole tree after each act.
//!
//! The plain directory shows that the model is right; the pool must then do what the directory does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

mod act;
mod ground;
mod tree;

use act::{Act, acts};
use fsstack_lab::{self as lab, needs};
use ground::{Directory, Ground, PoolGround};
use proptest::prelude::*;
use tree::Tree;

/// Does the acts on both, and compares after each.
fn agree(acts: &[Act], ground: &mut dyn Ground) -> Result<(), TestCaseError> {
    let mut model = Tree::default();
    for (n, act) in acts.iter().enumerate() {
        let step = act.choose(&model);
        let told = ground.take(&step);
        prop_assert_eq!(told, model.take(&step), "act {}: {:?}", n, step);
        prop_assert_eq!(ground.seen(), model.seen(), "after act {}: {:?}", n, step);
    }
    Ok(())
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 400, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(128))]
    #[test]
    fn a_plain_directory_agrees(acts in acts()) {
        agree(&acts, &mut Directory::fresh())?;
    }
}

fn pool_agrees(option: &str, spread: &str) {
    proptest!(cases(24), |(acts in acts())| {
        let pool = lab::pool().tmp_branch("a").tmp_branch("b").tmp_branch("c").option(option).option(spread).mount();
        agree(&acts, &mut PoolGround::over(pool))?;
    });
}

#[test]
fn a_pool_agrees_with_files_on_one_branch() {
    needs!(mounting());
    pool_agrees("write-path=auto", "create=ff");
}

#[test]
fn a_pool_agrees_with_files_spread() {
    needs!(mounting());
    pool_agrees("write-path=auto", "create=rand");
}

#[test]
fn a_stacked_pool_agrees() {
    needs!(mounting());
    pool_agrees("write-path=stacked", "create=rand");
}
