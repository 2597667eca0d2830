//! A file with several hard links was moved halfway, and each of the two branches is shown without the other. On the target it gets
//! other rights, and the source changes it, too.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fsstack_engine::ops::Change;
use fsstack_lab::{self as lab, MiB, needs};

use crate::engine::{Engine, settings};
use crate::kill;
use crate::scenario::{DRAIN_LINKED_FILES, DRAIN_LINKS, LINKED_FILES, LINKS, Scenario};

/// More calls than the process makes.
const MOST: u64 = 20_000;
const RESTRICTED: u32 = 0o600;

fn shown_apart(scenario: &Scenario, names: &[&str]) {
    needs!(root());
    let pool = lab::pool().tmpfs_branch("a", MiB(4)).tmpfs_branch("b", MiB(4)).tmpfs_branch("c", MiB(4));
    let pool = pool.unmounted();
    let paths = ["a", "b", "c"].map(|name| pool.branch(name).path());
    let reset = || {
        for entry in paths.iter().flat_map(|path| fs::read_dir(path).unwrap()) {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
        scenario.prepare(&paths);
    };
    reset();
    let (mounting, _) = kill::child(scenario, &paths, None).unwrap();
    let (mut both, mut wrong) = (0, Vec::new());
    for nth in mounting + 1.. {
        assert!(nth < MOST, "the process does not end");
        reset();
        if kill::child(scenario, &paths, Some(nth)).is_some() {
            break;
        }
        let change = |branches: &[&Path], mode: u32| {
            let engine = Engine::over(branches.iter().copied(), settings("ff"));
            let shown = engine.find(Path::new(names[0])).is_ok();
            if shown {
                let change = Change { mode: Some(mode), ..Change::default() };
                engine.setattr(Path::new(names[0]), change).unwrap();
            }
            shown
        };
        // The copy has gone to one of the two.
        let restricted = change(&paths[1..], RESTRICTED);
        if !(change(&[paths[0]], 0o666) && restricted) {
            continue;
        }
        both += 1;
        drop(Engine::over(paths.into_iter(), settings("ff")));
        let copies = paths.iter().flat_map(|path| names.iter().map(move |name| path.join(name)));
        let modes: Vec<u32> = copies.filter_map(|copy| Some(copy.metadata().ok()?.mode() & 0o777)).collect();
        if !modes.contains(&RESTRICTED) {
            let modes: Vec<String> = modes.iter().map(|mode| format!("{mode:o}")).collect();
            wrong.push(format!("killed at {nth}: modes {modes:?}"));
        }
    }
    assert!(both > 0, "never did each branch show it");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rights_that_the_new_copy_of_hard_links_was_given_are_kept() {
    shown_apart(&DRAIN_LINKS, LINKS[0]);
}

#[test]
fn rights_that_a_linked_file_of_a_batch_was_given_are_kept() {
    shown_apart(&DRAIN_LINKED_FILES, LINKED_FILES[0]);
}
