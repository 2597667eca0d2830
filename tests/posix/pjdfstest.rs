//! pjdfstest: POSIX semantics of names, owners, modes and times, case by case.
//!
//! Each case runs on an XFS and on a pool: one that XFS passes must pass on the pool, unless `expected.txt` says why it
//! cannot; one that is listed as failing must fail.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use fsstack_lab::shell::command;

use crate::expected;
use crate::suites;
use crate::test_beds::{self, LIMIT, TestBed, on_each_ground};

/// How often a case that is known to fail may pass by chance.
const CHANCES: u32 = 40;

/// Result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped,
    /// With the case's output.
    Failed(String),
}

type Outcomes = BTreeMap<String, Outcome>;

on_each_ground!(pool_passes_what_xfs_passes);

fn pool_passes_what_xfs_passes(test_bed: TestBed) {
    if let Err(skip) = TestBed::able() {
        return skip.announce();
    }
    let suite = match suites::program("pjdfstest") {
        Ok(program) => Suite { program },
        Err(skip) => return skip.announce(),
    };
    let disks = test_beds::plain_xfs();
    let (xfs, other) = (disks.branch("first").path(), disks.branch("second").path());
    let on_xfs = suite.run(xfs, other, &[]);
    let pool = test_bed.mount();
    let on_pool = suite.run(pool.path(), other, &[]);

    let known = expected::failures(test_bed.place);
    let mut wrong: Vec<String> = Vec::new();
    for (case, outcome) in &on_pool {
        let passes_on_xfs = on_xfs.get(case) == Some(&Outcome::Passed);
        match (known.get(case.as_str()), outcome) {
            (None, Outcome::Passed) | (Some(_), Outcome::Failed(_)) => {}
            (Some(reason), _) if !suite.fails_at_last(pool.path(), other, case) => {
                wrong.push(format!("{case}: passes, but expected.txt says: {reason}"));
            }
            (None, outcome) if passes_on_xfs => wrong.push(format!("{case}: {outcome:?}")),
            (Some(_) | None, _) => {}
        }
    }
    let unknown = known.keys().filter(|case| !on_pool.contains_key(**case));
    wrong.extend(unknown.map(|case| format!("{case}: in expected.txt, but pjdfstest has no such case")));
    let missing = on_xfs.keys().filter(|case| !on_pool.contains_key(*case));
    wrong.extend(missing.map(|case| format!("{case}: did not run on the pool")));
    assert!(wrong.is_empty(), "{test_bed:?}:\n{}", wrong.join("\n"));
    let passed = on_xfs.values().filter(|outcome| **outcome == Outcome::Passed).count();
    assert!(300 < passed, "only {passed} cases pass on XFS: the suite itself does not work here");
    test_beds::assert_empty(&pool);
}

/// The suite's program.
struct Suite {
    program: std::path::PathBuf,
}

impl Suite {
    /// Runs `cases`, or all if there are none, in `dir`; `other` is on another file system.
    #[track_caller]
    fn run(&self, dir: &Path, other: &Path, cases: &[&str]) -> Outcomes {
        let scratch = tempfile::tempdir().unwrap();
        let config = scratch.path().join("pjdfstest.toml");
        fs::write(&config, configuration(other)).unwrap();
        let run = command(&self.program).arg("-c").arg(&config).arg("-p").arg(dir).arg("--exact").args(cases);
        let done = run.env("NO_COLOR", "1").env("RUST_BACKTRACE", "0").limit(LIMIT).output().unwrap();
        let outcomes = parse(&done.stdout);
        let total = done.stdout.lines().find(|line| line.starts_with("Summary"));
        let total = total.and_then(|line| line.rsplit(", ").next()?.split(' ').next()?.parse().ok());
        assert_eq!(total, Some(outcomes.len()), "pjdfstest broke off: {}{}", done.stdout, done.stderr);
        outcomes
    }

    /// True if a case that passed once fails in one of many more runs.
    fn fails_at_last(&self, dir: &Path, other: &Path, case: &str) -> bool {
        // It matches the full name, which it does not print.
        let full = format!("pjdfstest::tests::{case}");
        (0..CHANCES).any(|_| {
            let outcomes = self.run(dir, other, &[&full]);
            let outcome = outcomes.get(case).expect("the case that was asked for");
            matches!(outcome, Outcome::Failed(_))
        })
    }
}

/// Every feature of Linux; without remounts, because XFS itself is often too busy for them.
fn configuration(other: &Path) -> String {
    let [one, two] = users();
    format!(
        "[features]\nsecondary_fs = {other:?}\nposix_fallocate = {{}}\nrename_ctime = {{}}\n\
         stat_st_birthtime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\
         [settings]\nnaptime = 0.01\nallow_remount = false\n\
         [dummy_auth]\nentries = [{one:?}, {two:?}]\n"
    )
}

/// Two users for the suite, each with a group of the same name: the machine's first two after root.
fn users() -> [[String; 2]; 2] {
    let database = |file: &str| -> Vec<Vec<String>> {
        let text = fs::read_to_string(file).unwrap();
        text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect()
    };
    let (users, groups) = (database("/etc/passwd"), database("/etc/group"));
    let with_group = |user: &Vec<String>| {
        let gid = user.get(3).filter(|gid| *gid != "0")?;
        let group = groups.iter().find(|group| group.get(2) == Some(gid))?;
        Some([user.first()?.clone(), group.first()?.clone()])
    };
    let found: Vec<_> = users.iter().filter_map(with_group).take(2).collect();
    found.try_into().expect("two users besides root, each with a group")
}

/// Parses `CASE ok|FAILED|skipped` lines, with the indented lines below as the case's output.
fn parse(output: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut failed = None;
    for line in output.lines() {
        if let (Some(case), Some(said)) = (&failed, line.strip_prefix(['\t', ' '])) {
            if let Some(Outcome::Failed(text)) = outcomes.get_mut(case) {
                text.push_str(said.trim());
                text.push(' ');
            }
            continue;
        }
        failed = None;
        let words: Vec<&str> = line.split_whitespace().collect();
        let (case, outcome) = match words[..] {
            [case, "ok"] => (case, Outcome::Passed),
            [case, "skipped"] => (case, Outcome::Skipped),
            [case, "FAILED"] => (case, Outcome::Failed(String::new())),
            _ => continue,
        };
        failed = matches!(outcome, Outcome::Failed(_)).then(|| case.to_owned());
        outcomes.insert(case.to_owned(), outcome);
    }
    outcomes
}

#[test]
fn output_is_read_case_by_case() {
    let output = "a::b     ok\nc::d   FAILED\n\tassertion failed\n  left: 1\n right: 3\ne   skipped\n\tno root\n\n\
                  Summary: 1 failed, 1 skipped, 1 passed, 0 expected failures, 3 total\n";
    let expected = [
        ("a::b".to_owned(), Outcome::Passed),
        ("c::d".to_owned(), Outcome::Failed("assertion failed left: 1 right: 3 ".to_owned())),
        ("e".to_owned(), Outcome::Skipped),
    ];
    assert_eq!(parse(output), Outcomes::from(expected));
}
