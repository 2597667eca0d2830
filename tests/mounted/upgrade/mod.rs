//! The daemon is replaced under programs that use the pool: `fsstack upgrade`.

mod beside_work;
mod drains;
mod going_on;
mod lists;
pub(crate) mod refused;
mod states;

use fsstack_lab::{self as lab, Pool};

use crate::command::{at, output_of};

/// A pool that can be handed over.
fn pool(options: &[&str]) -> Pool {
    let builder = lab::pool().tmp_branch("a").tmp_branch("b").option("transport=dev").option("create=ff");
    options.iter().fold(builder, |builder, option| builder.option(option)).mount()
}

/// Upgrades the pool to the program that serves it; returns the line that says so.
#[track_caller]
fn upgrade(pool: &Pool) -> String {
    let (before, started) = (pool.daemon().pid, pool.daemon());
    let line = output_of(&["upgrade", &at(pool)]);
    assert_eq!(pool.daemon().pid, before, "another process");
    assert!(started.lives());
    assert!(line.contains(" -> ") && line.contains("pause"), "{line}");
    line
}
