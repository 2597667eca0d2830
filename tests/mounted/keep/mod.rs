//! The daemon is killed under programs that use the pool, and a keeper starts it again: `restart=keep`.

mod away;
mod beside_jobs;
mod going_on;
mod jobs;
mod keeper;
mod upgraded;

use std::time::Duration;

use fsstack_lab::daemon::Process;
use fsstack_lab::{self as lab, Pool, until};

/// A pool that outlives its daemon.
pub(crate) fn pool(options: &[&str]) -> Pool {
    let builder = lab::pool()
        .tmp_branch("a")
        .tmp_branch("b")
        .option("transport=dev")
        .option("restart=keep")
        .option("create=ff");
    options.iter().fold(builder, |builder, option| builder.option(option)).mount()
}

/// The process that serves now.
#[track_caller]
pub(crate) fn daemon(pool: &Pool) -> Process {
    pool.daemon().child().expect("the keeper has a daemon")
}

/// Kills the daemon, as a crash would. Requests wait until the next one serves.
#[track_caller]
pub(crate) fn crash(pool: &Pool) {
    let dies = daemon(pool);
    dies.kill().unwrap();
    until("the keeper starts another daemon", || pool.daemon().child().is_some_and(|next| next != dies));
}

/// Kills the daemon, and waits until the next one has answered.
#[track_caller]
pub(crate) fn crash_and_serve(pool: &Pool) {
    crash(pool);
    until("the pool answers", || std::fs::metadata(pool.path()).is_ok());
    std::thread::sleep(Duration::from_millis(1));
}
