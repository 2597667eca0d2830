//! Events that come to a pool while programs use it.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fastrand::Rng;
use fsstack_lab::daemon::Process;
use fsstack_lab::shell::{Finished, command};
use fsstack_lab::{Pool, daemon};

use crate::{BRANCHES, WORKERS};

/// Longest pause before an event, and longest absence of a branch, in milliseconds.
const PAUSE: u64 = 600;

/// The kinds of events of a test.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Events {
    /// Branches are drained and taken back, directories gathered, the pool balanced; jobs are cancelled.
    pub(crate) jobs: bool,
    /// How often the daemon is killed, and a keeper starts another: a third time within a minute would end the pool.
    pub(crate) deaths: u8,
    /// The daemon is replaced.
    pub(crate) upgrades: bool,
    /// Branches are unmounted, and mounted again.
    pub(crate) lose_branches: bool,
    /// The first branch has little room from the start.
    pub(crate) full_branch: bool,
}

/// Runs the command to its end.
pub(crate) fn fsstack(arguments: &[&str]) -> Finished {
    let binary = daemon::helper().unwrap().with_file_name("fsstack");
    command(binary).args(arguments).limit(Duration::from_secs(120)).output().unwrap()
}

impl Events {
    /// Has something happen to `pool`; `away` says that a branch is away.
    pub(crate) fn one(&mut self, pool: &mut Pool, dice: &mut Rng, away: &AtomicBool) {
        pause(dice);
        match dice.u64(..8) {
            0 | 1 if self.deaths > 0 => {
                self.deaths -= 1;
                daemon_of(pool).kill().unwrap();
            }
            2 if self.upgrades => {
                let upgraded = fsstack(&["upgrade", pool.path().to_str().unwrap()]);
                assert_eq!(upgraded.code, 0, "{}", upgraded.stderr);
            }
            3 | 4 if self.lose_branches => {
                let name = BRANCHES[dice.usize(..BRANCHES.len())];
                away.store(true, SeqCst);
                pool.branch_mut(name).unmount_lazily();
                pause(dice);
                pool.branch_mut(name).remount();
                away.store(false, SeqCst);
                pause(dice);
            }
            _ if self.jobs => job(pool, dice),
            _ => {}
        }
    }
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

/// Runs a job, whatever comes of it: names that were just changed may stay.
fn job(pool: &Pool, dice: &mut Rng) {
    let at = pool.path().to_str().unwrap();
    let name = BRANCHES[dice.usize(..BRANCHES.len())];
    let branch = pool.branch(name).path().to_str().unwrap();
    let top = pool.at(dice.usize(..WORKERS).to_string()).display().to_string();
    match dice.u64(..6) {
        0..=2 => {
            std::thread::scope(|scope| {
                let drain = scope.spawn(|| fsstack(&["branch", "drain", at, branch]));
                if dice.u64(..4) == 0 {
                    pause(dice);
                    cancel_all(at);
                }
                done(&drain.join().unwrap());
            });
            done(&fsstack(&["branch", "mode", at, branch, "RW"]));
        }
        3 | 4 => done(&fsstack(&["consolidate", at, &top, "--to", branch])),
        _ => done(&fsstack(&["balance", at])),
    }
}
