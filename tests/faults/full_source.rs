//! A move was cut with both copies there, and a mount has the source alone, which is full to the last block: no record can be
//! replaced there.

use std::fs;
use std::path::Path;

use fsstack_lab::{self as lab, MiB, needs};

use crate::check::{Entry as Seen, seen};
use crate::engine::{Engine, settings};
use crate::journal::FOLDER;
use crate::kill;
use crate::moves::Branches;
use crate::scenario::{DRAIN_LINKED_FILES, FILM, LINKED_FILES, MOVE_WITH_ROOM};

/// More calls than the process makes.
const MOST: u64 = 20_000;
const LATER: &str = "written when the other branch was away";

/// Names of the extended attributes of `path` that are intents or decisions of moves.
fn noted(path: &Path) -> Vec<String> {
    let mut names = vec![0; 64 << 10];
    let len = rustix::fs::listxattr(path, &mut names[..]).unwrap();
    let names = String::from_utf8(names[..len].to_vec()).unwrap();
    names.split_terminator('\0').filter(|name| name.ends_with(".move")).map(str::to_owned).collect()
}

#[test]
fn a_full_branch_notes_that_its_copy_is_the_file() {
    needs!(root());
    let branches = Branches::fresh();
    let (mounting, calls) = kill::child(&MOVE_WITH_ROOM, &branches.paths(), None).unwrap();
    let [a, b, c] = branches.paths();
    let (mut both, mut wrong) = (0, Vec::new());
    for (nth, is_written) in (mounting + 1..=mounting + calls).flat_map(|nth| [(nth, false), (nth, true)]) {
        branches.reset();
        assert!(kill::child(&MOVE_WITH_ROOM, &branches.paths(), Some(nth)).is_none());
        if ![a, b].iter().all(|path| path.join(FILM).exists()) {
            continue;
        }
        both += 1;
        let filler = a.join("filler");
        fs::write(&filler, vec![1; 2 << 20]).expect_err("the branch is to be full");
        let engine = Engine::over([a, c].into_iter(), settings("ff"));
        match is_written {
            true => engine.write(Path::new(FILM), Some(0), LATER.as_bytes()).unwrap(),
            false => engine.unlink(Path::new(FILM)).unwrap(),
        }
        drop(engine);
        fs::remove_file(&filler).unwrap();
        let shown = seen(&branches.mount());
        let is_right = match shown.get(Path::new(FILM)) {
            Some(Seen::File { text, .. }) => is_written && text.starts_with(LATER),
            _ => !is_written,
        };
        let left: Vec<_> = [a, b, c].into_iter().filter(|path| path.join(FOLDER).exists()).collect();
        let noted = [noted(a), noted(b)].concat();
        if !is_right || !left.is_empty() || !noted.is_empty() {
            let names = shown.keys();
            wrong.push(format!(
                "killed at {nth}, written: {is_written}: {names:?}, records on {left:?}, attributes {noted:?}"
            ));
        }
    }
    assert!(both > 0, "never were there two of it, in {calls} calls");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The same with the record of a batch, in which some files have several hard links: each of them is removed.
#[test]
fn files_of_a_batch_that_a_full_branch_showed_stay_removed() {
    needs!(root());
    let pool = lab::pool().tmpfs_branch("a", MiB(4)).tmpfs_branch("b", MiB(4)).tmpfs_branch("c", MiB(4));
    let pool = pool.unmounted();
    let paths @ [a, b, c] = ["a", "b", "c"].map(|name| pool.branch(name).path());
    let reset = || DRAIN_LINKED_FILES.prepare_anew(&paths);
    reset();
    let (mounting, _) = kill::child(&DRAIN_LINKED_FILES, &paths, None).unwrap();
    let (mut any_noted, mut wrong) = (0, Vec::new());
    for nth in mounting + 1.. {
        assert!(nth < MOST, "the process does not end");
        reset();
        if kill::child(&DRAIN_LINKED_FILES, &paths, Some(nth)).is_some() {
            break;
        }
        if !a.join(FOLDER).exists() {
            continue;
        }
        let filler = a.join("filler");
        fs::write(&filler, vec![1; 5 << 20]).expect_err("the branch is to be full");
        let engine = Engine::over([a, c].into_iter(), settings("ff"));
        any_noted += usize::from(!noted(a).is_empty());
        let names = LINKED_FILES.iter().flat_map(|names| names.iter().map(Path::new));
        let removed: Vec<_> = names.filter(|name| engine.unlink(name).is_ok()).collect();
        drop(engine);
        fs::remove_file(&filler).unwrap();
        let shown = seen(&Engine::over(paths.into_iter(), settings("ff")));
        let back: Vec<_> = removed.into_iter().filter(|name| shown.contains_key(*name)).collect();
        let left: Vec<_> = paths.into_iter().filter(|path| path.join(FOLDER).exists()).collect();
        let noted = [noted(a), noted(b)].concat();
        if !back.is_empty() || !left.is_empty() || !noted.is_empty() {
            wrong.push(format!("killed at {nth}: {back:?} back, records on {left:?}, attributes {noted:?}"));
        }
    }
    assert!(any_noted > 0, "nothing was ever noted");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
