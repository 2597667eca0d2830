//! Moves between branches that tell no birth times, killed before each call: a file keeps its number, wherever the next mount finds it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use fsstack_lab::{self as lab, Kind, Pool, needs};
use tempfile::TempDir;

use crate::engine::{Engine, settings};
use crate::kill;
use crate::scenario::{DRAIN_FILM, FILM, Scenario};

/// The pool's attributes of a branch's root begin so.
const OWN: &str = "trusted.fsstack.";

/// More calls than the process makes.
const MOST: u64 = 20_000;

/// Branches without birth times.
struct Birthless {
    pool: Pool,
    /// In memory where that can be: each change of the index is synced.
    state: TempDir,
    exported: bool,
}

impl Birthless {
    fn fresh(exported: bool) -> Self {
        let pool = lab::pool().branch("a", Kind::Numbered).branch("b", Kind::Numbered).unmounted();
        let state = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Self { pool, state, exported }
    }

    fn paths(&self) -> [&Path; 2] {
        ["a", "b"].map(|name| self.pool.branch(name).path())
    }

    /// Empties the branches, as before a first mount.
    fn reset(&self) {
        empty(self.state.path());
        for name in ["a", "b"] {
            let below = self.pool.branch(name).below();
            empty(&below);
            let mut names = vec![0; 4096];
            let len = rustix::fs::listxattr(&below, &mut names[..]).unwrap();
            let names = names[..len].split(|byte| *byte == 0).map(|name| String::from_utf8_lossy(name));
            for name in names.filter(|name| name.starts_with(OWN)) {
                rustix::fs::removexattr(&below, &*name).unwrap();
            }
        }
    }

    fn mount(&self) -> Engine {
        let settings = if self.exported { kill::exported(self.state.path()) } else { settings("ff") };
        Engine::over(self.paths().into_iter(), settings)
    }

    fn child(&self, scenario: &Scenario, kill: Option<u64>) -> Option<(u64, u64)> {
        kill::child_with(scenario, &self.paths(), self.exported.then_some(self.state.path()), kill)
    }

    /// A call of the child that comes before the first change of the branch that the files go to, or little after: `mounting` is one that
    /// surely does.
    fn first_call(&self, scenario: &Scenario, mounting: u64) -> u64 {
        let (mut before, mut after) = (mounting, MOST);
        while after - before > 1 {
            let nth = before.midpoint(after);
            self.prepare(scenario);
            let ended = self.child(scenario, Some(nth)).is_some();
            let is_changed = fs::read_dir(self.pool.branch("b").below()).unwrap().next().is_some();
            if ended || is_changed { after = nth } else { before = nth }
        }
        before
    }

    /// Like [`Self::reset`], with the scenario's files.
    fn prepare(&self, scenario: &Scenario) {
        self.reset();
        let [a, b] = self.paths();
        scenario.prepare(&[a, b, b]);
    }

    /// Number and generation of each file.
    fn numbers(&self, files: &[&[&str]]) -> Vec<Option<(u64, u64)>> {
        let engine = self.mount();
        let numbers = files.iter().copied().flatten().map(|path| number(&engine, Path::new(path))).collect();
        engine.union.destroy();
        numbers
    }

    /// Files that are made on the branches now, and so may have any inode number that is free there, have numbers of their own.
    fn check_later_files(&self, files: &[&[&str]]) -> Result<(), String> {
        let engine = self.mount();
        let known = files.iter().map(|names| (number(&engine, Path::new(names[0])), PathBuf::from(names[0])));
        let mut known: HashMap<Option<(u64, u64)>, PathBuf> = known.collect();
        for (name, nth) in ["a", "b"].into_iter().flat_map(|name| (0..4).map(move |nth| (name, nth))) {
            let path = PathBuf::from(format!("later-{name}-{nth}"));
            fs::write(self.pool.branch(name).path().join(&path), "later").unwrap();
            if let Some(other) = known.insert(number(&engine, &path), path.clone()) {
                return Err(format!("{} has the number of {}", path.display(), other.display()));
            }
        }
        engine.union.destroy();
        Ok(())
    }
}

fn empty(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() { fs::remove_dir_all(entry).unwrap() } else { fs::remove_file(entry).unwrap() }
    }
}

fn number(engine: &Engine, path: &Path) -> Option<(u64, u64)> {
    engine.find(path).ok().map(|entry| (entry.ino.0, entry.generation))
}

/// The number of each file is that of before, after a kill at each call and the next mounts.
fn keeps_its_number(scenario: &Scenario, files: &[&[&str]], exported: bool) {
    let birthless = Birthless::fresh(exported);
    let prepare = || {
        birthless.prepare(scenario);
        birthless.numbers(files)
    };
    prepare();
    let (mounting, _) = birthless.child(scenario, None).unwrap();
    let holders = || birthless.pool.holders(files[0][0]).join(", ");
    assert_eq!(holders(), "b", "the job did not empty the branch");
    let first = birthless.first_call(scenario, mounting);
    let (mut wrong, mut both, mut calls) = (Vec::new(), 0, 0);
    for nth in first.. {
        assert!(nth < MOST, "the process does not end");
        let before = prepare();
        assert!(before.iter().all(Option::is_some), "{before:?}");
        if birthless.child(scenario, Some(nth)).is_some() {
            break;
        }
        calls += 1;
        let was = holders();
        both += u64::from(was == "a, b");
        let after = birthless.numbers(files);
        if after != before {
            wrong.push(format!(
                "killed at {nth}, on {was}, then on {}: {before:x?}, then {after:x?}",
                holders()
            ));
        }
        if was == "a" {
            continue;
        }
        let later = birthless.check_later_files(files);
        wrong.extend(later.err().map(|double| format!("killed at {nth}, on {was}: {double}")));
    }
    assert!(wrong.is_empty(), "{} faults, {calls} calls:\n{}", wrong.len(), wrong.join("\n"));
    assert!(both > 0, "the process was never killed between the two names, in {calls} calls");
}

#[test]
fn a_file_whose_move_is_killed_keeps_its_number() {
    needs!(root(), fuse(), program("mergerfs"));
    keeps_its_number(&DRAIN_FILM, &[&[FILM]], true);
}

#[test]
fn a_file_of_a_pool_that_is_not_exported_keeps_its_number() {
    needs!(root(), fuse(), program("mergerfs"));
    keeps_its_number(&DRAIN_FILM, &[&[FILM]], false);
}
