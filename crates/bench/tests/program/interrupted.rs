//! Runs that are interrupted: Ctrl-C, a target that vanishes, a second run in the same directory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

use std::fs;
use std::path::Path;

use crate::started::{Running, bench, names, results, tmpfs, until};
use fsstack_lab::shell::Run;
use fsstack_lab::{MiB, needs};
use rustix::process::Signal;
use serde_json::json;

/// A run that would take hours.
fn long(targets: &[(&str, &Path)], out: &Path) -> Run {
    of_rounds("100000", targets, out)
}

/// A run with rounds of a twentieth of a second.
fn of_rounds(rounds: &str, targets: &[(&str, &Path)], out: &Path) -> Run {
    let run =
        bench(&["compare", "--op", "write", "--file-size", "256K", "--block", "4K", "--seconds", "0.05"])
            .args(["--rounds", rounds, "--warmups", "0", "--out"])
            .arg(out);
    targets.iter().fold(run, |run, (name, dir)| run.arg("--target").arg(format!("{name}={}", dir.display())))
}

/// Waits until a round is running, by its files.
fn measuring(dir: &Path) {
    let work = dir.join(".fsstack-bench.work");
    until("measuring", || {
        let below = fs::read_dir(&work).into_iter().flatten().flatten();
        below.flat_map(|entry| fs::read_dir(entry.path()).into_iter().flatten()).next().is_some()
    });
}

#[test]
fn ctrl_c_writes_what_was_measured_and_removes_the_files() {
    let home = tempfile::tempdir().unwrap();
    let (work, out) = (home.path().join("work"), home.path().join("out"));
    fs::create_dir(&work).unwrap();
    for signal in [Signal::INT, Signal::TERM] {
        let running = Running::in_dir(long(&[("t", &work)], &out), &work);
        measuring(&work);
        running.process.signal(signal).unwrap();
        let output = running.ended();
        assert_eq!(output.code, 130, "{}", output.stderr);
        assert!(output.stdout.contains("ended early: interrupted"), "{}", output.stdout);
        assert_eq!(results(&out)["ended-early"], "interrupted");
        assert_eq!(names(&work), Vec::<String>::new());
    }
}

#[test]
fn ctrl_c_ends_bonnie_and_is_no_failure_of_it() {
    needs!(program("bonnie++"));
    let home = tempfile::tempdir().unwrap();
    let (work, out) = (home.path().join("work"), home.path().join("out"));
    fs::create_dir(&work).unwrap();
    let run = bench(&["compare", "--engine", "bonnie++", "--op", "write", "--block", "8K", "--tasks", "2"])
        .args(["--file-size", "4G", "--entries", "1", "--rounds", "1", "--out"])
        .arg(&out)
        .args(["--target", &format!("t={}", work.display())]);
    let running = Running::in_dir(run, &work);
    until("a file of the program", || {
        fs::read_dir(work.join(".fsstack-bench.work/t/bonnie")).is_ok_and(|mut all| all.next().is_some())
    });
    running.process.signal(Signal::INT).unwrap();
    let output = running.ended();
    assert_eq!(output.code, 130, "{}", output.stderr);
    let results = results(&out);
    assert_eq!((&results["ended-early"], &results["skipped"]), (&"interrupted".into(), &json!([])));
    assert_eq!(names(&work), Vec::<String>::new());
}

#[test]
fn a_second_run_in_the_same_place_is_refused_and_disturbs_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (work, free, out) = (home.path().join("work"), home.path().join("free"), home.path().join("out"));
    [&work, &free].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let running = Running::in_dir(long(&[("t", &work)], &out), &work);
    measuring(&work);
    let second = long(&[("other", &free), ("t", &work)], &home.path().join("second")).output().unwrap();
    assert_eq!(second.code, 1);
    assert!(second.stderr.contains("another fsstack-bench (pid "), "{}", second.stderr);
    assert_eq!(names(&free), Vec::<String>::new(), "what was taken before the refusal is given back");
    assert!(running.process.lives());
    running.process.signal(Signal::INT).unwrap();
    assert_eq!(running.ended().code, 130);
    assert_eq!(names(&work), Vec::<String>::new());
}

#[test]
fn leftovers_of_a_killed_run_are_cleared_by_the_next() {
    let home = tempfile::tempdir().unwrap();
    let (work, out) = (home.path().join("work"), home.path().join("out"));
    fs::create_dir(&work).unwrap();
    let running = Running::in_dir(long(&[("t", &work)], &out), &work);
    measuring(&work);
    running.process.kill().unwrap();
    running.ended();
    assert!(!names(&work).is_empty());
    let output = bench(&[
        "compare",
        "--op",
        "write",
        "--file-size",
        "64K",
        "--block",
        "4K",
        "--rounds",
        "1",
        "--target",
    ])
    .arg(format!("t={}", work.display()))
    .output()
    .unwrap();
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert_eq!(names(&work), Vec::<String>::new());
}

#[test]
fn a_target_that_vanishes_is_reported_and_the_others_go_on() {
    needs!(root());
    let home = tempfile::tempdir().unwrap();
    let (stays, out) = (home.path().join("stays"), home.path().join("out"));
    fs::create_dir(&stays).unwrap();
    let mut goes = tmpfs("goes", MiB(64));
    let targets = [("goes", goes.path()), ("stays", stays.as_path())];
    let running = Running::in_dir(of_rounds("100", &targets, &out), &stays);
    measuring(goes.path());
    measuring(&stays);
    goes.unmount_lazily();
    let output = running.ended();
    assert_eq!(output.code, 3, "{}", output.stderr);
    assert!(output.stderr.contains("target goes") && output.stderr.contains("vanished"), "{}", output.stderr);
    let results = results(&out);
    assert!(results["ended-early"].is_string());
    let measured = results["measurements"].as_array().unwrap();
    let of = |name: &str| measured.iter().filter(|m| m["target"] == name).count();
    assert!(of("goes") < of("stays"), "{} and {}", of("goes"), of("stays"));
    assert_eq!(of("stays"), 100);
    assert_eq!(names(&stays), Vec::<String>::new());
}
