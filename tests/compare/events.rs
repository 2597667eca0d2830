//! Events that come to a pool while programs use it.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use fsstack_lab::daemon::Process;
use fsstack_lab::shell::{Finished, command};
use fsstack_lab::{Pool, daemon};
use rustix::process::Signal;

use crate::{BRANCHES, WORKERS};

/// Longest pause before an event, and longest absence of a branch, in milliseconds.
const PAUSE: u64 = 600;

/// Pauses for which a branch stands still: its calls are given up after one second.
const STANDSTILL: u8 = 6;

/// Longer than the kernel keeps attributes and names that a call has changed after it was given up.
const KEPT: Duration = Duration::from_millis(1200);

/// Changes of options.
const CHANGES: [&str; 9] = [
    "create=ff",
    "create=mfs",
    "create=rand",
    "write-path=stacked",
    "write-path=auto",
    "attr-timeout=0",
    "entry-timeout=1",
    "negative-timeout=1",
    "relocate-verify=checksum",
];

/// A pool and what it needs; dropped in this order.
pub(crate) struct TestBed {
    pub(crate) pool: Pool,
    /// The pool that is the last branch, so that its server can stand still.
    pub(crate) below: Option<Pool>,
}

impl TestBed {
    fn branch_path(&self, number: usize) -> &Path {
        match &self.below {
            Some(below) if number == BRANCHES.len() - 1 => below.path(),
            _ => self.pool.branch(BRANCHES[number]).path(),
        }
    }
}

/// Whether a branch is away.
#[derive(Debug, Default)]
pub(crate) struct Away {
    flag: AtomicBool,
    /// Locked until the calls that waited for a branch that stood still have ended.
    late_calls: Mutex<()>,
}

impl Away {
    pub(crate) fn is_set(&self) -> bool {
        self.flag.load(SeqCst)
    }

    /// Waits until no call is left that was given up because a branch stood still.
    pub(crate) fn wait_for_late_calls(&self) {
        drop(self.late_calls.lock().unwrap());
    }
}

/// The kinds of events of a test.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Events {
    /// Branches are drained, taken back, removed and added, directories gathered, the pool balanced; jobs are cancelled,
    /// options changed.
    pub(crate) jobs: bool,
    /// How often the daemon is killed, and a keeper starts another: a third time within a minute would end the pool.
    pub(crate) deaths: u8,
    /// The daemon is replaced.
    pub(crate) upgrades: bool,
    /// Branches are unmounted, and mounted again.
    pub(crate) lose_branches: bool,
    /// The server of the last branch stands still at times, mostly for longer than calls may stay in a branch.
    pub(crate) hang_branch: bool,
    /// The first branch has little room from the start.
    pub(crate) full_branch: bool,
}

/// Milliseconds of the clock, of which only differences matter.
pub(crate) fn now() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() % 1_000_000
}

/// Runs the command to its end, and says when.
pub(crate) fn fsstack(arguments: &[&str]) -> Finished {
    let binary = daemon::helper().unwrap().with_file_name("fsstack");
    let began = now();
    let ended = command(binary).args(arguments).limit(Duration::from_secs(120)).output().unwrap();
    eprintln!("{began} to {}: {}: {}", now(), arguments.join(" "), ended.code);
    ended
}

impl Events {
    /// Whether a branch may be out of reach.
    pub(crate) fn lose(&self) -> bool {
        self.lose_branches || self.hang_branch
    }

    /// Has something happen to the pool.
    pub(crate) fn one(&mut self, bed: &mut TestBed, dice: &mut Rng, away: &Away) {
        pause(dice);
        match dice.u64(..8) {
            0 | 1 if self.deaths > 0 => {
                self.deaths -= 1;
                eprintln!("{}: killed", now());
                daemon_of(&bed.pool).kill().unwrap();
            }
            2 if self.upgrades => {
                let upgraded = fsstack(&["upgrade", bed.pool.path().to_str().unwrap()]);
                assert_eq!(upgraded.code, 0, "{}", upgraded.stderr);
            }
            3 | 4 if self.lose_branches => {
                let name = BRANCHES[dice.usize(..BRANCHES.len())];
                away.flag.store(true, SeqCst);
                bed.pool.branch_mut(name).unmount_lazily();
                pause(dice);
                bed.pool.branch_mut(name).remount();
                away.flag.store(false, SeqCst);
                pause(dice);
            }
            3..=5 if self.hang_branch => {
                stand_still(bed, dice, away);
                pause(dice);
            }
            _ if self.jobs => job(bed, dice),
            _ => {}
        }
    }
}

/// Stops the last branch's server for a while, and waits for the calls that were inside.
fn stand_still(bed: &TestBed, dice: &mut Rng, away: &Away) {
    let (server, asker) = (bed.below.as_ref().unwrap().daemon(), bed.pool.daemon());
    let late_calls = away.late_calls.lock().unwrap();
    away.flag.store(true, SeqCst);
    server.signal(Signal::STOP).unwrap();
    (0..STANDSTILL).for_each(|_| pause(dice));
    let inside = waiting_threads(asker.pid);
    eprintln!("{}: {} calls in the branch that stood still", now(), inside.len());
    server.signal(Signal::CONT).unwrap();
    let began = Instant::now();
    let mut late = inside;
    while !late.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(60), "calls that do not end: {late:?}");
        std::thread::sleep(Duration::from_millis(10));
        let waits = waiting_threads(asker.pid);
        late.retain(|thread| waits.contains(thread));
    }
    std::thread::sleep(KEPT);
    away.flag.store(false, SeqCst);
    drop(late_calls);
}

/// The threads of a process that wait for an answer of a FUSE file system.
fn waiting_threads(pid: i32) -> Vec<OsString> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|thread| thread.unwrap());
    let waits = |thread: &fs::DirEntry| {
        let at = fs::read_to_string(thread.path().join("wchan"));
        at.is_ok_and(|at| at.contains("request_wait_answer"))
    };
    threads.filter(waits).map(|thread| thread.file_name()).collect()
}

/// The daemon of a pool that has a keeper, which may be starting it.
fn daemon_of(pool: &Pool) -> Process {
    let began = Instant::now();
    loop {
        if let Some(daemon) = pool.daemon().child() {
            return daemon;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the keeper starts no daemon");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn pause(dice: &mut Rng) {
    std::thread::sleep(Duration::from_millis(dice.u64(..PAUSE)));
}

/// Checks that the command did what it was asked for, or was refused in the state of the pool; it was not misused.
fn done(ended: &Finished) {
    assert!(ended.code != 2, "{}", ended.stderr);
}

/// Calls off the jobs that are at work.
fn cancel_all(pool: &str) {
    let jobs = fsstack(&["job", "list", pool, "--json"]);
    let jobs: serde_json::Value = serde_json::from_str(&jobs.stdout).unwrap_or_default();
    for job in jobs["jobs"].as_array().into_iter().flatten() {
        done(&fsstack(&["job", "cancel", pool, &job["id"].to_string()]));
    }
}

/// Removes a branch that a drain left empty, and adds it again.
fn leave_and_come(pool: &str, branch: &str, dice: &mut Rng) {
    let removed = fsstack(&["branch", "remove", pool, branch]);
    done(&removed);
    if removed.code == 0 {
        pause(dice);
        let added = fsstack(&["branch", "add", pool, branch]);
        assert_eq!(added.code, 0, "{}", added.stderr);
    }
}

/// Runs a job, whatever comes of it: names that were just changed may stay.
fn job(bed: &TestBed, dice: &mut Rng) {
    let at = bed.pool.path().to_str().unwrap();
    let branch = bed.branch_path(dice.usize(..BRANCHES.len())).to_str().unwrap();
    let top = bed.pool.at(dice.usize(..WORKERS).to_string()).display().to_string();
    match dice.u64(..8) {
        0..=2 => {
            let drained = std::thread::scope(|scope| {
                let drain = scope.spawn(|| fsstack(&["branch", "drain", at, branch]));
                if dice.u64(..4) == 0 {
                    pause(dice);
                    cancel_all(at);
                }
                drain.join().unwrap()
            });
            done(&drained);
            if drained.code == 0 && dice.bool() {
                leave_and_come(at, branch, dice);
            }
            done(&fsstack(&["branch", "mode", at, branch, "RW"]));
        }
        3 | 4 => done(&fsstack(&["set", at, CHANGES[dice.usize(..CHANGES.len())]])),
        5 | 6 => done(&fsstack(&["consolidate", at, &top, "--to", branch])),
        _ => done(&fsstack(&["balance", at])),
    }
}
