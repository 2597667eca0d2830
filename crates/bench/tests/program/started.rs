//! Runs the binary to its end, or in parallel with the test.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use fsstack_lab::branch::{Kind, Layout};
use fsstack_lab::daemon::Process;
use fsstack_lab::shell::{Finished, Run, command};
use fsstack_lab::{Branch, MiB, cleanup};

/// Longer than anything that does not hang.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The binary with arguments.
pub(crate) fn bench(args: &[&str]) -> Run {
    command(env!("CARGO_BIN_EXE_fsstack-bench")).args(args).limit(ANSWER_TIMEOUT)
}

/// The binary run with arguments.
pub(crate) fn run(args: &[&str]) -> Finished {
    bench(args).output().unwrap()
}

/// The sorted names in a directory.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// results.json of a run.
pub(crate) fn results(out: &Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(out.join("results.json")).unwrap()).unwrap()
}

/// A tmpfs of its own, and the directory it is in.
pub(crate) struct Tmpfs {
    // Dropped in this order.
    branch: Branch,
    _home: cleanup::Entry,
}

/// A tmpfs of its own.
pub(crate) fn tmpfs(name: &str, size: MiB) -> Tmpfs {
    let home = cleanup::fresh("bench-test").unwrap();
    let entry = cleanup::Entry::dir(&home).unwrap();
    Tmpfs { branch: Branch::make(name, Kind::Tmpfs(size), Layout::Sparse, &home).unwrap(), _home: entry }
}

impl Deref for Tmpfs {
    type Target = Branch;

    fn deref(&self) -> &Branch {
        &self.branch
    }
}

impl DerefMut for Tmpfs {
    fn deref_mut(&mut self) -> &mut Branch {
        &mut self.branch
    }
}

/// A run in parallel with the test.
pub(crate) struct Running {
    thread: JoinHandle<Finished>,
    pub(crate) process: Process,
}

impl Running {
    /// Starts a run and waits until it works in `target`: the lock names its process.
    pub(crate) fn in_dir(run: Run, target: &Path) -> Self {
        Self::where_found(run, || Some(target.to_owned()))
    }

    /// Starts a run and waits until it works where `find` returns.
    pub(crate) fn where_found(run: Run, find: impl Fn() -> Option<PathBuf>) -> Self {
        let thread = spawn(move || run.output().unwrap());
        let began = Instant::now();
        let process = loop {
            let lock = find().map(|target| target.join(".fsstack-bench.lock")).unwrap_or_default();
            let owner = fs::read_link(lock).unwrap_or_default();
            let pid = owner.to_string_lossy().split(' ').nth(1).and_then(|pid| pid.parse().ok());
            if let Some(process) = pid.and_then(Process::of) {
                break process;
            }
            assert!(began.elapsed() < ANSWER_TIMEOUT && !thread.is_finished(), "the run does not begin");
            sleep(Duration::from_millis(2));
        };
        Self { thread, process }
    }

    /// Its end.
    pub(crate) fn ended(self) -> Finished {
        self.thread.join().unwrap()
    }
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, so: impl Fn() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < ANSWER_TIMEOUT, "{what} does not happen");
        sleep(Duration::from_millis(5));
    }
}
