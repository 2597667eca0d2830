//! A file with several hard links was moved halfway, and each of the two branches is shown without the other. The source changes it,
//! and on the target it gets other rights, or is removed.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fsstack_engine::ops::Change;
use fsstack_lab::{self as lab, MiB, needs};

use crate::engine::{Engine, settings};
use crate::kill;
use crate::scenario::{DRAIN_LINKED_FILES, DRAIN_LINKS, LINKED_FILES, LINKS, Scenario};

/// More calls than the process makes.
const MOST: u64 = 20_000;
/// Rights of the file after the change on each branch.
const ON_SOURCE: u32 = 0o666;
const ON_TARGET: u32 = 0o600;

/// Change by the mount of the target alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    Restrict,
    Remove,
}

fn set_mode(engine: &Engine, name: &str, mode: u32) {
    engine.setattr(Path::new(name), Change { mode: Some(mode), ..Change::default() }).unwrap();
}

fn shown_apart(scenario: &Scenario, names: &[&str], deed: Deed) {
    needs!(root());
    let pool = lab::pool().tmpfs_branch("a", MiB(4)).tmpfs_branch("b", MiB(4)).tmpfs_branch("c", MiB(4));
    let pool = pool.unmounted();
    let paths = ["a", "b", "c"].map(|name| pool.branch(name).path());
    let reset = || scenario.prepare_anew(&paths);
    reset();
    let (mounting, _) = kill::child(scenario, &paths, None).unwrap();
    let (mut both, mut wrong) = (0, Vec::new());
    for nth in mounting + 1.. {
        assert!(nth < MOST, "the process does not end");
        reset();
        if kill::child(scenario, &paths, Some(nth)).is_some() {
            break;
        }
        let shown = |branches: &[&Path]| {
            let engine = Engine::over(branches.iter().copied(), settings("ff"));
            engine.find(Path::new(names[0])).is_ok().then_some(engine)
        };
        // The copy has gone to one of the two.
        let Some(target) = shown(&paths[1..]) else { continue };
        match deed {
            Deed::Restrict => set_mode(&target, names[0], ON_TARGET),
            Deed::Remove => names.iter().for_each(|name| target.unlink(Path::new(name)).unwrap()),
        }
        drop(target);
        let Some(source) = shown(&[paths[0]]) else { continue };
        set_mode(&source, names[0], ON_SOURCE);
        drop(source);
        both += 1;
        drop(Engine::over(paths.into_iter(), settings("ff")));
        let copies = paths.iter().flat_map(|path| names.iter().map(move |name| path.join(name)));
        let modes: Vec<u32> = copies.filter_map(|copy| Some(copy.metadata().ok()?.mode() & 0o777)).collect();
        let is_right = match deed {
            Deed::Restrict => modes.contains(&ON_TARGET),
            // The changed copy stays, and nothing is left to settle.
            Deed::Remove => {
                modes == vec![ON_SOURCE; names.len()] && pool.holders(".fsstack.moving").is_empty()
            }
        };
        if !is_right {
            let modes: Vec<String> = modes.iter().map(|mode| format!("{mode:o}")).collect();
            wrong.push(format!(
                "killed at {nth}: modes {modes:?}, left {:?}",
                pool.holders(".fsstack.moving")
            ));
        }
    }
    assert!(both > 0, "never did each branch show it");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rights_that_the_new_copy_of_hard_links_was_given_are_kept() {
    shown_apart(&DRAIN_LINKS, LINKS[0], Deed::Restrict);
}

#[test]
fn rights_that_a_linked_file_of_a_batch_was_given_are_kept() {
    shown_apart(&DRAIN_LINKED_FILES, LINKED_FILES[0], Deed::Restrict);
}

#[test]
fn a_new_copy_of_hard_links_that_was_removed_leaves_nothing_to_settle() {
    shown_apart(&DRAIN_LINKS, LINKS[0], Deed::Remove);
}
