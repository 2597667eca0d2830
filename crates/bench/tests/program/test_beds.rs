//! Test beds made for a measurement: pools and rivals over the lab's branches, and no leftovers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::started::{Running, bench, names, results};
use fsstack_lab::ganesha::Ganesha;
use fsstack_lab::{self as lab, MiB, mounts, needs};
use rustix::process::Signal;

/// Measured cases and skipped ones, by name.
fn told(results: &serde_json::Value) -> (Vec<String>, Vec<String>) {
    let texts = |list: &str, key: &str| -> Vec<String> {
        let all = results[list].as_array().unwrap().iter();
        all.map(|one| one[key].as_str().unwrap().to_owned()).collect()
    };
    (texts("targets", "name"), texts("skipped", "what"))
}

#[test]
fn an_experiment_has_its_ground_made_and_taken_away() {
    needs!(mounting(), loops());
    let home = tempfile::tempdir().unwrap();
    let (state, out) = (home.path().join("lab"), home.path().join("out"));
    let told_by = bench(&[
        "experiment",
        "double-fuse",
        "--lab",
        "xfs",
        "--cell-seconds",
        "0",
        "--rounds",
        "1",
        "--out",
    ])
    .arg(&out)
    .env("FSSTACK_LAB_DIR", &state)
    .limit(Duration::from_secs(170))
    .output()
    .unwrap();
    assert_eq!(told_by.code, 0, "{}", told_by.stderr);
    let results = results(&out);
    let (targets, skipped) = told(&results);
    assert_eq!(targets[..4], ["direct", "passthrough", "stacked", "bulk-copy"]);
    for rival in ["mhddfs", "mergerfs"] {
        assert!(targets.iter().any(|t| t == rival) || skipped.iter().any(|s| s == rival), "{rival}");
    }
    let says = results["says"].to_string();
    let is_beside =
        says.contains("CPU time for each MB written to mhddfs, published in parentheses: mhddfs ");
    assert_eq!(is_beside, targets.iter().any(|target| target == "mhddfs"), "{says}");
    let measured = |target: &str| {
        let all = results["measurements"].as_array().unwrap();
        all.iter().filter(|m| m["target"] == target).count()
    };
    assert_eq!((measured("direct"), measured("stacked"), measured("bulk-copy")), (6, 6, 1), "{skipped:?}");
    let copied = |target: &str| {
        let all = results["measurements"].as_array().unwrap().iter();
        all.clone().find(|m| m["case"] == "copy" && m["target"] == target).unwrap().clone()
    };
    for (target, program) in [("direct", "cp"), ("stacked", "cp"), ("bulk-copy", "fsstack copy")] {
        let one = copied(target);
        assert_eq!(one["bytes"], 32 << 20);
        assert!(one["used"].as_array().unwrap().iter().any(|used| used["program"] == program), "{one}");
    }
    // The daemon of the stacked path did the work, so its CPU time is reported.
    let daemon_works =
        |m: &&serde_json::Value| m["used"].as_array().unwrap().iter().any(|u| u["program"] == "fsstack");
    let stacked = results["measurements"].as_array().unwrap().iter().filter(|m| m["target"] == "stacked");
    assert!(0 < stacked.filter(daemon_works).count());
    // Of one pool, though two are mounted, and of none where the branch itself is measured.
    for one in results["measurements"].as_array().unwrap() {
        let ours = one["used"].as_array().unwrap().iter().find(|used| used["program"] == "fsstack");
        let daemons = ours.map_or(0, |used| used["processes"].as_u64().unwrap());
        let most =
            u64::from(["passthrough", "stacked", "bulk-copy"].contains(&one["target"].as_str().unwrap()));
        assert!(daemons <= most, "{one}");
    }
    let notes = |n: usize| results["targets"][n]["notes"].to_string();
    assert!(!notes(0).contains("fsstack"), "{}", notes(0));
    assert!(notes(1).contains(concat!("mount.fsstack ", env!("CARGO_PKG_VERSION"))), "{}", notes(1));
    assert_eq!(mounts::below(&state).unwrap(), []);
    assert_eq!(names(&state), ["ledger"]);
}

#[test]
fn disks_and_memory_are_held_to_what_was_asked() {
    needs!(mounting(), loops(), disk_limits());
    let home = tempfile::tempdir().unwrap();
    let (state, out) = (home.path().join("lab"), home.path().join("out"));
    let limits = ["--disk", "400M", "--disk-iops", "20000", "--memory", "128M"];
    let run = bench(&["experiment", "double-fuse", "--lab", "xfs"])
        .args(limits)
        .args(["--cell-seconds", "0", "--rounds", "1", "--warmups", "0", "--out"])
        .arg(&out)
        .env("FSSTACK_LAB_DIR", &state)
        .limit(Duration::from_secs(170));
    let refused = bench(&["experiment", "double-fuse", "--lab", "xfs", "--memory", "1M"]).output().unwrap();
    assert!(
        refused.code == 1 && refused.stderr.contains("--memory 1 MiB is less than the 69 MiB that"),
        "{}",
        refused.stderr
    );
    let run = run.output().unwrap();
    assert_eq!(run.code, 0, "{}", run.stderr);
    let results = results(&out);
    let disks = results["made"]["disks"].as_str().unwrap();
    assert!(disks.contains("each held to 400 MiB/s and 20000 requests a second"), "{disks}");
    assert_eq!(results["machine"]["memory-limit-bytes"], 128 << 20);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("held to 128 MiB of memory"), "conditions");
    // No rule and no group is left, so that the next user of a loop device has all of it.
    assert_eq!(names(&state), ["ledger"]);
}

#[test]
fn rivals_are_mounted_over_the_branches_of_a_pool() {
    needs!(mounting());
    let pool = lab::pool().tmpfs_branch("a", MiB(256)).tmpfs_branch("b", MiB(256)).mount();
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("out");
    let told_by =
        bench(&["compare", "--op", "write", "--file-size", "1M", "--rounds", "1", "--rivals", "--target"])
            .arg(format!("pool={}", pool.path().display()))
            .arg("--out")
            .arg(&out)
            .output()
            .unwrap();
    assert_eq!(told_by.code, 0, "{}", told_by.stderr);
    let (targets, skipped) = told(&results(&out));
    for rival in ["mhddfs", "mergerfs"] {
        let left_out = skipped.iter().any(|s| *s == format!("rival {rival}"));
        assert!(targets.iter().any(|t| t == rival) != left_out, "{rival}");
    }
    assert!(pool.list("").is_empty());
}

#[test]
fn exports_are_read_over_several_connections() {
    needs!(mounting(), loops());
    if let Err(skip) = Ganesha::able() {
        return skip.announce();
    }
    let home = tempfile::tempdir().unwrap();
    let (state, out) = (home.path().join("lab"), home.path().join("out"));
    let told_by = bench(&["experiment", "nfs-nconnect", "--lab", "xfs", "--rounds", "1", "--out"])
        .arg(&out)
        .env("FSSTACK_LAB_DIR", &state)
        .limit(Duration::from_secs(170))
        .output()
        .unwrap();
    assert_eq!(told_by.code, 0, "{}", told_by.stderr);
    let results = results(&out);
    assert_eq!(told(&results), (["branch", "pool", "branch-again"].map(str::to_owned).to_vec(), vec![]));
    let measured = results["measurements"].as_array().unwrap();
    assert_eq!(measured.len(), 2 * 5 * 3);
    for one in measured {
        assert!(0 < one["bytes"].as_u64().unwrap(), "{one}");
        // The server's CPU time shows that the data came from it.
        assert!(one["used"].as_array().unwrap().iter().any(|used| used["program"] == "NFS server"), "{one}");
    }
    assert_eq!(mounts::below(&state).unwrap(), []);
    assert_eq!(names(&state), ["ledger"]);
}

#[test]
fn the_disks_of_a_killed_run_are_taken_down_by_the_next() {
    needs!(mounting(), loops());
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("lab");
    let on = |args: &[&str]| bench(args).env("FSSTACK_LAB_DIR", &state).limit(Duration::from_secs(170));
    let made = || {
        let all = fs::read_dir(&state).ok()?.flatten().map(|one| one.path());
        let of_xfs = |dir: &PathBuf| dir.file_name().unwrap().to_string_lossy().starts_with("disks-xfs-");
        all.into_iter().find(of_xfs).map(|dir| dir.join("mnt/d1")).filter(|dir| dir.is_dir())
    };
    let running =
        Running::where_found(on(&["experiment", "raid-compare", "--lab", "--rounds", "1000"]), made);
    running.process.kill().unwrap();
    running.ended();
    assert_ne!(mounts::below(&state).unwrap(), []);
    let next = on(&["experiment", "double-fuse", "--lab", "xfs", "--cell-seconds", "0", "--rounds", "1"])
        .output()
        .unwrap();
    assert_eq!(next.code, 0, "{}", next.stderr);
    assert_eq!(mounts::below(&state).unwrap(), []);
    assert_eq!(names(&state), ["ledger"]);
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let images = devices.filter_map(|one| fs::read_to_string(one.path().join("loop/backing_file")).ok());
    let left: Vec<String> = images.filter(|image| image.starts_with(state.to_str().unwrap())).collect();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn ctrl_c_takes_the_ground_away_and_writes_what_was_measured() {
    needs!(mounting(), loops());
    let home = tempfile::tempdir().unwrap();
    let (state, out) = (home.path().join("lab"), home.path().join("out"));
    let run = bench(&["experiment", "double-fuse", "--lab", "xfs", "--rounds", "1000", "--out"])
        .arg(&out)
        .env("FSSTACK_LAB_DIR", &state);
    let made =
        || fs::read_dir(&state).ok()?.flatten().map(|one| one.path().join("xfs1")).find(|dir| dir.is_dir());
    let running = Running::where_found(run, made);
    running.process.signal(Signal::INT).unwrap();
    let told = running.ended();
    assert_eq!(told.code, 130, "{}", told.stderr);
    assert_eq!(results(&out)["ended-early"], "interrupted");
    assert_eq!(mounts::below(&state).unwrap(), []);
    assert_eq!(names(&state), ["ledger"]);
}
