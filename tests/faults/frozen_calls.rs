//! The server of a branch stops at each system call of each operation: the operation is done, or fails and is done or undone once
//! the server goes on; other branches are served meanwhile.

use std::cell::RefCell;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use fsstack_lab::daemon::Process;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, Pool, needs, until};
use rustix::process::Signal;

use crate::kept::open_handles;
use crate::kept_calls::{ACTS, Seen, Work, seen, try_seen};
use crate::scenario::named;

/// One of so many calls stops the server, in the tests that are not long: another one for each operation.
const STEP: u64 = 32;
/// More calls than a server makes for any of these operations.
const MOST_CALLS: u64 = 1000;
/// Time after which the connections are aborted.
const LIMIT: Duration = Duration::from_secs(900);
/// Kinds of calls by which the server itself changes something, each with an operation that needs it.
const KINDS: &[(&str, &str)] = &[
    ("Mkdir", "mkdir"),
    ("Symlink", "symlink"),
    ("Link", "link"),
    ("Rename", "rename within a branch"),
    ("Unlink", "unlink"),
    ("Rmdir", "rmdir"),
    ("Chmod", "chmod"),
    ("Utimens", "utimens"),
    ("Write", "write"),
];

/// Changes of operations of several, one after the other: after an error the first of them may be done.
const OF_SEVERAL_CHANGES: &[(&str, &[Work])] = &[
    ("create", &[|at| create(&at.join("d/new"), 0o644)]),
    ("skeleton", &[|at| create(&at.join("deep/deeper/new"), 0o600)]),
    (
        "several attributes",
        &[
            |at| fs::set_permissions(at.join("d/old"), fs::Permissions::from_mode(0o6755)),
            |at| chown(at.join("d/old"), Some(3), Some(4)),
            |at| change().truncate(true).open(at.join("d/old")).map(drop),
            |at| change().open(at.join("d/old"))?.set_len(3),
        ],
    ),
    ("append", &[|at| fs::OpenOptions::new().append(true).open(at.join("d/old"))?.write_all(b" and more")]),
];

fn create(path: &Path, mode: u32) -> io::Result<()> {
    change().create_new(true).mode(mode).open(path).map(drop)
}

fn change() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.write(true);
    options
}

/// A pool of three branches, one of which is served by a daemon that stops at a call that a test names, and a local disk beside it.
struct FrozenBed {
    pool: Pool,
    server: Pool,
    branches: [PathBuf; 3],
    home: tempfile::TempDir,
    /// Cases, each with the states that are allowed once its program has its answer.
    judged: RefCell<Vec<(String, Vec<Seen>)>>,
}

/// The server, which has stopped. It goes on when this drops.
struct StoppedServer(Process);

impl Drop for StoppedServer {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT).unwrap();
    }
}

fn has_stopped(server: Process) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.pid)).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

impl FrozenBed {
    /// Serves the branch `at`, which is not the first.
    fn new(at: usize) -> Self {
        let home = tempfile::tempdir().unwrap();
        let server = lab::pool()
            .tmp_branch("below")
            .no_others()
            .option("transport=dev,restart=off,write-path=stacked,attr-timeout=0,entry-timeout=0,seccomp=off")
            .helper(env!("CARGO_BIN_EXE_mount-fsstack-faulty"))
            .env("FSSTACK_FAULT", &format!("trap:{}", home.path().join("trap").display()))
            .limit(LIMIT)
            .mount();
        let mut branches = ["a", "b", "c"].map(|name| home.path().join(name));
        branches.iter().for_each(|branch| fs::create_dir(branch).unwrap());
        server.path().clone_into(&mut branches[at]);
        // A name on the branch before it is not asked for on the one that hangs.
        fs::create_dir(branches[0].join("elsewhere")).unwrap();
        fs::create_dir(home.path().join("local")).unwrap();
        let pool = lab::pool()
            .over(&branches.each_ref().map(|branch| branch.to_str().unwrap()))
            .no_others()
            .option("create=epff,write-path=stacked,attr-timeout=0,entry-timeout=0,branch-timeout=1")
            .option(&format!("log={}", home.path().join("log").display()))
            .limit(LIMIT)
            .mount();
        fs::write(pool.at("elsewhere/file"), "elsewhere").unwrap();
        Self { pool, server, branches, home, judged: RefCell::default() }
    }

    /// Where the scenario is prepared on the local disk, as the pool shows it.
    fn prepare(&self, scenario: &str, case: &str) -> PathBuf {
        let branches = self.branches.each_ref().map(|branch| branch.join(case));
        branches.iter().for_each(|branch| fs::create_dir(branch).unwrap());
        named(scenario).prepare(&branches.each_ref().map(PathBuf::as_path));
        let local = self.home.path().join("local").join(case);
        // A name's first branch has it.
        for branch in branches.iter().rev() {
            command("cp").args(["-a", "-T"]).arg(branch).arg(&local).run().unwrap();
        }
        local
    }

    /// Does the work while the server stops at the `nth` call of that kind; false if there are not so many.
    fn stops_at(&self, (scenario, what, work): (&str, &str, Work), (nth, kind): (u64, &str)) -> bool {
        let case = format!("{what} {kind} {nth}");
        let (local, trap) = (self.prepare(scenario, &case), self.home.path().join("trap"));
        let states = states(&local, what, work);
        let (at, server) = (self.pool.at(&case), self.server.daemon());
        fs::write(&trap, format!("{nth} stop {kind} {case}")).unwrap();
        let (done, has_frozen) = thread::scope(|scope| {
            let worker = scope.spawn(|| work(&at));
            until("the server stops, or the work is done", || worker.is_finished() || has_stopped(server));
            let has_frozen = fs::remove_file(&trap).is_err();
            if has_frozen {
                until("the server stops", || has_stopped(server));
                let _stopped = StoppedServer(server);
                self.works_elsewhere();
                // The program has its answer though the server does not go on.
                return (worker.join().unwrap(), true);
            }
            (worker.join().unwrap(), false)
        });
        let allowed = match done {
            Ok(()) => states[states.len() - 1..].to_vec(),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(5), "{case}: {error}");
                assert!(has_frozen, "{case}: {error} though nothing has stopped\n{}", self.log());
                states
            }
        };
        until(&format!("{case}: it is done or undone"), || {
            try_seen(&at).is_ok_and(|shown| allowed.contains(&shown))
        });
        self.judged.borrow_mut().push((case, allowed));
        has_frozen
    }

    /// Changes a file on a branch that answers. Calls that the other one catches before it is known to hang may fail; and names that
    /// it may have are not missing until it answers.
    fn works_elsewhere(&self) {
        let file = self.pool.at("elsewhere/file");
        let work = || fs::write(&file, "elsewhere").and_then(|()| fs::read(&file));
        until("other branches are served", || work().is_ok_and(|text| text == b"elsewhere"));
    }

    fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    /// Nothing is left over, and a remount shows the same.
    fn remount_and_compare(mut self) {
        until("no handle is left over", || open_handles(&self.pool) == (0, 0));
        // What came late would show by now.
        for (case, allowed) in self.judged.take() {
            let shown = seen(&self.pool.at(&case));
            assert!(allowed.contains(&shown), "{case}: {shown:#?}\n{}", self.log());
        }
        let shown = seen(self.pool.path());
        self.pool.remount();
        assert_eq!(seen(self.pool.path()), shown);
        let left: Vec<_> =
            self.branches.iter().map(|at| at.join(".fsstack.moving")).filter(|at| at.exists()).collect();
        assert!(left.is_empty(), "{left:?}\n{}", self.log());
    }
}

/// The states of the work on the local disk: before, after each change, and after all.
fn states(local: &Path, what: &str, work: Work) -> Vec<Seen> {
    let mut states = vec![seen(local)];
    if let Some((_, changes)) = OF_SEVERAL_CHANGES.iter().find(|(name, _)| *name == what) {
        let copy = local.with_extension("changes");
        command("cp").args(["-a", "-T"]).arg(local).arg(&copy).run().unwrap();
        for change in *changes {
            change(&copy).unwrap();
            states.push(seen(&copy));
        }
        fs::remove_dir_all(copy).unwrap();
    }
    work(local).unwrap();
    states.push(seen(local));
    states
}

fn each_is_done_or_undone_at_each_call(branch: usize, step: u64) {
    needs!(mounting());
    let bed = FrozenBed::new(branch);
    let mut stops = 0;
    for (at, act) in (0_u64..).zip(ACTS) {
        let mut calls = (1 + at % step..MOST_CALLS).step_by(usize::try_from(step).unwrap());
        stops += calls.by_ref().take_while(|nth| bed.stops_at(*act, (*nth, "any"))).count();
        assert!(calls.next().is_some(), "{}: too many calls", act.1);
    }
    println!("{stops} stops");
    assert!(ACTS.len() / 2 < stops, "{stops} stops only");
    bed.remount_and_compare();
}

#[test]
fn operations_are_done_or_undone_at_whichever_call_the_second_branch_stops() {
    each_is_done_or_undone_at_each_call(1, STEP);
}

#[test]
fn operations_are_done_or_undone_at_whichever_call_the_third_branch_stops() {
    each_is_done_or_undone_at_each_call(2, STEP);
}

#[test]
#[ignore = "minutes: cargo xtask test --tier long"]
fn operations_are_done_or_undone_at_every_third_call_at_which_the_second_branch_stops() {
    each_is_done_or_undone_at_each_call(1, 3);
}

#[test]
fn changes_are_done_or_undone_that_a_branch_stops_in() {
    needs!(mounting());
    let bed = FrozenBed::new(1);
    let stops = |(kind, what): &(&str, &str)| {
        let act = ACTS.iter().find(|(_, name, _)| name == what).unwrap();
        bed.stops_at(*act, (1, kind))
    };
    let missed: Vec<_> = KINDS.iter().filter(|kind| !stops(kind)).collect();
    assert!(missed.is_empty(), "the branch was not asked for {missed:?}");
    bed.remount_and_compare();
}
