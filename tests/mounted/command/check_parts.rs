//! `fsstack check` of many files in parts: what it has found when it was ended or killed, and went on, is what one run finds.

use std::fs::{self, File};
use std::path::Path;

use fsstack_lab::needs;
use serde_json::Value;

use super::*;

/// Names in a directory.
const IN_DIR: usize = 1000;
/// Every so many of them is on both branches.
const HIDDEN: usize = 25;
/// Bytes that are read of a part before its end. A pipe holds some more.
const READ: usize = 50_000;
/// Findings of a million names take no more memory than those of one directory.
const MOST_MEMORY: u64 = 64 << 10;

/// Number of names: FSSTACK_TEST_NAMES=1000000 makes a million of them.
fn names() -> usize {
    std::env::var("FSSTACK_TEST_NAMES").map_or(100_000, |names| names.parse().unwrap())
}

/// Findings in what a check has printed, up to its end or to the last whole line, and where it goes on.
fn printed(home: &Path) -> (Vec<String>, Option<String>) {
    let text = fs::read_to_string(home.join("printed")).unwrap();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let finding = |line: &str| serde_json::from_str::<Value>(line.trim_start_matches(',')).ok();
    let mut paths: Vec<String> =
        whole.lines().filter_map(finding).map(|found| found["path"].as_str().unwrap().to_owned()).collect();
    if let Ok(document) = serde_json::from_str::<Value>(&text) {
        return (paths, document["next"].as_str().map(str::to_owned));
    }
    // Killed: it goes on at its last finding, which it makes again.
    let last = paths.pop();
    (paths, last)
}

#[test]
fn a_check_of_many_names_that_is_ended_and_killed_finds_what_one_run_finds() {
    needs!(mounting());
    let pool = pool();
    let roots = ["a", "b"].map(|name| pool.branch(name).path().to_owned());
    for n in 0..names() {
        let (dir, own) = (format!("{:04}", n / IN_DIR), n % 2);
        if n.is_multiple_of(IN_DIR) {
            roots.iter().for_each(|root| fs::create_dir(root.join(&dir)).unwrap());
        }
        for (_, root) in roots.iter().enumerate().filter(|(at, _)| *at == own || n.is_multiple_of(HIDDEN)) {
            File::create_new(root.join(&dir).join(format!("{n:07}"))).unwrap();
        }
    }
    let home = tempfile::tempdir().unwrap();
    // The whole run, and its memory.
    let script = "import subprocess, resource, sys\n\
        code = subprocess.run(sys.argv[1:], stdout=open('printed', 'w')).returncode\n\
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\nsys.exit(code)";
    let whole = command("python3").args(["-c", script]).dir(home.path());
    let whole = whole.arg(binary()).args(["check", &at(&pool), "--json"]).output().unwrap();
    assert_eq!(whole.code, 1, "{}", whole.stderr);
    let memory: u64 = whole.stdout.trim().parse().unwrap();
    let (all, next) = printed(home.path());
    assert_eq!((all.len(), next), (names() / HIDDEN, None));
    // It has printed so much, and does not end before: the rest does not fit into the pipe.
    let script = r#"mkfifo pipe; "$0" "$@" --json > pipe & exec 3< pipe
        head -c $READ <&3 > printed; kill -s $SIGNAL $!; cat <&3 >> printed; wait $!; rm pipe"#;
    let (mut found, mut next, mut parts) = (Vec::new(), Some("/".to_owned()), 0);
    while let Some(from) = next {
        let signal = if parts % 2 == 0 { "TERM" } else { "KILL" };
        let part = command("sh").args(["-c", script]).dir(home.path());
        let part = part.env("READ", READ.to_string()).env("SIGNAL", signal);
        part.arg(binary()).args(["check", &at(&pool), "--from", &from]).output().unwrap();
        let (paths, goes_on) = printed(home.path());
        assert!(!paths.is_empty() || goes_on.is_none(), "{signal}, {from}");
        found.extend(paths);
        (next, parts) = (goes_on, parts + 1);
    }
    assert_eq!(found.len(), all.len());
    assert_eq!(found, all);
    println!("{} names, {} findings, {parts} parts, {memory} KiB at most", names(), all.len());
    assert!(parts > 3, "{parts}");
    assert!(memory < MOST_MEMORY, "{memory}");
}
