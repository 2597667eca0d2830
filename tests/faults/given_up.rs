//! Records of renames that no mount can settle any more.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fsstack_engine::admin::live::{BadChange, Position, Removal};
use fsstack_engine::jobs::{DrainOrder, HiddenCopies, JobState, Manner};
use fsstack_lab as lab;
use fsstack_pool::BranchSpec;
use fsstack_sys::locks::{Lock, LockType, TO_THE_END, try_lock};
use fsstack_sys::{Errno, fault};
use tempfile::TempDir;

use crate::engine::{Engine, settings};
use crate::journal::{FOLDER, records, shown};
use crate::scenario;
use crate::{ERRNOS, kill};

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

/// Three branches; the first two have the records of a rename that waits for the third.
fn waiting_for_the_third() -> [TempDir; 3] {
    let left = killed_renames().find(|branches| {
        let paths = branches.each_ref().map(TempDir::path);
        drop(Engine::over(paths[..2].iter().copied(), settings("ff")));
        records(&paths[..2]) > 0
    });
    left.expect("nothing was ever left for the third branch")
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

/// Its records would go with it.
#[test]
fn a_branch_whose_records_wait_for_another_is_neither_removed_nor_drained() {
    let branches = waiting_for_the_third();
    let paths = branches.each_ref().map(TempDir::path);
    let engine = Engine::over(paths[..2].iter().copied(), settings("ff"));
    let left = records(&paths[..2]);
    let holder = paths[..2].iter().position(|path| path.join(FOLDER).exists()).unwrap();
    let from = engine.union.pool().branches[holder].ix;
    let removed = engine.union.remove_branch(from, Removal::IfIdle);
    assert!(matches!(removed, Err(BadChange::Awaiting(_))), "{removed:?}");
    let (to, hidden, manner) = (Vec::new(), HiddenCopies::Stop, Manner::default());
    let job = engine.union.start_drain(DrainOrder { from, to, hidden, manner, window: None }).unwrap();
    let view = || engine.union.jobs().into_iter().find(|known| known.id == job.id).unwrap();
    lab::until("the drain ends", || view().state.is_over());
    let ended = view();
    let says = ended.refusal.unwrap_or_default();
    assert!(ended.state == JobState::Refused && says.contains("not settled"), "{:?}: {says}", ended.state);
    assert_eq!(records(&paths[..2]), left);
}

/// Three branches in the middle of a rename that no mount has settled yet, and a pool of the first two.
fn half_done_in_a_pool() -> ([TempDir; 3], Engine) {
    for branches in killed_renames() {
        let paths = branches.each_ref().map(TempDir::path);
        if !paths[2].join("new/name").exists() || !paths[1].join("dir").exists() {
            continue;
        }
        // As if they had been left while the pool was at work, and the third branch removed then.
        let folders = paths.map(|path| (path.join(FOLDER), path.join("aside")));
        let there = || folders.iter().filter(|(folder, aside)| folder.exists() || aside.exists());
        there().for_each(|(folder, aside)| fs::rename(folder, aside).unwrap());
        let engine = Engine::over(paths[..2].iter().copied(), settings("ff"));
        there().for_each(|(folder, aside)| fs::rename(aside, folder).unwrap());
        assert!(records(&paths) > 0);
        return (branches, engine);
    }
    panic!("never killed between two branches");
}

#[test]
fn records_that_are_not_settled_go_with_the_branch_that_is_given_up() {
    let (branches, engine) = half_done_in_a_pool();
    let paths = branches.each_ref().map(TempDir::path);
    let id = Engine::over(paths[2..].iter().copied(), settings("ff")).union.pool().branches[0].id;
    engine.union.give_up_branch(id).unwrap();
    assert_eq!(records(&paths), 0);
    assert!(paths[..2].iter().all(|path| path.join("new/name").exists() && !path.join("dir").exists()));
    let first = engine.union.pool().branches[0].ix;
    engine.union.remove_branch(first, Removal::IfIdle).unwrap();
}

#[test]
fn a_branch_that_was_removed_in_the_middle_of_a_rename_follows_when_it_is_added() {
    let (branches, engine) = half_done_in_a_pool();
    let paths = branches.each_ref().map(TempDir::path);
    engine.union.add_branch(&BranchSpec::new(paths[2].to_owned()), Position::Last).unwrap();
    assert_eq!(records(&paths), 0);
    assert!(paths.iter().all(|path| path.join("new/name").exists() && !path.join("dir").exists()));
}

/// Two records on one branch, and another branch fails once: only what concerned that waits.
#[test]
fn a_fault_of_another_branch_leaves_one_record_only() {
    let branches = killed_renames()
        .find(|branches| {
            let paths = branches.each_ref().map(TempDir::path);
            records(&paths) == 2 && paths[2].join("new/name").exists() && paths[1].join("dir").exists()
        })
        .unwrap();
    let paths = branches.each_ref().map(TempDir::path);
    let folder = paths[0].join(FOLDER);
    let record = fs::read(fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path()).unwrap();
    fs::remove_dir_all(paths[1].join(FOLDER)).unwrap();
    let put_back = || {
        for path in paths {
            let _both = (fs::create_dir(path.join("dir")), fs::remove_dir_all(path.join("new/name")));
        }
        let _folder = fs::create_dir(&folder);
        fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
        for name in ["0000000000000001.names", "0000000000000002.names"] {
            fs::write(folder.join(name), &record).unwrap();
            fs::set_permissions(folder.join(name), PermissionsExt::from_mode(0o600)).unwrap();
        }
    };
    let names = || {
        let all = fs::read_dir(&folder).into_iter().flatten();
        all.map(|one| one.unwrap().file_name()).collect::<Vec<_>>()
    };
    let add =
        |engine: &Engine| engine.union.add_branch(&BranchSpec::new(paths[0].to_owned()), Position::Last);
    let mut went_on = 0;
    for nth in 1.. {
        put_back();
        let first = names()[0].clone();
        let engine = Engine::over(paths[1..].iter().copied(), settings("ff"));
        let (_, failed) = fault::fail(nth, Errno::IO, || add(&engine));
        if failed.is_none() {
            break;
        }
        went_on += usize::from(names() == [first]);
    }
    assert!(went_on > 0);
}

/// Whichever call fails: either no record is left, or the error names the branch that has it, and a retry removes it.
#[test]
fn a_branch_is_forgotten_only_if_no_record_waits_for_it() {
    let branches = waiting_for_the_third();
    let paths = branches.each_ref().map(TempDir::path);
    let id = Engine::over(paths[2..].iter().copied(), settings("ff")).union.pool().branches[0].id;
    let folder = paths.iter().map(|path| path.join(FOLDER)).find(|folder| folder.exists()).unwrap();
    let kept: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let kept: Vec<_> = kept.into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect();
    let put_back = || {
        if !folder.exists() {
            fs::create_dir(&folder).unwrap();
            fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
        }
        for (record, path) in &kept {
            fs::write(path, record).unwrap();
            // One that others may write to is not believed.
            fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
        }
    };
    let mount = || Engine::over(paths[..2].iter().copied(), settings("ff"));
    let engine = mount();
    let (done, calls) = fault::count(|| engine.union.give_up_branch(id));
    assert_eq!((done, records(&paths[..2])), (Ok(()), 0));
    drop(engine);
    let (mut refused, mut wrong) = (0, Vec::new());
    for (errno, nth) in ERRNOS.into_iter().flat_map(|errno| (1..=calls).map(move |nth| (errno, nth))) {
        put_back();
        let engine = mount();
        let (result, failed) = fault::fail(nth, errno, || engine.union.give_up_branch(id));
        let is_named = |path: &str| paths[..2].iter().any(|branch| *branch == Path::new(path));
        match &result {
            Ok(()) if records(&paths[..2]) == 0 => continue,
            Err(BadChange::Remembered { path, .. }) if is_named(path) => refused += 1,
            _ => {
                let left = records(&paths[..2]);
                wrong.push(format!("{nth} ({failed:?}) {errno:?}: {result:?}, {left} records"));
            }
        }
        drop(engine);
        let again = mount().union.give_up_branch(id);
        if !matches!(again, Ok(()) | Err(BadChange::NotExported)) || records(&paths[..2]) != 0 {
            wrong.push(format!("{nth} ({failed:?}) {errno:?}: {again:?} when tried again"));
        }
    }
    assert!(wrong.is_empty(), "of {calls} calls:\n{}", wrong.join("\n"));
    assert!(refused > 0, "no call of {calls} was refused");
}

/// A record that another process is working on, and a folder of another user.
#[test]
fn a_record_in_use_is_not_forgotten_and_another_users_folder_is_ignored() {
    let branches = waiting_for_the_third();
    let paths = branches.each_ref().map(TempDir::path);
    let id = Engine::over(paths[2..].iter().copied(), settings("ff")).union.pool().branches[0].id;
    let with_record = paths.iter().position(|path| path.join(FOLDER).exists()).unwrap();
    let folder = paths[with_record].join(FOLDER);
    let other = paths[1 - with_record].join(FOLDER);
    let _second = fs::remove_dir_all(&other);
    fs::create_dir(&other).unwrap();
    fs::set_permissions(&other, PermissionsExt::from_mode(0o777)).unwrap();
    let engine = Engine::over(paths[..2].iter().copied(), settings("ff"));
    let record = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let held = fs::File::options().read(true).write(true).open(&record).unwrap();
    let lock = Lock { start: 0, end: TO_THE_END, kind: LockType::Write, pid: 0 };
    try_lock(held.as_fd(), lock).unwrap();
    let result = engine.union.give_up_branch(id);
    assert!(
        matches!(&result, Err(BadChange::Remembered { path, .. }) if Path::new(path) == paths[with_record]),
        "{result:?}"
    );
    drop(held);
    engine.union.give_up_branch(id).unwrap();
    assert_eq!(records(&paths[..2]), 0);
    assert!(other.exists());
}

/// The rename can be neither finished nor undone; every mount would say so again.
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
