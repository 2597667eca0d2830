//! The process is killed before each of its calls; the next one finds every file complete and once.
//!
//! A test starts itself again, with the kill order in the environment: see `fsstack_sys::fault`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use fsstack_engine::settings::Settings;
use fsstack_lab::shell::command;
use fsstack_sys::fault;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::check::{Entry, Tree, dirt, seen};
use crate::engine::{Engine, settings};
use crate::scenario::{self, Scenario};

/// Arguments of the child: the scenario's name, then the branches.
const ORDER: &str = "FSSTACK_TEST_CHILD";

/// File that the child writes its process id to, if there is one.
const PID: &str = "FSSTACK_TEST_PID";

/// State directory of the child's pool, which is then exported.
const STATE: &str = "FSSTACK_TEST_STATE";

/// Command line of the child.
const CHILD: [&str; 4] = ["--exact", "kill::a_child", "--nocapture", "--test-threads=1"];

/// Output of a child that was not killed: calls before the operation, and including it.
const TOLD: &str = "calls:";

/// The child process: does nothing without an order.
#[test]
fn a_child() {
    let Ok(order) = std::env::var(ORDER) else { return };
    if let Some(told) = std::env::var_os(PID) {
        fs::write(told, format!("{}\n", std::process::id())).unwrap();
    }
    let mut words = order.split('\n');
    let scenario = scenario::named(words.next().unwrap());
    let branches: Vec<&Path> = words.map(Path::new).collect();
    let settings = match std::env::var_os(STATE) {
        Some(state) => exported(Path::new(&state)),
        None => settings("ff"),
    };
    let (engine, mounting) = fault::count(|| Engine::over(branches.into_iter(), settings));
    let (done, calls) = fault::count(|| (scenario.act)(&engine));
    println!("{TOLD} {mounting} {calls} {done:?}");
}

/// Settings of a pool for an NFS server, with its index in `state`.
pub(crate) fn exported(state: &Path) -> Settings {
    Settings { nfs_export: true, state_dir: Some(state.to_owned()), ..settings("ff") }
}

/// Runs the scenario in a child that is killed at `kill`. Returns its output if it was not.
pub(crate) fn child(scenario: &Scenario, branches: &[&Path], kill: Option<u64>) -> Option<(u64, u64)> {
    child_with(scenario, branches, None, kill)
}

/// Like [`child`], of a pool that is exported if it has a state directory.
pub(crate) fn child_with(
    scenario: &Scenario,
    branches: &[&Path],
    state: Option<&Path>,
    kill: Option<u64>,
) -> Option<(u64, u64)> {
    let run = command(std::env::current_exe().unwrap()).args(CHILD).env(ORDER, order_of(scenario, branches));
    let run = match state {
        Some(state) => run.env(STATE, state),
        None => run,
    };
    let run = match kill {
        Some(nth) => run.env("FSSTACK_FAULT", format!("kill:{nth}")),
        None => run,
    };
    let output = run.output().unwrap();
    if output.code == 128 + 9 {
        return None;
    }
    let counts = output.stdout.split_once(TOLD).expect(&output.stdout).1;
    let mut counts = counts.split_whitespace().map(|word| word.parse::<u64>());
    Some((counts.next().unwrap().unwrap(), counts.next().unwrap().unwrap()))
}

fn order_of(scenario: &Scenario, branches: &[&Path]) -> String {
    let paths = branches.iter().map(|branch| branch.display().to_string());
    [scenario.name.to_owned()].into_iter().chain(paths).collect::<Vec<_>>().join("\n")
}

/// Runs the scenario in a child that stops at its call `nth`, as `act` runs; it gets the signal afterwards, SIGKILL or SIGCONT, and
/// ends. False: it ended before.
pub(crate) fn while_stopped(
    scenario: &Scenario,
    branches: &[&Path],
    (nth, then): (u64, Signal),
    act: impl FnOnce(),
) -> bool {
    let told = tempfile::NamedTempFile::new().unwrap();
    let run = command(std::env::current_exe().unwrap())
        .args(CHILD)
        .env(ORDER, order_of(scenario, branches))
        .env(PID, told.path())
        .env("FSSTACK_FAULT", format!("stop:{nth}"));
    std::thread::scope(|scope| {
        let child = scope.spawn(|| run.output().unwrap());
        while !child.is_finished() {
            let pid = fs::read_to_string(told.path()).unwrap().trim().parse().ok().and_then(Pid::from_raw);
            if let Some(pid) = pid.filter(|pid| has_stopped(*pid)) {
                act();
                kill_process(pid, then).unwrap();
                return true;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        false
    })
}

fn has_stopped(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// The contents of all files.
fn contents(tree: &Tree) -> BTreeSet<(PathBuf, String)> {
    let files = tree.iter().filter_map(|(path, entry)| match entry {
        Entry::File { text, .. } => Some((path.clone(), text.clone())),
        Entry::Dir { .. } | Entry::Symlink(_) => None,
    });
    files.collect()
}

fn killed_at_every_call(scenario: &Scenario) {
    let fresh = || {
        let branches: [TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        scenario.prepare(&branches.each_ref().map(TempDir::path));
        branches
    };
    let shown = |branches: &[&Path]| seen(&Engine::over(branches.iter().copied(), settings("ff")));
    let before = shown(&fresh().each_ref().map(TempDir::path));
    // Never mounted before, like those of the killed children: a first mount makes more calls.
    let branches = fresh();
    let branches = branches.each_ref().map(TempDir::path);
    let (mounting, calls) = child(scenario, &branches, None).unwrap();
    let after = shown(&branches);
    let kept: BTreeSet<String> = {
        let texts = |tree| contents(tree).into_iter().map(|(_, text)| text).collect::<BTreeSet<_>>();
        texts(&before).intersection(&texts(&after)).cloned().collect()
    };
    let mut wrong = Vec::new();
    for nth in mounting + 1..=mounting + calls {
        let branches = fresh();
        let branches = branches.each_ref().map(TempDir::path);
        if child(scenario, &branches, Some(nth)).is_some() {
            wrong.push(format!("call {nth} of {mounting} + {calls} was not reached"));
            continue;
        }
        let seen = shown(&branches);
        if seen != before && seen != after {
            wrong.push(format!("killed at {nth}: neither done nor not done: {seen:?}"));
        }
        let at: Vec<(PathBuf, String)> = contents(&seen).into_iter().collect();
        for text in &kept {
            let names: Vec<_> = at.iter().filter(|(_, other)| other == text).map(|(path, _)| path).collect();
            let known = names.iter().all(|path| before.contains_key(*path) || after.contains_key(*path));
            if names.is_empty() || !known {
                wrong.push(format!("killed at {nth}: {text:?} is under {names:?}"));
            }
        }
        if let Some(dirt) = dirt(&branches, &seen, scenario) {
            wrong.push(format!("killed at {nth}: {dirt}"));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", scenario.name, wrong.join("\n"));
    let takes_many =
        ["of_three_branches", "elsewhere", "a_directory"].iter().any(|what| scenario.name.contains(what));
    assert!(
        calls >= if takes_many && !scenario.name.starts_with("rmdir") { 30 } else { 1 },
        "{calls} kill points"
    );
}

/// One test per scenario.
macro_rules! killed_in {
    ($($name:ident),* $(,)?) => {
        $(#[test] fn $name() { killed_at_every_call(scenario::named(stringify!($name))); })*
    };
}

killed_in!(
    create,
    skeleton,
    rename_over_a_file_on_an_earlier_branch,
    rename_over_a_file_on_a_later_branch,
    rename_a_directory_of_three_branches,
    rename_over_an_empty_directory_of_three_branches,
    rename_over_an_empty_directory_of_the_last_branch,
    rename_over_an_empty_directory_elsewhere,
    rename_of_a_file_with_a_hidden_copy,
    rmdir_of_three_branches,
    exchange_a_file_and_a_directory,
    exchange_files_of_two_branches,
    unlink_with_duplicates,
);
