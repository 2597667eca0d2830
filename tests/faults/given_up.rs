//! Records of renames that no mount can settle any more.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::engine::{Engine, settings};
use crate::journal::{records, shown};
use crate::kill;
use crate::scenario;

/// The branches after each kill within the rename of a directory of three branches.
fn killed_renames() -> impl Iterator<Item = [TempDir; 3]> {
    let scenario = scenario::named("rename_a_directory_of_three_branches");
    let fresh = move || {
        let branches: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        scenario.prepare(&branches.each_ref().map(TempDir::path));
        branches
    };
    let (mounting, calls) = kill::child(scenario, &fresh().each_ref().map(TempDir::path), None).unwrap();
    (mounting + 1..=mounting + calls).map(move |nth| {
        let branches = fresh();
        assert!(kill::child(scenario, &branches.each_ref().map(TempDir::path), Some(nth)).is_none());
        branches
    })
}

#[test]
fn what_waits_for_several_branches_goes_with_the_last_of_them() {
    for branches in killed_renames() {
        let paths = branches.each_ref().map(TempDir::path);
        let engine = Engine::over(paths[..1].iter().copied(), settings("ff"));
        if records(&paths[..1]) == 0 {
            continue;
        }
        let id_of =
            |path: &Path| Engine::over([path].into_iter(), settings("ff")).union.pool().branches[0].id;
        let ids = [paths[1], paths[2]].map(id_of);
        engine.union.give_up_branch(ids[0]).unwrap();
        assert_eq!(records(&paths[..1]), 1, "the other one may come back");
        engine.union.give_up_branch(ids[1]).unwrap();
        assert_eq!(records(&paths[..1]), 0);
        return;
    }
    panic!("nothing was ever left for two branches");
}

/// The rename can be neither finished nor undone: another mount would only say so again.
#[test]
fn a_rename_whose_names_are_both_in_use_is_settled_once() {
    for branches in killed_renames() {
        let paths = branches.each_ref().map(TempDir::path);
        let has = |branch: usize, name: &str| paths[branch].join(name).exists();
        if has(2, "dir") || !has(2, "new/name") || !has(0, "dir") || records(&paths) == 0 {
            continue;
        }
        for (branch, dir) in [(2, "dir"), (0, "new/name")] {
            fs::create_dir_all(paths[branch].join(dir)).unwrap();
            fs::write(paths[branch].join(dir).join("other"), "other").unwrap();
        }
        shown(&paths);
        assert_eq!(records(&paths), 0);
        assert!(has(2, "dir/other") && has(2, "new/name") && has(0, "dir") && has(0, "new/name/other"));
        return;
    }
    panic!("never killed between two branches");
}
