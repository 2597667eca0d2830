//! The operator's command on real pools: the real binary, its tables, and its JSON checked by the schemas.

mod answers;
mod bad_input;
mod beside;
mod branches;
mod calls;
mod changes;
mod check;
mod check_fix;
mod check_parts;
mod copied_roots;
mod copy;
mod copy_deep;
mod copy_durable;
mod copy_room;
mod drain;
mod drain_hidden;
mod drain_stays;
mod drain_targets;
mod jobs;
mod life;
mod make_way;
mod nfs;
pub(crate) mod nfs_identity;
mod no_text;
mod numbers;
mod rearrange;
mod rules;
mod shows;
mod support;
mod switch;
mod tiers;
mod top;
mod users;

use std::path::PathBuf;

use fsstack_lab::shell::{Finished, command};
use fsstack_lab::{self as lab, Pool, daemon};
use serde_json::Value;

/// The binary, beside the helper.
pub(crate) fn binary() -> PathBuf {
    daemon::helper().unwrap().with_file_name("fsstack")
}

/// Runs the command to its end.
#[track_caller]
pub(crate) fn run(arguments: &[&str]) -> Finished {
    command(binary()).args(arguments).output().unwrap()
}

/// Has the mount helper change the mounted pool by these options, as mount(8) does.
pub(crate) fn remount(pool: &Pool, options: &str) -> Finished {
    let options = format!("remount,{options}");
    let helper = daemon::helper().unwrap();
    command(helper).arg("ignored").arg(pool.path()).args(["-o", &options]).output().unwrap()
}

/// Returns its output; it must succeed.
#[track_caller]
pub(crate) fn output_of(arguments: &[&str]) -> String {
    let Finished { code, stdout, stderr, .. } = run(arguments);
    assert_eq!(code, 0, "fsstack {arguments:?}: {stderr}");
    stdout
}

/// Returns its one line of refusal, and its exit code.
#[track_caller]
pub(crate) fn refused(arguments: &[&str]) -> (i32, String) {
    let Finished { code, stdout, stderr, .. } = run(arguments);
    assert_ne!(code, 0, "fsstack {arguments:?} should not work: {stdout}");
    assert_eq!(stderr.lines().count(), 1, "fsstack {arguments:?}: not one line: {stderr}");
    let line = stderr.trim_end().strip_prefix("fsstack: ").unwrap().to_owned();
    (code, line)
}

/// Returns its output with `--json`, checked by the schema in docs/schema.
#[track_caller]
pub(crate) fn json(schema: &str, arguments: &[&str]) -> Value {
    let text = output_of(&[arguments, &["--json"]].concat());
    checked(schema, &text)
}

/// Parses JSON and checks it by the schema.
#[track_caller]
pub(crate) fn checked(schema: &str, text: &str) -> Value {
    let file = format!("{}/../docs/schema/{schema}.json", env!("CARGO_MANIFEST_DIR"));
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let answer: Value = serde_json::from_str(text).unwrap();
    if let Err(error) = jsonschema::validate(&schema, &answer) {
        panic!("{error} in {answer:#}");
    }
    answer
}

/// The pool's mount point as an argument.
pub(crate) fn at(pool: &Pool) -> String {
    pool.path().to_str().unwrap().to_owned()
}

/// A branch's path as an argument.
pub(crate) fn branch(pool: &Pool, name: &str) -> String {
    pool.branch(name).path().to_str().unwrap().to_owned()
}

/// A pool of two plain branches.
pub(crate) fn pool() -> Pool {
    lab::pool().tmp_branch("a").tmp_branch("b").option("create=ff").no_others().mount()
}
