//! `fsstack upgrade`: another version of the daemon, with the pool mounted.
//!
//! The daemon opens the program and writes down what it has agreed on; this command has the program check that, since the daemon
//! may start no process; then the daemon becomes the program. The connection breaks at that moment, so the result is asked for.

use fsstack_sync::time::{Duration, Instant};

use super::args::Upgrade as Wish;
use super::show::{self, Style};
use super::{Failed, pool};
use fsstack_control::api::{Upgrade, UpgradeCheck, UpgradeRequest, UpgradeStage};
use fsstack_control::{Client, ClientError};
use fsstack_pool::Printable;
use fsstack_sys::process::is_alive as lives;
use fsstack_sys::{handover, program};
use std::os::fd::AsRawFd;
use std::path::Path;

/// How long the new program may take to check what it is given.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than any answer that the daemon expects.
const ANSWER_CHARS: usize = 200;
/// How often the result of an upgrade is asked for.
const UPGRADE_LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How long the daemon may be silent: it waits for requests that are inside for `branch-timeout`, and the new one for its branches.
pub(super) const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn run(wish: &Wish, style: Style) -> Result<(), Failed> {
    let pool = pool::find(&wish.pool)?;
    let client = pool.client();
    // Files are exchanged by its number in /proc.
    let daemon = pool.daemon()?;
    let program = wish.program.as_ref().map(|path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        path.to_str()
            .map(str::to_owned)
            .ok_or_else(|| Failed::Usage(format!("--program {}: not valid UTF-8", Printable::path(&path))))
    });
    let program = program.transpose()?;
    let prepared = client.upgrade(&UpgradeRequest::Prepare { program })?;
    let check = prepared.check.ok_or(Failed::Dead("the daemon did not say what to check".to_owned()))?;
    let answer = checked(&prepared.program, check)?;
    let ticket = prepared.ticket;
    match client.upgrade(&UpgradeRequest::Begin { ticket, answer }) {
        // It may have become the other program before it answered.
        Ok(_) | Err(ClientError::NoAnswer(..) | ClientError::Dead(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let done = settled(&client, ticket, daemon)?;
    match done.reason {
        Some(reason) => {
            Err(Failed::Refused(format!("not upgraded, version {} serves on: {reason}", done.from)))
        }
        None => show::answer(style, &done, human),
    }
}

/// Has the program say whether it can take the pool over; returns its answer, which the daemon compares with the one that it expects.
fn checked(path: &str, check: UpgradeCheck) -> Result<String, Failed> {
    let UpgradeCheck { pid, program_fd, state_fd } = check;
    let fd = |number: i32| format!("/proc/{pid}/fd/{number}");
    let refused = |why: String| Failed::Refused(format!("{path}: {why}; nothing was changed"));
    // Opened once, looked at, and run by that descriptor: the daemon's number may belong to another file by now, of any user.
    let opened =
        handover::open_program(Path::new(&fd(program_fd))).map_err(|why| refused(why.to_string()))?;
    let own = format!("/proc/{}/fd/{}", std::process::id(), opened.as_raw_fd());
    let told = program::output_within(CHECK_TIMEOUT, Path::new(&own), &["--adopt-check", &fd(state_fd)])
        .map_err(|why| refused(format!("its check of the pool's state failed: {why}")))?;
    let said = program::said(&told);
    let said = said.strip_prefix("mount.fsstack: ").unwrap_or(&said).to_owned();
    match (told.status.success(), told.status.code()) {
        (true, _) => Ok(String::from_utf8_lossy(&told.stdout).trim().chars().take(ANSWER_CHARS).collect()),
        (false, Some(_)) if !said.is_empty() => Err(refused(said)),
        (false, _) => Err(refused(format!("its check of the pool's state failed: {}", told.status))),
    }
}

/// Asks until it is over. `pid` is the process that the pool is known by, which stays the same.
fn settled(client: &Client, ticket: u64, pid: u32) -> Result<Upgrade, Failed> {
    let mut heard = Instant::now();
    loop {
        match client.upgrade(&UpgradeRequest::Show) {
            Ok(told)
                if told.ticket == ticket
                    && matches!(told.stage, UpgradeStage::Done | UpgradeStage::Failed) =>
            {
                return Ok(told);
            }
            Ok(told) if told.ticket != ticket => {
                return Err(Failed::Refused("the daemon was replaced meanwhile, by another upgrade or after its death (restart=keep): see the log".to_owned()));
            }
            Ok(_) => heard = Instant::now(),
            Err(_) if !is_alive(pid) => {
                return Err(Failed::Dead(
                    "the daemon ended during the upgrade, and the pool with it: see its log, take the dead mount off with umount, and mount it again"
                        .to_owned(),
                ));
            }
            Err(error) if SILENCE_TIMEOUT <= heard.elapsed() => return Err(error.into()),
            Err(_) => {}
        }
        fsstack_sync::thread::sleep(UPGRADE_LOOK_INTERVAL);
    }
}

fn is_alive(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(lives)
}

fn human(done: &Upgrade) -> String {
    let pause = done.pause_ms.map(|pause| format!(", pause {pause:.1} ms")).unwrap_or_default();
    format!("{}: version {} -> {}{pause}\n", done.program, done.from, done.to)
}
