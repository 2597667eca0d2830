//! The daemon is replaced under programs that use the pool: `fsstack upgrade`.

mod beside_work;
mod drains;
mod going_on;
mod lists;
pub(crate) mod refused;
mod states;

use fsstack_lab::{self as lab, MiB, Pool};
use serde_json::Value;

use crate::command::{at, json, output_of};

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

/// A pool of two disks: what is made is on `a`.
fn two_disks(options: &[&str]) -> Pool {
    let pool = lab::pool()
        .xfs_branch("a", MiB(300))
        .xfs_branch("b", MiB(300))
        .option("transport=dev")
        .option("write-path=stacked")
        .option("create=ff");
    options.iter().fold(pool, |pool, option| pool.option(option)).mount()
}

fn jobs(pool: &Pool) -> Vec<Value> {
    json("jobs", &["job", "list", &at(pool)])["jobs"].as_array().unwrap().clone()
}
