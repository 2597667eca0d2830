//! Records of renames that no mount can settle any more.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fsstack_engine::admin::live::{BadChange, Removal};
use fsstack_engine::jobs::{DrainOrder, HiddenCopies, JobState, Manner};
use fsstack_lab as lab;
use fsstack_sys::fault;
use fsstack_sys::locks::{Lock, LockType, TO_THE_END, try_lock};
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

/// Three branches; the first two have a record that waits for the third.
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
    assert_eq!(records(&paths[..2]), 1);
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
