//! A drain that sets hidden objects aside is killed before each call: no content is lost, and none comes to light.

use std::fs;
use std::path::{Path, PathBuf};

use fsstack_lab::{self as lab, MiB, needs};

use crate::engine::{Engine, settings};
use crate::kill;
use crate::scenario::{DRAIN_HIDDEN, HIDDEN, NOT_HIDDEN};

/// More calls than the process makes.
const MOST: u64 = 20_000;

/// Objects on the branch that were set aside with the hidden file's content.
fn kept(branch: &Path) -> Vec<PathBuf> {
    let Ok(dirs) = fs::read_dir(branch.join(".fsstack.moving/kept")) else { return Vec::new() };
    let objects = dirs.map(|dir| dir.unwrap().path().join("object"));
    objects.filter(|object| fs::read(object).is_ok_and(|all| all == HIDDEN.as_bytes())).collect()
}

#[test]
fn a_hidden_file_is_whole_wherever_a_drain_that_sets_it_aside_is_killed() {
    needs!(root());
    let pool = lab::pool().tmpfs_branch("a", MiB(4)).tmpfs_branch("b", MiB(4)).tmpfs_branch("c", MiB(4));
    let pool = pool.unmounted();
    let paths = ["a", "b", "c"].map(|name| pool.branch(name).path());
    let reset = || DRAIN_HIDDEN.prepare_anew(&paths);
    let hidden = || fs::read(paths[1].join(HIDDEN)).is_ok_and(|all| all == HIDDEN.as_bytes());
    let kept = || [paths[0], paths[2]].into_iter().flat_map(kept).count();
    reset();
    let (mounting, _) = kill::child(&DRAIN_HIDDEN, &paths, None).unwrap();
    assert!(!paths[1].join("d").exists(), "the job did not empty the branch");
    assert_eq!(kept(), 1);
    let (mut wrong, mut both) = (Vec::new(), 0);
    for nth in mounting + 1.. {
        assert!(nth < MOST, "the process does not end");
        reset();
        if kill::child(&DRAIN_HIDDEN, &paths, Some(nth)).is_some() {
            break;
        }
        both += u32::from(hidden() && kept() > 0);
        if !hidden() && kept() == 0 {
            wrong.push(format!("killed at {nth}: the hidden content is lost"));
        }
        {
            let engine = Engine::over(paths.into_iter(), settings("ff"));
            let read = |path: &str| engine.read(Path::new(path)).map(|all| String::from_utf8(all).unwrap());
            let shown = [read(HIDDEN), read(NOT_HIDDEN)];
            if shown != [Ok("shown".to_owned()), Ok(NOT_HIDDEN.to_owned())] {
                wrong.push(format!("killed at {nth}: shown are {shown:?}"));
            }
        }
        if !hidden() && kept() == 0 {
            wrong.push(format!("killed at {nth}: the next mount lost the hidden content"));
        }
        // Again, to its end.
        kill::child(&DRAIN_HIDDEN, &paths, None).unwrap();
        if hidden() || paths[1].join("d").exists() || !(1..=2).contains(&kept()) {
            wrong.push(format!("killed at {nth}: {} are kept after the next drain", kept()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(both > 0, "the process was never killed between the copy and the removal");
}
