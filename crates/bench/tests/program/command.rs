//! The real binary: results, refusals, and no leftovers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

use std::fs;
use std::path::Path;

use crate::started::{bench, names, results, run, tmpfs};
use fsstack_lab::shell::command;
use fsstack_lab::{MiB, needs};

/// Asserts a refusal with this line, and that nothing was written.
fn refused(args: &[&str], dirs: &[&Path], says: &str) {
    let output = run(args);
    assert_eq!(output.code, 1, "{args:?}: {}", output.stderr);
    assert!(output.stderr.contains(says), "{args:?}: {}", output.stderr);
    assert_eq!(output.stderr.trim_end().lines().count(), 1, "{}", output.stderr);
    dirs.iter().for_each(|dir| assert_eq!(names(dir), Vec::<String>::new()));
}

#[test]
fn two_targets_are_compared_and_left_as_they_were() {
    let home = tempfile::tempdir().unwrap();
    let (a, b, out) = (home.path().join("a"), home.path().join("b"), home.path().join("out"));
    [&a, &b].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    for engine in [&["psync"][..], &["io_uring", "--depth", "8"], &["io_uring", "--registered"], &["mmap"]] {
        let output = bench(&["compare", "--rounds", "5", "--file-size", "1M", "--block", "64K", "--engine"])
            .args(engine)
            .args(["--op", "write,read,rewrite", "--tasks", "2", "--files", "shared"])
            .arg("--target")
            .arg(format!("direct={}", a.display()))
            .arg("--target")
            .arg(format!("pool={}", b.display()))
            .arg("--out")
            .arg(&out)
            .output()
            .unwrap();
        assert_eq!(output.code, 0, "{}", output.stderr);
        let results = results(&out);
        assert_eq!(results["measurements"].as_array().unwrap().len(), 3 * 2 * 5);
        for one in results["measurements"].as_array().unwrap() {
            assert_eq!(one["bytes"], 2 << 20);
            assert_eq!(one["ops"], 32);
        }
        for summary in results["summaries"].as_array().unwrap() {
            let ratio = summary.get("ratio");
            assert_eq!(ratio.is_some(), summary["target"] == "pool");
        }
        assert!(output.stdout.contains("write") && output.stdout.contains("pool"), "{}", output.stdout);
        assert_eq!((names(&a), names(&b)), (vec![], vec![]));
        assert_eq!(names(&out), ["plot.svg", "report.html", "report.md", "results.csv", "results.json"]);
    }
}

#[test]
fn operations_on_names_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    let output = bench(&["compare", "--rounds", "1", "--warmups", "0", "--entries", "20", "--tasks", "3"])
        .args(["--op", "create,stat,open,rename,readdir,unlink,mkdir,rmdir,file-cycle,dir-cycle"])
        .arg("--target")
        .arg(format!("here={}", work.display()))
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    assert_eq!(output.code, 0, "{}", output.stderr);
    let results = results(&out);
    let measured = results["measurements"].as_array().unwrap();
    assert_eq!(measured.len(), 10);
    assert!(measured.iter().all(|one| one["ops"] == 60), "{measured:?}");
    assert_eq!(names(&work), Vec::<String>::new());
}

#[test]
fn a_picture_of_an_earlier_run_goes_where_nothing_is_compared() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("plot.svg"), "old").unwrap();
    let output = bench(&["compare", "--rounds", "1", "--engine", "null", "--op", "write", "--tasks", "1,2"])
        .args(["--block", "4K", "--file-size", "1M", "--target"])
        .arg(format!("here={}", dir.path().display()))
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert_eq!(names(&out), ["report.html", "report.md", "results.csv", "results.json"]);
}

#[test]
fn bad_words_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let (at, not) = (format!("t={}", dir.path().display()), format!("t={}", file.path().display()));
    let here = [dir.path()];
    refused(&["compare"], &[], "no targets");
    refused(&["compare", "--target", &not], &[], "is not a directory");
    refused(&["compare", "--target", "t=/no/such/place"], &[], "No such file or directory");
    refused(&["compare", "--target", &at, "--target", &at], &here, "two targets are called t");
    refused(&["compare", "--target", &at, "--file-size", "1P"], &here, "choose smaller files");
    refused(
        &["compare", "--target", &at, "--file-size", "3K", "--block", "2K"],
        &here,
        "multiple of the block",
    );
    refused(&["compare", "--target", &at, "--op", "stat", "--engine", "psync"], &here, "engine metadata");
    refused(&["compare", "--target", &at, "--engine", "mmap", "--sync", "each"], &here, "mmap cannot force");
    refused(&["compare", "--target", &at, "--block", "4K,8K", "--tasks", "1,2"], &here, "several values");
    refused(&["compare", "--target", &at, "--baseline", "other"], &here, "is not one of the targets");
    refused(&["compare", "--target", &at, "--rounds", "0"], &here, "no rounds");
    refused(&["compare", "--target", &at, "--rivals"], &here, "--branch DIR");
    refused(&["compare", "--target", &at, "--out", file.path().to_str().unwrap()], &here, "--out");
    refused(&["experiment", "double-fuse"], &[], "--lab");
    refused(&["compare", "--target", &at, "--engine", "nfs", "--op", "read"], &here, "no NFS server shows");
    let lab = |which: &'static str, more: &[&'static str]| [&["experiment", which, "--lab"], more].concat();
    refused(&lab("raid-compare", &["--wan", "1gbit"]), &[], "leave --wan away");
    refused(&lab("nfs-nconnect", &["--volumes", "dt8"]), &[], "leave --volumes away");
    refused(&lab("double-fuse", &["xfs", "--volumes", "dt8"]), &[], "leave --volumes away");
    refused(&["plan", "no-such-plan"], &[], "built in: media-server");
    refused(&["compare-runs", "/no/such", "/no/such"], &[], "No such file or directory");
    refused(&["compare-runs", "/no/such", "/no/such"], &[], "/no/such: name a results.json");
    let usage = run(&["compare", "--target", "nameless"]);
    assert_eq!(usage.code, 2);
    assert!(usage.stderr.contains("is not NAME=DIR"), "{}", usage.stderr);
}

#[test]
fn a_target_that_cannot_be_written_is_refused() {
    needs!(root());
    let home = tmpfs("read-only", MiB(16));
    home.remount_ro();
    refused(&["compare", "--target", &format!("t={}", home.path().display())], &[], "cannot be written");
    home.remount_rw();
    refused(
        &["compare", "--target", &format!("t={}", home.path().display())],
        &[home.path()],
        "free, and the plan needs",
    );
}

#[test]
fn the_null_engine_measures_the_harness() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let output =
        bench(&["compare", "--engine", "null", "--op", "write", "--block", "4K", "--file-size", "4M"])
            .args(["--rounds", "1", "--tasks", "8", "--target"])
            .arg(format!("here={}", dir.path().display()))
            .arg("--out")
            .arg(&out)
            .output()
            .unwrap();
    assert_eq!(output.code, 0, "{}", output.stderr);
    let results = results(&out);
    assert_eq!(results["measurements"][0]["ops"], 8 * 1024);
    assert_eq!(results["summaries"][0]["unit"], "op/s");
    assert!(results["measurements"][0]["start-skew-us"].is_number());
}

#[test]
fn a_terminal_shows_the_start_and_the_progress() {
    needs!(program("script"));
    let dir = tempfile::tempdir().unwrap();
    let run = format!(
        "{} compare --op write --file-size 4M --rounds 6 --tasks 4 --target here={}",
        env!("CARGO_BIN_EXE_fsstack-bench"),
        dir.path().display()
    );
    // Its transcript goes to /dev/null.
    let output = command("script").args(["-qec", &run, "/dev/null"]).output().unwrap();
    assert_eq!(output.code, 0, "{}", output.stdout);
    assert!(output.stdout.contains("%, ") && output.stdout.contains(" left"), "{}", output.stdout);
    assert!(output.stdout.contains("write: here, round "), "{}", output.stdout);
    assert!(output.stdout.contains("skew"), "{}", output.stdout);
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

#[test]
fn all_experiments_are_those_that_can_be_run() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let output = run(&["experiment", "all", "--out", out.to_str().unwrap()]);
    assert_eq!(
        (output.code, output.stderr.contains("no experiment could be run here")),
        (1, true),
        "{}",
        output.stderr
    );
    for name in ["double-fuse", "gluster-volumes", "cluster-io", "raid-compare", "nfs-nconnect"] {
        assert!(output.stderr.contains(&format!("skipped: {name}: no targets")), "{}", output.stderr);
    }
}

#[test]
fn a_plan_is_run_printed_and_listed() {
    let dir = tempfile::tempdir().unwrap();
    let (work, file) = (dir.path().join("work"), dir.path().join("mine.toml"));
    fs::create_dir(&work).unwrap();
    let case =
        "[all]\nfile-size = '64K'\nblock = '4K'\n[[case]]\nname = 'save'\nop = 'write'\nsync = 'end'\n";
    let text = format!(
        "title = 'Mine'\nrounds = 2\ntargets = [{{ name = 'w', dir = '{}' }}]\n{case}",
        work.display()
    );
    fs::write(&file, text).unwrap();
    let output = bench(&["plan"]).arg(&file).output().unwrap();
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert!(output.stdout.contains("save") && output.stdout.contains(" w "), "{}", output.stdout);
    let listed = run(&["plan", "--list"]).stdout;
    for name in ["media-server", "mail-spool", "checkpoint", "source-tree"] {
        assert!(listed.contains(name), "{listed}");
        assert_eq!(run(&["plan", name, "--print"]).code, 0);
    }
    assert_eq!(names(&work), Vec::<String>::new());
}

#[test]
fn a_case_that_fails_makes_the_run_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let (work, out) = (dir.path().join("work"), dir.path().join("out"));
    fs::create_dir(&work).unwrap();
    // More files than it may have open.
    let output = command("prlimit")
        .args([
            "--nofile=48",
            env!("CARGO_BIN_EXE_fsstack-bench"),
            "compare",
            "--op",
            "write",
            "--rounds",
            "1",
        ])
        .args(["--file-size", "4K", "--block", "4K", "--tasks", "1,64", "--target"])
        .arg(format!("t={}", work.display()))
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    assert_eq!(output.code, 3, "{}", output.stderr);
    let results = results(&out);
    assert_eq!(results["measurements"].as_array().unwrap().len(), 1);
    let failed = &results["skipped"][0];
    assert_eq!(failed["failed"], true);
    assert!(failed["why"].as_str().unwrap().contains("Too many open files"), "{failed}");
    assert_eq!(names(&work), Vec::<String>::new());
}

#[test]
fn two_runs_are_compared_and_a_regression_has_its_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let (work, out) = (dir.path().join("work"), dir.path().join("out"));
    fs::create_dir(&work).unwrap();
    let output = bench(&[
        "compare",
        "--rounds",
        "6",
        "--file-size",
        "64K",
        "--block",
        "4K",
        "--op",
        "write",
        "--target",
    ])
    .arg(format!("t={}", work.display()))
    .arg("--out")
    .arg(&out)
    .output()
    .unwrap();
    assert_eq!(output.code, 0, "{}", output.stderr);
    // Rates independent of the machine's load: rounds differ by a thousandth.
    let with_rates = |name: &str, first: u32| {
        let mut results = results(&out);
        for (n, one) in results["measurements"].as_array_mut().unwrap().iter_mut().enumerate() {
            one["rate"] = (f64::from(first) * (1.0 + n as f64 / 1000.0)).into();
        }
        let file = dir.path().join(name);
        fs::write(&file, results.to_string()).unwrap();
        file
    };
    let before = with_rates("before.json", 1000);
    let gate = |after: &Path| bench(&["compare-runs"]).arg(&before).arg(after).output().unwrap();
    let same = gate(&with_rates("same.json", 1001));
    assert_eq!((same.code, same.stdout.contains("0 of 1 got worse")), (0, true), "{}", same.stdout);
    let worse = gate(&with_rates("slow.json", 900));
    assert_eq!((worse.code, worse.stdout.contains("1 of 1 got worse")), (4, true), "{}", worse.stdout);
    // A target that was not measured again is a failure.
    let mut half = results(&out);
    let mut other = half["summaries"][0].clone();
    other["target"] = "u".into();
    half["summaries"].as_array_mut().unwrap().push(other);
    let both = dir.path().join("both.json");
    fs::write(&both, half.to_string()).unwrap();
    let gone = bench(&["compare-runs"]).arg(&both).arg(&before).output().unwrap();
    assert!(gone.stdout.contains("write on u: only in the first"), "{}", gone.stdout);
    assert_eq!(gone.code, 4, "{}", gone.stdout);
    let file = dir.path().join("none.json");
    fs::write(&file, "{}").unwrap();
    assert!(gate(&file).stderr.contains("is no result of fsstack-bench"));
}

#[test]
fn the_same_work_is_done_by_fio_and_the_ratio_printed() {
    needs!(program("fio"));
    let dir = tempfile::tempdir().unwrap();
    let (work, out) = (dir.path().join("work"), dir.path().join("out"));
    fs::create_dir(&work).unwrap();
    let output = bench(&[
        "crosscheck",
        "--rounds",
        "1",
        "--seconds",
        "0.05",
        "--file-size",
        "4M",
        "--entries",
        "50",
        "--target",
    ])
    .arg(format!("here={}", work.display()))
    .arg("--out")
    .arg(&out)
    .output()
    .unwrap();
    // A file system without O_DIRECT leaves its case out, with the reason.
    assert!([0, 3].contains(&output.code), "{}", output.stderr);
    let rows: Vec<&str> = output.stdout.lines().filter(|line| line.starts_with("| re")).collect();
    assert_eq!(rows.len(), 5, "{}", output.stdout);
    for row in &rows {
        let told = row.contains("] | ") && row.contains("B/s") && row.contains("not decided");
        assert!(told != row.contains("not measured: "), "{row}");
    }
    assert!(output.stdout.contains(" beside fio-"), "{}", output.stdout);
    let measured =
        |op: &str| output.stdout.lines().filter(|line| line.starts_with(op) && line.contains("] | ")).count();
    assert_eq!(["| create |", "| stat |", "| unlink |"].map(measured), [1; 3], "{}", output.stdout);
    assert_eq!(fs::read_to_string(out.join("crosscheck.md")).unwrap(), output.stdout);
    assert_eq!(names(&work), Vec::<String>::new());
    refused(&["crosscheck", "--target", "t=/no/such/place"], &[], "No such file or directory");
    refused(&["crosscheck", "--seconds", "0", "--target", "t=/tmp"], &[], "between 0.05 and 3600");
}

#[test]
fn rounds_go_on_until_a_bar_is_decided() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("out");
    let targets = ["direct", "pool"].map(|name| home.path().join(name));
    targets.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    // No rate is a million times another: six rounds cannot decide at the first of three looks, twelve can.
    for (bar, decision) in [("1000000", "missed"), ("0.000001", "met")] {
        let run =
            bench(&["compare", "--op", "write", "--file-size", "64K", "--block", "4K", "--rounds", "6"])
                .args(["--rounds-max", "24", "--bar", bar, "--out"])
                .arg(&out);
        let run = targets
            .iter()
            .zip(["direct", "pool"])
            .fold(run, |run, (dir, name)| run.arg("--target").arg(format!("{name}={}", dir.display())));
        let output = run.output().unwrap();
        assert_eq!(output.code, 0, "{}", output.stderr);
        let results = results(&out);
        let bar = &results["bars"][0];
        assert_eq!((bar["decision"].as_str(), bar["rounds"].as_u64()), (Some(decision), Some(12)), "{bar}");
        assert_eq!(results["measurements"].as_array().unwrap().len(), 2 * 12);
        assert!(
            output.stdout.contains(&format!("  {decision}: write of pool at least ")),
            "{}",
            output.stdout
        );
        assert!(output.stdout.contains("How fast are the targets beside direct?"), "{}", output.stdout);
        let shown = fs::read_to_string(out.join("report.md")).unwrap();
        assert!(shown.contains(&format!("- **{decision}**: write of pool")), "{shown}");
    }
    let at = format!("t={}", targets[0].display());
    refused(&["compare", "--target", &at, "--rounds-max", "2"], &[&targets[0]], "less than the 7 rounds");
    refused(&["compare", "--target", &at, "--bar=-1"], &[], "--bar is a part");
}

#[test]
fn a_rate_is_kept_and_cells_are_repeated_until_they_last() {
    let dir = tempfile::tempdir().unwrap();
    let (work, out) = (dir.path().join("work"), dir.path().join("out"));
    fs::create_dir(&work).unwrap();
    let measured = |args: &[&str]| {
        let run = bench(args).args(["--rounds", "1", "--target"]).arg(format!("t={}", work.display()));
        let output = run.arg("--out").arg(&out).output().unwrap();
        assert_eq!(output.code, 0, "{}", output.stderr);
        results(&out)["measurements"][0].clone()
    };
    let one = measured(&["compare", "--op", "stat", "--entries", "50", "--rate", "1000"]);
    // The last of 50 is due after 49 ms, whatever the machine does.
    assert!(one["ops"] == 50 && 0.049 <= one["seconds"].as_f64().unwrap(), "{one}");
    let cell = measured(&[
        "compare",
        "--op",
        "write",
        "--file-size",
        "64K",
        "--block",
        "4K",
        "--cell-seconds",
        "0.2",
    ]);
    let passes = cell["passes"].as_u64().unwrap();
    assert_eq!(cell["bytes"], passes * (64 << 10), "{cell}");
    assert_eq!(names(&work), Vec::<String>::new());
    refused(&["compare", "--target", "t=/tmp", "--rate", "0"], &[], "the rate must lie between");
}
