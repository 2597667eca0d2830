//! A move was interrupted, the pool is mounted with its target read-only, and that is made writable: what was interrupted is settled
//! then, not at the next mount.

use std::fs;
use std::path::Path;

use fsstack_engine::admin::mount_watch::MountWatch;
use fsstack_lab::{self as lab, MiB, needs, until};
use fsstack_pool::{BranchIx, BranchMode, BranchSpec};

use crate::engine::{Engine, settings};
use crate::journal::FOLDER;
use crate::kill;
use crate::scenario::{DRAIN_LINKED_FILES, DRAIN_LINKS, LINKED_FILES, LINKS, Scenario};

/// More calls than the process makes.
const MOST: u64 = 20_000;

/// Names in the hidden folders, but for their locks.
fn left_in(branches: &[&Path]) -> Vec<String> {
    let folders = branches.iter().filter_map(|branch| fs::read_dir(branch.join(FOLDER)).ok());
    let names = folders.flatten().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != ".lock").collect()
}

fn is_settled(scenario: &Scenario, names: &[&str]) {
    needs!(root());
    let pool = lab::pool().tmpfs_branch("a", MiB(4)).tmpfs_branch("b", MiB(4)).tmpfs_branch("c", MiB(4));
    let pool = pool.unmounted();
    let paths = ["a", "b", "c"].map(|name| pool.branch(name).path());
    scenario.prepare_anew(&paths);
    let (mounting, _) = kill::child(scenario, &paths, None).unwrap();
    let mut left = 0;
    for nth in mounting + 1.. {
        assert!(nth < MOST, "the process does not end");
        scenario.prepare_anew(&paths);
        if kill::child(scenario, &paths, Some(nth)).is_some() {
            break;
        }
        let modes = [BranchMode::ReadWrite, BranchMode::ReadOnly, BranchMode::ReadOnly];
        let spec =
            |(path, mode): (&&Path, BranchMode)| BranchSpec { mode, ..BranchSpec::new(path.to_path_buf()) };
        let engine = Engine::of(paths.iter().zip(modes).map(spec).collect(), settings("ff"));
        let _at_work = MountWatch::start(&engine.union, || {}).unwrap();
        left += u32::from(!left_in(&paths).is_empty());
        for slot in [1, 2] {
            engine.union.set_branch_mode(BranchIx(slot), BranchMode::ReadWrite).unwrap();
        }
        until(&format!("what was killed at {nth} is settled"), || left_in(&paths).is_empty());
        for name in names {
            engine.find(Path::new(name)).unwrap();
            assert_eq!(pool.holders(name).len(), 1, "killed at {nth}: {name} is on {:?}", pool.holders(name));
        }
    }
    assert!(left > 0, "nothing was ever left to settle");
}

#[test]
fn an_interrupted_move_of_hard_links_is_settled_when_its_target_becomes_writable() {
    is_settled(&DRAIN_LINKS, LINKS[0]);
}

#[test]
fn an_interrupted_batch_is_settled_when_its_target_becomes_writable() {
    is_settled(&DRAIN_LINKED_FILES, LINKED_FILES[0]);
}
