//! The branch with the record of an interrupted rename is away: the others go by the second record.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::journal::{FOLDER, records, shown};
use crate::kill;
use crate::scenario;

/// Whether the branch has the directory under its new name.
fn is_renamed(branch: &Path) -> bool {
    let is_new = branch.join("new/name").exists();
    assert_ne!(is_new, branch.join("dir").exists(), "{}", branch.display());
    is_new
}

/// Number of records that were written.
fn whole_records(branches: &[&Path]) -> usize {
    let files = branches.iter().filter_map(|branch| fs::read_dir(branch.join(FOLDER)).ok()).flatten();
    files.filter(|file| file.as_ref().unwrap().metadata().unwrap().len() > 0).count()
}

/// Mounts without one branch after the other, in each order: all that are there have one name, which is not taken back, and the
/// pool as a whole is as before the rename or after it.
#[test]
fn a_directory_has_one_name_whichever_branches_are_away() {
    let scenario = scenario::named("rename_a_directory_of_three_branches");
    let fresh = || {
        let branches: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        scenario.prepare(&branches.each_ref().map(TempDir::path));
        branches
    };
    let branches = fresh();
    let paths = branches.each_ref().map(TempDir::path);
    let before = shown(&fresh().each_ref().map(TempDir::path));
    let (mounting, calls) = kill::child(scenario, &paths, None).unwrap();
    let after = shown(&paths);
    for first_away in 0..3 {
        for then_away in (0..3).filter(|then| *then != first_away) {
            let (mut done, mut undone) = (0, 0);
            for nth in mounting + 1..=mounting + calls {
                let branches = fresh();
                let paths = branches.each_ref().map(TempDir::path);
                assert!(kill::child(scenario, &paths, Some(nth)).is_none());
                // Between the two records: the names do not change yet.
                if whole_records(&paths) == 1 && !paths.iter().any(|path| path.join("new/name").exists()) {
                    continue;
                }
                let mut names = Vec::new();
                for away in [first_away, then_away] {
                    let there = [0, 1, 2].into_iter().filter(|at| *at != away).map(|at| paths[at]);
                    let there: Vec<&Path> = there.collect();
                    shown(&there);
                    names.extend(there.into_iter().map(is_renamed));
                }
                let how =
                    format!("killed at {nth}, without {first_away}, then without {then_away}: {names:?}");
                assert!(names.windows(2).all(|pair| pair[0] == pair[1]), "{how}");
                let all = shown(&paths);
                assert_eq!(all == after, names[0], "{how}: {all:?}");
                assert!(all == before || all == after, "{how}: {all:?}");
                assert_eq!(records(&paths), 0, "{how}");
                if names[0] { done += 1 } else { undone += 1 }
            }
            assert!(done > 0 && undone > 0, "{done} were finished and {undone} taken back");
        }
    }
}
