//! Another host mounts the same branches during an operation: operations in progress are left to their own process.
//!
//! The other host is a child process, because locks are per process.

use std::fs::{self, File};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use fsstack_lab::needs;
use fsstack_lab::shell::command;
use fsstack_pool::BranchSpec;
use fsstack_sys::Call;
use fsstack_sys::witness::{self, Observer, Reach};

use crate::act::{append, create, mkdir};
use crate::disk::{Format, Home};
use crate::engine::{Engine, settings};
use crate::judge::{copies, numbers, renumbered};
use crate::plan::{Plan, Then, dir, file};
use crate::recording::add_handles;
use crate::run::is_wanted;
use crate::shown::{FOLDER, differences, shown};
use crate::single::{Single, many_steps};

/// Environment variable with the branches for the guest to mount.
const ORDER: &str = "FSSTACK_TEST_GUEST";

/// The other host: does nothing without branches.
#[test]
fn a_guest() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let specs = order.split('\n').map(|path| BranchSpec::new(path.into())).collect();
    // It reads no file: one that is read is not moved.
    drop(Engine::of(specs, settings("ff")));
}

/// Makes the guest mount the branches after one of the calls that leave something in a hidden folder.
struct Visited {
    paths: Vec<PathBuf>,
    /// Number of such calls before that.
    before: usize,
    seen: Mutex<usize>,
}

impl Observer for Visited {
    fn made(&self, _: Call) {
        let is_full = |root: &PathBuf| {
            fs::read_dir(root.join(FOLDER)).is_ok_and(|mut entries| entries.next().is_some())
        };
        if !self.paths.iter().any(is_full) {
            return;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen += 1;
        if *seen != self.before + 1 {
            return;
        }
        let order = self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join("\n");
        let args = ["--exact", "host::a_guest", "--nocapture", "--test-threads=1"];
        command(std::env::current_exe().unwrap()).args(args).env(ORDER, order).run().unwrap();
    }

    fn synced(&self, _: BorrowedFd<'_>, _: Reach) {}
}

/// Differences after the operations of `plan`, and whether the guest mounted.
fn visited(plan: &Plan, home: &Home, before: usize) -> (Vec<String>, bool) {
    let disks = plan
        .branches
        .iter()
        .enumerate()
        .map(|(at, branch)| home.mount(at, branch.format.empty(), branch.format));
    let disks: Vec<_> = disks.collect();
    let paths: Vec<PathBuf> = disks.iter().map(|disk| disk.path().to_owned()).collect();
    plan.prepare(&paths);
    let state = home.path().join("state");
    let _old = fs::remove_dir_all(&state);
    let engine = plan.mount(&paths, &state, None);
    let mut tree = plan.tree();
    let mut known = Vec::new();
    add_handles(&engine, &tree, &mut known);
    let observer = Arc::new(Visited { paths: paths.clone(), before, seen: Mutex::new(0) });
    let mut wrong = Vec::new();
    witness::observed(observer.clone(), || {
        for (n, act) in plan.acts.iter().enumerate() {
            if let Err(error) = act.run(&engine) {
                wrong.push(format!("{}: {error}", act.typed()));
            }
            assert!(tree.apply(act, n).is_some(), "{}: {}", plan.name, act.typed());
        }
    });
    drop(engine);
    let engine = plan.mount(&paths, &state, None);
    match shown(&engine) {
        Ok(names) => {
            wrong.extend(differences(&tree, &names));
            let copies = copies(plan, &paths, &names, (|_: &Path| false, true));
            let faults = numbers(&names).into_iter().chain(renumbered(&known, &names)).chain(copies);
            wrong.extend(faults.map(|fault| format!("{}: {}", fault.kind, fault.text)));
        }
        Err(error) => wrong.push(error),
    }
    drop(engine);
    sync(&paths);
    disks.into_iter().for_each(crate::disk::Disk::unmount);
    let seen = *observer.seen.lock().unwrap_or_else(PoisonError::into_inner);
    (wrong, before < seen)
}

fn sync(paths: &[PathBuf]) {
    let sync = |path: &Path| rustix::fs::syncfs(File::open(path).unwrap()).unwrap();
    paths.iter().for_each(|path| sync(path));
}

#[test]
fn another_host_leaves_what_is_under_way() {
    needs!(root(), loops());
    let more = [Single::new(
        "skeletons",
        vec![dir(&[2], "d"), dir(&[2], "d/e"), dir(&[2], "d/e/f"), file(2, "d/e/f/old", "old")],
        vec![create("d/e/f/new", "new"), append("d/e/f/new", " more"), mkdir("d/e/f/g")],
    )];
    let plans = many_steps().into_iter().chain(more);
    let plans = plans.map(|single| single.plan(&[Format::Ext4; 3], false, Then::Mount));
    let mut complaints = Vec::new();
    for plan in plans.filter(|plan| is_wanted(&plan.name)) {
        let home = Home::new();
        let mut visits = 0;
        loop {
            let (wrong, came) = visited(&plan, &home, visits);
            if !wrong.is_empty() {
                complaints.push(format!("{}: after {visits} calls: {}", plan.name, wrong.join("; ")));
            }
            if !came {
                break;
            }
            visits += 1;
        }
        println!("{}: {visits} visits", plan.name);
        if visits == 0 {
            complaints.push(format!("{}: nothing is under way", plan.name));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
