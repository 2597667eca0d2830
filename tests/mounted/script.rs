//! Programs in a pool: a line of a scenario may be a shell or Python script.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fsstack_lab::shell::{Finished, Run, command};
use fsstack_lab::{self as lab, Pool, Skip};

/// An unprivileged user: `nobody`.
pub(crate) const STRANGER: u32 = 65534;

/// Ends a script that hangs. No test asserts it: a script may take long beside other work.
const SCRIPT_LIMIT: Duration = Duration::from_secs(300);

/// Every write path with every possible page cache mode.
pub(crate) const WAYS: &[&[&str]] = &[
    &["write-path=auto"],
    &["write-path=passthrough"],
    &["write-path=stacked"],
    &["write-path=stacked", "page-cache=on"],
    &["write-path=stacked", "page-cache=writeback"],
];

/// The combinations that this kernel supports.
pub(crate) fn ways() -> impl Iterator<Item = &'static [&'static str]> {
    let able = passthrough().is_ok();
    WAYS.iter().copied().filter(move |way| able || !way.contains(&"write-path=passthrough"))
}

/// Requires FUSE passthrough in the kernel. Any other refusal to mount is an error, not a skip.
pub(crate) fn passthrough() -> Result<(), Skip> {
    match lab::pool().tmp_branch("a").option("write-path=passthrough").try_mount() {
        Err(refused) if refused.said.contains("no FUSE passthrough") => {
            Err(Skip::because("needs a kernel with FUSE passthrough"))
        }
        _ => Ok(()),
    }
}

/// Runs a shell script in `dir` as root; returns its output without the last newline.
#[track_caller]
pub(crate) fn sh(dir: impl AsRef<Path>, script: &str) -> String {
    output_of(bash(dir, script))
}

/// The same as an unprivileged user.
#[track_caller]
pub(crate) fn sh_as_stranger(dir: impl AsRef<Path>, script: &str) -> String {
    output_of(bash(dir, script).as_user(STRANGER, STRANGER))
}

/// Runs a script that must fail for an unprivileged user, and returns its errors.
#[track_caller]
pub(crate) fn refused_to_stranger(dir: impl AsRef<Path>, script: &str) -> String {
    let Finished { code, stderr, .. } = bash(dir, script).as_user(STRANGER, STRANGER).output().unwrap();
    assert_ne!(code, 0, "nobody was allowed to: {script}");
    stderr
}

/// Runs a script that fails, and returns its errors.
#[track_caller]
pub(crate) fn refused(dir: impl AsRef<Path>, script: &str) -> String {
    let Finished { code, stderr, .. } = bash(dir, script).output().unwrap();
    assert_ne!(code, 0, "this should not work: {script}");
    stderr
}

/// Waits until a daemon's log contains `word`, because a thread writes it.
#[track_caller]
pub(crate) fn log_with(log: &Path, word: &str) -> String {
    let began = std::time::Instant::now();
    loop {
        let said = std::fs::read_to_string(log).unwrap();
        if said.contains(word) {
            return said;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no {word:?} in the log: {said}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a Python script in `dir`; returns its output without the last newline.
#[track_caller]
pub(crate) fn python(dir: impl AsRef<Path>, script: &str) -> String {
    output_of(command("python3").arg("-c").arg(script).dir(dir).limit(SCRIPT_LIMIT))
}

/// Number of the daemon's descriptors on branches. Its worker threads open and close others with the load.
pub(crate) fn files_held(pool: &Pool) -> usize {
    std::thread::sleep(Duration::from_millis(100));
    let leads_in = |link: &PathBuf| pool.branches().iter().any(|branch| link.starts_with(branch.path()));
    let held = std::fs::read_dir(format!("/proc/{}/fd", pool.daemon().pid)).unwrap();
    held.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok()).filter(leads_in).count()
}

/// Whether any process has the file open.
pub(crate) fn is_open(path: &Path) -> bool {
    let descriptors =
        |process: PathBuf| std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|process| process.path());
    processes.flat_map(descriptors).any(|one| std::fs::read_link(one.path()).is_ok_and(|leads| leads == path))
}

pub(crate) fn bash(dir: impl AsRef<Path>, script: &str) -> Run {
    command("bash").args(["-euo", "pipefail", "-c", script]).dir(dir).limit(SCRIPT_LIMIT)
}

#[track_caller]
fn output_of(run: Run) -> String {
    match run.run() {
        Ok(done) => done.stdout.trim_end_matches('\n').to_owned(),
        Err(e) => panic!("{e:#}"),
    }
}
