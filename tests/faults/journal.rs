//! Records of changes in progress as a machine crash may leave them: truncated anywhere, or followed by zeros. Such a
//! record was never acted on; the next mount removes it and changes nothing else.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fsstack_lab::needs::Skip;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, MiB, needs};
use fsstack_sys::locks::{self, Lock, LockType, TO_THE_END};
use tempfile::TempDir;

use crate::check::{Entry, Tree, seen};
use crate::engine::{Engine, settings};
use crate::kill;
use crate::moves::Branches;
use crate::scenario::{self, FILM, MOVE, Scenario};

pub(crate) const FOLDER: &str = ".fsstack.moving";

/// The record on one of the branches, whose name ends with `suffix`.
fn record(branches: &[&Path], suffix: &str) -> Option<PathBuf> {
    let folders = branches.iter().filter_map(|branch| fs::read_dir(branch.join(FOLDER)).ok());
    let mut files = folders.flatten().map(|entry| entry.unwrap().path());
    files.find(|path| path.to_str().unwrap().ends_with(suffix))
}

pub(crate) fn shown(branches: &[&Path]) -> Tree {
    seen(&Engine::over(branches.iter().copied(), settings("ff")))
}

/// Kills until a complete record is on a branch, and the change has not begun; `branches` are the branches in that state.
fn killed_with_a_record(
    scenario: &Scenario,
    branches: &[&Path],
    suffix: &str,
    reset: impl Fn(),
    has_begun: impl Fn() -> bool,
) -> (PathBuf, Vec<u8>) {
    let (mounting, _) = kill::child(scenario, branches, None).unwrap();
    for nth in mounting + 1.. {
        reset();
        // Other threads of the child make calls too: the n-th is not the same one each time.
        if kill::child(scenario, branches, Some(nth)).is_some() {
            break;
        }
        if has_begun() {
            continue;
        }
        if let Some(path) = record(branches, suffix) {
            let bytes = fs::read(&path).unwrap();
            if !bytes.is_empty() {
                return (path, bytes);
            }
        }
    }
    panic!("{}: never a record", scenario.name);
}

/// Truncates the record at every byte, with nothing and with zeros after it, and mounts.
fn cut_everywhere(path: &Path, whole: &[u8], check: impl Fn(String)) {
    for at in 0..=whole.len() {
        let mut torn = whole.to_vec();
        torn[at..].fill(0);
        for (text, how) in [(&whole[..at], "cut"), (&torn[..], "zeros from")] {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            // A record that others may write to is not believed.
            for (made, mode) in [(path.parent().unwrap(), 0o700), (path, 0o600)] {
                fs::set_permissions(made, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            }
            check(format!("{how} {at}"));
        }
    }
}

#[test]
fn a_record_of_a_rename_is_cut_at_every_byte() {
    let scenario = scenario::named("rename_a_directory_of_three_branches");
    let branches: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let paths = branches.each_ref().map(TempDir::path);
    let reset = || {
        for path in paths {
            for entry in fs::read_dir(path).unwrap() {
                fs::remove_dir_all(entry.unwrap().path()).unwrap();
            }
        }
        scenario.prepare(&paths);
    };
    reset();
    let before = shown(&paths);
    let (path, whole) = killed_with_a_record(scenario, &paths, ".names", reset, || false);
    cut_everywhere(&path, &whole, |how| {
        assert_eq!(shown(&paths), before, "{how}");
        assert!(!path.parent().unwrap().exists(), "{how}: left over");
    });
}

#[test]
fn an_intent_of_a_move_is_cut_at_every_byte() {
    needs!(root());
    let branches = Branches::fresh();
    let paths = branches.paths();
    branches.reset();
    let is_named = || paths[1].join(FILM).exists();
    let (path, whole) = killed_with_a_record(&MOVE, &paths, ".move", || branches.reset(), is_named);
    cut_everywhere(&path, &whole, |how| assert_eq!(branches.fault(None), None, "{how}"));
}

/// A branch of the record is missing at the next mount: what is settled without it applies to it too.
#[test]
fn a_branch_that_comes_back_later_follows() {
    let scenario = scenario::named("rename_a_directory_of_three_branches");
    let fresh = || {
        let branches: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        scenario.prepare(&branches.each_ref().map(TempDir::path));
        branches
    };
    let before = shown(&fresh().each_ref().map(TempDir::path));
    // Never mounted before, like those of the killed children: a first mount makes more calls.
    let branches = fresh();
    let paths = branches.each_ref().map(TempDir::path);
    let (mounting, calls) = kill::child(scenario, &paths, None).unwrap();
    let after = shown(&paths);
    let (mut done, mut undone) = (0, 0);
    for nth in mounting + 1..=mounting + calls {
        let branches = fresh();
        let paths = branches.each_ref().map(TempDir::path);
        assert!(kill::child(scenario, &paths, Some(nth)).is_none());
        shown(&paths[..2]);
        match shown(&paths) {
            all if all == before => undone += 1,
            all if all == after => done += 1,
            all => panic!("killed at {nth}: {all:?}"),
        }
        assert_eq!(record(&paths, ".names"), None, "killed at {nth}");
    }
    assert!(done > 0 && undone > 0, "{done} were finished and {undone} taken back");
}

/// A change that the others have shown as done waits until the branch can make it: it is not forgotten when it is refused once.
#[test]
fn a_branch_that_refuses_when_it_is_back_follows_later() {
    needs!(root(), program("chattr"));
    let scenario = scenario::named("rename_a_directory_of_three_branches");
    let fresh = || {
        let branches: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        scenario.prepare(&branches.each_ref().map(TempDir::path));
        branches
    };
    let (mounting, _) = kill::child(scenario, &fresh().each_ref().map(TempDir::path), None).unwrap();
    let (mut refused, mut merged) = (0, 0);
    for nth in mounting + 1.. {
        let branches = fresh();
        let paths = branches.each_ref().map(TempDir::path);
        let before = shown(&paths);
        if kill::child(scenario, &paths, Some(nth)).is_some() {
            break;
        }
        // The third branch is back when the others have shown the change done.
        let without = shown(&paths[..2]);
        let waits = record(&paths, ".names").is_some();
        let chattr = |how: &str| command("chattr").arg(how).arg(paths[2]).run();
        if chattr("+i").is_err() {
            return Skip::because("needs a file system with `chattr +i` in /tmp").announce();
        }
        shown(&paths);
        chattr("-i").unwrap();
        if waits && nth % 2 == 0 {
            // Another branch gets a directory of the old name. The pool shows both as one.
            let now = if paths[2].join("dir").exists() { "dir" } else { "new/name" };
            fs::create_dir_all(paths[0].join(now)).unwrap();
            shown(&paths);
            assert!(paths[2].join(now).exists(), "killed at {nth}: {now}");
            assert_eq!(record(&paths, ".names"), None, "killed at {nth}");
            merged += 1;
            continue;
        }
        let all = shown(&paths);
        if waits {
            refused += 1;
            let missing = without.keys().find(|path| !all.contains_key(*path));
            assert_eq!(missing, None, "killed at {nth}: it was done");
            assert_eq!(all.len(), before.len(), "killed at {nth}: {all:?}");
            assert_eq!(record(&paths, ".names"), None, "killed at {nth}");
        }
    }
    assert!(refused > 0 && merged > 0, "{refused} {merged}");
}

/// No branch that was given up is waited for: its records are removed.
#[test]
fn records_that_wait_for_a_branch_that_was_given_up_go() {
    let scenario = scenario::named("rename_a_directory_of_three_branches");
    let fresh = || {
        let branches: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        scenario.prepare(&branches.each_ref().map(TempDir::path));
        branches
    };
    let branches = fresh();
    let (mounting, calls) = kill::child(scenario, &branches.each_ref().map(TempDir::path), None).unwrap();
    for nth in mounting + 1..=mounting + calls {
        let branches = fresh();
        let paths = branches.each_ref().map(TempDir::path);
        assert!(kill::child(scenario, &paths, Some(nth)).is_none());
        let engine = Engine::over(paths[..2].iter().copied(), settings("ff"));
        if records(&paths[..2]) == 0 {
            continue;
        }
        let id = Engine::over(paths[2..].iter().copied(), settings("ff")).union.pool().branches[0].id;
        engine.union.give_up_branch(id).unwrap();
        assert_eq!(records(&paths[..2]), 0);
        assert!(engine.union.give_up_branch(id).is_err(), "nothing waits for it any more");
        return;
    }
    panic!("nothing was ever left for the third branch");
}

/// Number of records of name changes on the branches.
pub(crate) fn records(branches: &[&Path]) -> usize {
    let folders = branches.iter().filter_map(|branch| fs::read_dir(branch.join(FOLDER)).ok());
    let names = folders.flatten().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".names")).count()
}

/// The process is killed while it settles a record without one of its branches: what it settled applies to that branch.
#[test]
fn a_second_crash_while_a_record_is_settled_leaves_one_record() {
    let scenario = scenario::named("rename_a_directory_of_three_branches");
    let fresh = || {
        let branches: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        scenario.prepare(&branches.each_ref().map(TempDir::path));
        branches
    };
    let branches = fresh();
    let paths = branches.each_ref().map(TempDir::path);
    let (mounting, calls) = kill::child(scenario, &paths, None).unwrap();
    let (before, after) = (shown(&fresh().each_ref().map(TempDir::path)), shown(&paths));
    let first = (mounting + 1..=mounting + calls).find(|nth| {
        let branches = fresh();
        let paths = branches.each_ref().map(TempDir::path);
        assert!(kill::child(scenario, &paths, Some(*nth)).is_none());
        records(&paths) == 1 && paths[2].join("new/name").exists()
    });
    let mut crashes = 0;
    for nth in 1.. {
        let branches = fresh();
        let paths = branches.each_ref().map(TempDir::path);
        assert!(kill::child(scenario, &paths, first).is_none());
        // Without a directory to create in, it only mounts.
        let ended = kill::child(scenario::named("create"), &paths[..2], Some(nth));
        assert!(records(&paths) <= 1, "killed at {nth}");
        let all = shown(&paths);
        assert!(all == before || all == after, "killed at {nth}: {all:?}");
        assert_eq!(records(&paths), 0, "killed at {nth}");
        if ended.is_some() {
            break;
        }
        crashes += 1;
    }
    assert!(crashes > 10, "{crashes}");
}

/// A directory replaced another, and the process was killed before the old one was removed from the last branch. The
/// pool shows that as done, so it is never undone, though the old one cannot be removed any more.
#[test]
fn changes_shown_as_done_are_not_taken_back() {
    let scenario = scenario::named("rename_over_an_empty_directory_elsewhere");
    let mut rounds = 0;
    for nth in 1.. {
        let branches: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        let paths = branches.each_ref().map(TempDir::path);
        scenario.prepare(&paths);
        if kill::child(scenario, &paths, Some(nth)).is_some() {
            break;
        }
        let is_done = paths[0].join("to/one").exists() && paths[1].join("to/two").exists();
        if !is_done || !paths[2].join("to").exists() || !paths[0].join(FOLDER).exists() {
            continue;
        }
        rounds += 1;
        let without = shown(&paths[1..]);
        assert!(without.contains_key(Path::new("to/two")) && !without.contains_key(Path::new("dir")));
        fs::write(paths[2].join("to/three"), "three").unwrap();
        let all = shown(&paths);
        for name in ["to/one", "to/two", "to/three"] {
            assert!(all.contains_key(Path::new(name)), "killed at {nth}: {all:?}");
        }
        assert!(!all.contains_key(Path::new("dir")), "killed at {nth}: {all:?}");
        assert_eq!(records(&paths), 0);
    }
    assert!(rounds > 0);
}

#[test]
fn a_record_of_another_version_or_in_use_stays_and_is_not_acted_on() {
    let scenario = scenario::named("rename_a_directory_of_three_branches");
    let branches: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let paths = branches.each_ref().map(TempDir::path);
    let reset = || {
        for path in paths {
            for entry in fs::read_dir(path).unwrap() {
                fs::remove_dir_all(entry.unwrap().path()).unwrap();
            }
        }
        scenario.prepare(&paths);
    };
    reset();
    let (path, whole) = killed_with_a_record(scenario, &paths, ".names", reset, || false);
    let in_use = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let all = Lock { start: 0, end: TO_THE_END, kind: LockType::Write, pid: 0 };
    locks::try_lock(in_use.as_fd(), all).unwrap();
    shown(&paths);
    assert_eq!(fs::read(&path).unwrap(), whole, "its writer lives");
    drop(in_use);
    let other = [b"fsn9".as_slice(), &whole[4..]].concat();
    fs::write(&path, &other).unwrap();
    shown(&paths);
    assert_eq!(fs::read(&path).unwrap(), other, "another version wrote it");
    fs::write(&path, &whole).unwrap();
    shown(&paths);
    assert!(!path.parent().unwrap().exists(), "settled");
}

/// The file `to` on the first branch is to be removed, with its replacement already behind it, when the process is
/// killed.
fn killed_before_the_replaced_file_goes(paths: &[&Path; 3]) {
    let scenario = scenario::named("rename_over_a_file_on_an_earlier_branch");
    let reset = || {
        for entry in paths.iter().flat_map(|path| fs::read_dir(path).unwrap()) {
            let entry = entry.unwrap();
            let dir = entry.file_type().unwrap().is_dir();
            if dir { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) }.unwrap();
        }
        scenario.prepare(paths);
    };
    // The first mount writes the pool's marks on the roots, which stay: later ones make fewer calls.
    reset();
    kill::child(scenario, paths, None).unwrap();
    reset();
    let (mounting, calls) = kill::child(scenario, paths, None).unwrap();
    for nth in mounting + 1..=mounting + calls {
        reset();
        assert!(kill::child(scenario, paths, Some(nth)).is_none(), "call {nth} was not reached");
        let behind = fs::read(paths[1].join("to")).is_ok_and(|text| text == b"from");
        if behind && paths[0].join("to").exists() && record(paths, ".names").is_some() {
            return;
        }
    }
    panic!("never killed there");
}

fn text_of(tree: &Tree, name: &str) -> Option<String> {
    match tree.get(Path::new(name)) {
        Some(Entry::File { text, .. }) => Some(text.clone()),
        _ => None,
    }
}

/// A freed number is soon another file's: the record means the earlier file.
#[test]
fn a_new_file_with_the_number_of_one_that_was_to_go_stays() {
    needs!(root(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(310)).tmp_branch("b").tmp_branch("c").unmounted();
    let paths = ["a", "b", "c"].map(|name| pool.branch(name).path());
    killed_before_the_replaced_file_goes(&paths);
    let to = paths[0].join("to");
    let number = fs::metadata(&to).unwrap().ino();
    fs::remove_file(&to).unwrap();
    // The file system reuses it after it has cleaned up the old inode.
    let mut others = Vec::new();
    let began = Instant::now();
    let again = loop {
        let other = paths[0].join(format!("other{}", others.len()));
        fs::write(&other, "somebody else's").unwrap();
        if fs::metadata(&other).unwrap().ino() == number {
            break other;
        }
        others.push(other);
        assert!(began.elapsed() < Duration::from_secs(60), "the number is not used again");
    };
    fs::rename(again, &to).unwrap();
    others.iter().for_each(|other| fs::remove_file(other).unwrap());
    assert_eq!(text_of(&shown(&paths), "to").as_deref(), Some("somebody else's"));
}

#[test]
fn a_written_file_that_was_to_go_stays() {
    let branches: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let paths = branches.each_ref().map(TempDir::path);
    killed_before_the_replaced_file_goes(&paths);
    fs::write(paths[0].join("to"), "written since").unwrap();
    let tree = shown(&paths);
    assert_eq!(text_of(&tree, "to").as_deref(), Some("written since"));
    assert_eq!(text_of(&tree, "from").as_deref(), Some("from"), "what was to come in its place is lost");
    assert_eq!(record(&paths, ".names"), None);
}
