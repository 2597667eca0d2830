//! The side of the program that takes a pool over.
//!
//! Until requests are served again, nothing has happened that the program before cannot go on from: its descriptors are still open,
//! beside copies where this program needs them and may fail. So every failure up to then makes this process that program again, also a
//! panic, and a start that takes too long. Another failure, or one of the program before, ends the process, and the mount with it.

use std::ffi::{OsStr, OsString};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fsstack_control::Listeners;
use fsstack_control::api::{Upgrade, UpgradeStage};
use fsstack_control::registry::{DirectoryId, Registration};
use fsstack_engine::Pool;
use fsstack_engine::handover::{Revived, Unreachable};
use fsstack_engine::kept::Kept;
use fsstack_fuse::{Adopted, LockWait, Mounted};
use fsstack_pool::Printable;
use fsstack_pool::settings::OutOfBand;
use fsstack_sync::Mutex;
use fsstack_sync::mpsc;
use fsstack_sys::handover::{self, Inherited};
use fsstack_sys::process;

use super::format::FORMAT;
use super::{Handover, PassedState, Report, VERSION, plain_arguments};
use crate::background::take_limits;
use crate::confine::{give_up_rights, keep_to_known_calls};
use crate::keeper;
use crate::log::{self, LogHandle};
use crate::serve::{Attended, Beginning, attend, engine_settings, open_transport};
use crate::settings::{Branch, Settings};
use crate::signals::hold_signals;
use fsstack_engine::jobs::JobsLeft;

/// The option before the descriptors, and how many arguments it is with them.
pub(crate) const ADOPT: &str = "--adopt";
/// The option before the path of a state.
pub(crate) const CHECK: &str = "--adopt-check";
/// `--adopt`, the state, the program before, and why that one goes on.
pub(crate) const ARGUMENTS: usize = 4;
/// In place of the descriptor of a program before.
const NONE: &str = "-";

/// How long a branch that does not answer is asked again.
const BRANCHES_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a program may take until it serves, if nothing is open.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a program may take until it serves, whatever is open: less than the command waits for.
const LONGEST_START: Duration = Duration::from_secs(100);
/// Bytes of a state for which a second is added. A name takes some 150, and a debug build took over 80 000 names a second.
const BYTES_PER_SECOND: u64 = 2 << 20;
/// Handles that a keeper has left, for which a second is added. Each of their files is looked for.
const HANDLES_PER_SECOND: u64 = 1000;

/// Time that a program has until it serves: more for larger tables.
fn start_timeout(more: u64) -> Duration {
    LONGEST_START.min(START_TIMEOUT.saturating_add(Duration::from_secs(more)))
}

/// Time that a program has until it serves a state of so many bytes.
fn timeout_of_state(bytes: u64) -> Duration {
    start_timeout(bytes / BYTES_PER_SECOND)
}

/// Time that a program has until it serves what a daemon has left in `kept`.
pub(crate) fn timeout_of_kept(kept: &Kept) -> Duration {
    start_timeout(u64::from(kept.rows_used()) / HANDLES_PER_SECOND)
}
/// A test's program fails so: where the variable says, before it serves.
#[cfg(feature = "fault")]
const FAIL: &str = "FSSTACK_TEST_ADOPT";

/// Arguments of a program that takes over `state`, and can go back to `back`.
pub(super) fn arguments(state: &OwnedFd, back: Option<&std::fs::File>, program: &Path) -> Vec<OsString> {
    let back = back.map_or_else(|| NONE.to_owned(), |back| back.as_raw_fd().to_string());
    // Under the name that it is known by.
    let mut all = plain_arguments();
    let first = if all.is_empty() { program.as_os_str().to_owned() } else { all.remove(0) };
    let adopt = [ADOPT.into(), state.as_raw_fd().to_string().into(), back.into(), NONE.into()];
    [first].into_iter().chain(adopt).chain(all).collect()
}

/// Returns the answer of a program that can take over a state with this question.
///
/// Any program may end with success when it is asked; this line is printed only by one that has read the state, and knows its format.
pub(super) fn answer(question: &str) -> String {
    format!("mount.fsstack: takes over a state of format {FORMAT}: {question}")
}

/// Returns the answer of this program, if it can take over the state at `path`.
///
/// # Errors
/// One line: why not.
pub(crate) fn check(path: &OsStr) -> Result<String, String> {
    let shown = Printable::os(path);
    let file = std::fs::File::open(path).map_err(|error| format!("{shown}: {error}"))?;
    let bytes = handover::read_sealed(file.as_fd()).map_err(|error| format!("{shown}: {error}"))?;
    let state = PassedState::read(&bytes).map_err(|error| error.to_string())?;
    state.check().map(|()| answer(&state.question))
}

/// The descriptors by which this program goes on, or goes back.
#[derive(Clone, Debug)]
struct WayBack {
    state: i32,
    back: Option<i32>,
    /// True once requests are about to be served: the program before would not know of them. Held while this one goes back.
    is_over: Arc<Mutex<bool>>,
}

impl WayBack {
    /// Length of the state; 0 if that is not known, as when it cannot be read.
    fn bytes(&self) -> u64 {
        fsstack_sys::keeper::stat_of(self.state).map_or(0, |stat| stat.size)
    }

    /// Nothing goes back any more.
    fn end(&self) {
        *self.is_over.lock() = true;
    }

    /// Becomes the program before; returns only if there is none, it cannot be run, or it is too late.
    fn go_back(&self, why: &str) {
        let is_over = self.is_over.lock();
        if *is_over {
            return;
        }
        let Some(back) = self.back.and_then(|back| handover::copy_of(back).ok()) else { return };
        let mut all = plain_arguments();
        let first = if all.is_empty() { OsString::from("mount.fsstack") } else { all.remove(0) };
        let line: String = why.replace(['\0', '\n'], " ").chars().take(1000).collect();
        let adopt = [ADOPT.into(), self.state.to_string().into(), NONE.into(), line.into()];
        let arguments: Vec<OsString> = [first].into_iter().chain(adopt).chain(all).collect();
        let error = handover::become_file(back.as_fd(), &arguments);
        tracing::error!(%error, "upgrade: the program before cannot be run again; the pool ends");
    }
}

/// Takes over the pool that `arguments`, those behind `--adopt`, lead to, and serves it to its end; returns the exit code.
///
/// # Errors
/// One line: why it is not served. It is gone then.
pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> Result<(), String> {
    let mut word = || arguments.next().and_then(|word| word.into_string().ok());
    let usage = || format!("{ADOPT}: started by fsstack upgrade only");
    let state = word().and_then(|fd| fd.parse().ok()).ok_or_else(usage)?;
    let back = word().and_then(|fd| fd.parse().ok());
    let because = word().filter(|because| because != NONE);
    let way = WayBack { state, back, is_over: Arc::default() };
    let panicked = std::panic::take_hook();
    let on_panic = way.clone();
    std::panic::set_hook(Box::new(move |info| {
        on_panic.go_back(&format!("version {VERSION} panicked while it took the pool over: {info}"));
        panicked(info);
    }));
    let (started, watch) = mpsc::channel::<()>();
    let signals = hold_signals().map_err(|error| format!("signals: {error}"))?;
    let (limit, late) = (timeout_of_state(way.bytes()), way.clone());
    let watchdog = fsstack_sync::thread::Builder::new().name("upgrade-limit".into()).spawn(move || {
        if watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            let limit = limit.as_secs();
            late.go_back(&format!("version {VERSION} did not take the pool over within {limit} s"));
        }
    });
    let taken = watchdog.map_err(|error| error.to_string()).and_then(|_| TakenOver::take(&way, because));
    let mut taken = taken
        .inspect_err(|why| way.go_back(&format!("version {VERSION} could not take the pool over: {why}")))?;
    way.end();
    drop(started);
    let _default = std::panic::take_hook();
    taken.begin();
    if taken.settings.options.out_of_band == OutOfBand::Watch {
        // Nobody watched the branches meanwhile. Later than that: the kernel writes dirty pages first, which may take long.
        taken.attended.served.union.invalidate_all();
    }
    taken.attend(signals)
}

/// End of the daemon before, where a keeper starts this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Died,
    HandedOver,
}

/// A pool that this program serves.
pub(crate) struct TakenOver {
    settings: Settings,
    listed: Option<Registration>,
    log: LogHandle,
    mounted: Mounted,
    attended: Attended,
    listeners: Listeners,
    revived: Revived,
}

impl TakenOver {
    fn take(way: &WayBack, because: Option<String>) -> Result<Self, String> {
        let state = read(way)?;
        let both = [Some(way.state), way.back].into_iter().flatten();
        let inherited = Inherited::new(state.descriptors().into_iter().chain(both));
        let inherited = inherited.map_err(|error| format!("descriptors: {error}"))?;
        let taken = Self::of(&state, inherited, because, None)?;
        let paused = handover::since_boot().saturating_sub(state.paused_at);
        taken.attended.served.is_taken_over(paused);
        Ok(taken)
    }

    /// The pool of a daemon that has died: what it had open is in `kept`.
    ///
    /// # Errors
    /// One line: why it cannot be served.
    pub(crate) fn revive(state: &PassedState, inherited: Inherited, kept: Arc<Kept>) -> Result<Self, String> {
        Self::of(state, inherited, None, Some((kept, Before::Died)))
    }

    /// The pool of a daemon that has ended for an upgrade, and left what it had open in `kept`; `because` is why the new program could
    /// not serve, where this is the one before.
    ///
    /// # Errors
    /// One line: why it cannot be served.
    pub(crate) fn upgraded(
        state: &PassedState,
        inherited: Inherited,
        kept: Arc<Kept>,
        because: Option<String>,
    ) -> Result<Self, String> {
        if because.is_none() {
            state.check()?;
        }
        let taken = Self::of(state, inherited, because, Some((kept, Before::HandedOver)))?;
        let paused = handover::since_boot().saturating_sub(state.paused_at);
        taken.attended.served.is_taken_over(paused);
        Ok(taken)
    }

    /// Serves requests from now on.
    pub(crate) fn begin(&mut self) {
        self.attended.begin();
    }

    /// Has names looked up again: so their objects are known by them. The kernel may write dirty pages first, which may take long.
    pub(crate) fn look_again(&self) {
        let union = &self.attended.served.union;
        match self.settings.options.out_of_band {
            // Nobody watched the branches meanwhile.
            OutOfBand::Watch => union.invalidate_all(),
            OutOfBand::Timeout | OutOfBand::Never => union.invalidate_names(),
        }
    }

    fn of(
        state: &PassedState,
        mut inherited: Inherited,
        because: Option<String>,
        kept: Option<(Arc<Kept>, Before)>,
    ) -> Result<Self, String> {
        let (kept, before) = kept.unzip();
        std::env::set_current_dir("/").map_err(|error| format!("/: {error}"))?;
        take_limits();
        give_up_rights().map_err(|error| format!("capabilities: {error}"))?;
        let mut settings = state.settings.settings()?;
        let log = log::start_anyway(&settings.options.log).map_err(|error| format!("log: {error}"))?;
        #[cfg(feature = "fault")]
        fail_as_told(because.is_some())?;
        // Without a keeper the program before may go on.
        let unreachable = if kept.is_some() { Unreachable::IsDown } else { Unreachable::Fails };
        let pool = open_pool(state, &settings, &inherited, unreachable)?;
        settings.branches = branches(&pool);
        let Copies { device, waits, listeners } = Copies::of(state, &inherited)?;
        let mounted = Mounted::adopt(Adopted {
            device,
            target: settings.mount_point.clone(),
            granted: state.mount.granted(),
            dev: state.mount.dev,
        });
        let listed = Self::listed(state, &settings);
        let handover = |pauser| Handover {
            program: state.path(because.is_some()),
            calls: Mutex::new(state.calls.clone()),
            report: Mutex::new(match before {
                Some(Before::Died) => Report::default(),
                Some(Before::HandedOver) | None => report(state, because.clone()),
            }),
            ..Handover::new(pauser, &mounted, &log)
        };
        let since = if kept.is_some() {
            handover::since_boot().saturating_sub(state.paused_at)
        } else {
            Duration::ZERO
        };
        let mut revived = Revived::default();
        let beginning = Beginning {
            waits,
            uptime: state.uptime + since,
            kept: kept.clone(),
            // Whatever fails after this, the descriptors stay for the program before.
            take_over: &mut |union| {
                let _kept = ManuallyDrop::new(union.clone());
                union.take_over(&state.pool, &mut inherited)?;
                revived = union.revive(&mut inherited);
                Ok(())
            },
            handover: &handover,
        };
        let attended =
            open_transport(&settings, pool, &mounted, log.level.clone(), listed.as_ref(), beginning);
        let attended = attended.map_err(|error| error.text)?;
        // By numbers that stay when those that were left are closed.
        attended.served.note_state();
        if let Some(kept) = &kept {
            keeper::serves(kept);
        }
        // Nothing is handed to a further program by mistake.
        if let Err(error) = handover::keep_none() {
            tracing::warn!(%error, "upgrade: descriptors of the pool stay open in a program that takes it over later");
        }
        inherited.close_rest();
        Ok(Self { settings, listed, log, mounted, attended, listeners, revived })
    }

    /// The pool's name in the registry.
    pub(crate) fn listed(state: &PassedState, settings: &Settings) -> Option<Registration> {
        let registry = settings.registry.clone().filter(|_| !state.pool_id.is_empty());
        registry.map(|registry| Registration::adopt(registry, state.pool_id.clone()))
    }

    /// Logs what became of the daemon before this one, `pause` milliseconds ago.
    pub(crate) fn tell_of_death(&self, how: &str, pause: u64) {
        let shown = Printable::path(&self.settings.mount_point).to_string();
        let Revived { handles, .. } = self.revived;
        tracing::error!(
            "{shown}: the daemon {how}; restart=keep: process {} serves on, pause {pause} ms, {handles} open handles go on",
            std::process::id()
        );
        // It may die again soon.
        self.log.flush();
    }

    pub(crate) fn tell_what_is_lost(&self) {
        let (shown, lost) = (Printable::path(&self.settings.mount_point).to_string(), self.revived.lost);
        if lost > 0 {
            tracing::error!(
                "{shown}: {lost} open handles are of files that were not found after the restart: calls by them fail, and programs have to open the files again"
            );
        }
    }

    /// Serves the pool to its end.
    ///
    /// # Errors
    /// One line: how it ended.
    pub(crate) fn attend(self, signals: process::SignalFd) -> Result<(), String> {
        let Self { settings, listed, log, mounted, attended, listeners, revived: _ } = self;
        let served = attended.served.clone();
        let mount_point = Printable::path(&settings.mount_point).to_string();
        // Before an operator asks for a job: those that were interrupted are there then.
        served.begin_moves(JobsLeft::Interrupted);
        let ended = attend(&settings, signals, listed.as_ref(), &mounted, (attended, listeners), || {
            served.start_keeping();
            // A second filter would cost every call, and allow nothing more.
            if !fsstack_sys::seccomp::is_confined() {
                *served.handover.calls.lock() = keep_to_known_calls(&settings);
            }
            Ok(())
        });
        mounted.ended();
        keeper::end_with_daemon(served.union.kept());
        match &ended {
            Ok(()) => tracing::info!("{mount_point}: unmounted"),
            Err(error) => tracing::error!("{error}"),
        }
        drop(listed);
        log.flush();
        ended.map_err(|error| error.text)
    }
}

/// The state, which this program can go on with.
fn read(way: &WayBack) -> Result<PassedState, String> {
    let file = handover::copy_of(way.state).map_err(|error| format!("state: {error}"))?;
    let bytes = handover::read_sealed(file.as_fd()).map_err(|error| format!("state: {error}"))?;
    let state = PassedState::read(&bytes).map_err(|error| error.to_string())?;
    state.check()?;
    Ok(state)
}

/// Copies of descriptors: the program before has its own, should this one fail.
struct Copies {
    device: OwnedFd,
    waits: Vec<LockWait>,
    listeners: Listeners,
}

impl Copies {
    fn of(state: &PassedState, inherited: &Inherited) -> Result<Self, String> {
        let copy = |what: &str, number: i32| {
            inherited.copy(number).map_err(|error| format!("{what}: descriptor {number}: {error}"))
        };
        let wait = |(device, message): &(i32, Vec<u8>)| {
            Ok(LockWait { device: copy("a wait", *device)?, message: message.clone() })
        };
        let listener = |number: Option<i32>| {
            number.map(|number| copy("control socket", number).map(Arc::new)).transpose()
        };
        let [socket, metrics] = state.listeners;
        Ok(Self {
            device: copy("/dev/fuse", state.mount.device)?,
            waits: state.lock_waits.iter().map(wait).collect::<Result<_, String>>()?,
            listeners: Listeners { socket: listener(socket)?, metrics: listener(metrics)? },
        })
    }
}

/// Opens the pool. A branch that is away or does not answer may be back in a moment, as a client is that a service manager starts again;
/// after that `unreachable` says what it is.
fn open_pool(
    state: &PassedState,
    settings: &Settings,
    inherited: &Inherited,
    unreachable: Unreachable,
) -> Result<Pool, String> {
    let pool_id = state.uuid.as_ref().and_then(|uuid| uuid.parse().ok());
    let settings = fsstack_engine::settings::Settings { pool_id, ..engine_settings(settings) };
    state.pool.open(settings, inherited, unreachable, BRANCHES_TIMEOUT)
}

fn branches(pool: &Pool) -> Vec<Branch> {
    let branch = |branch: &Arc<fsstack_engine::member::Member>| Branch {
        spec: fsstack_pool::BranchSpec {
            mode: branch.given_mode(),
            floor: branch.floor(),
            min_inodes: branch.min_inodes(),
            class: branch.class.clone(),
            ..fsstack_pool::BranchSpec::new(branch.path.clone())
        },
        id: DirectoryId { device: branch.dev(), inode: branch.root_ino },
    };
    pool.branches.iter().map(branch).collect()
}

/// Answer to `fsstack upgrade`: it went well, unless this is the program before.
fn report(state: &PassedState, because: Option<String>) -> Report {
    let told = Upgrade {
        stage: if because.is_some() { UpgradeStage::Failed } else { UpgradeStage::Done },
        ticket: state.ticket,
        program: Printable::path(&state.path(because.is_some())).to_string(),
        from: state.version.clone(),
        to: VERSION.to_owned(),
        reason: because,
        ..Upgrade::default()
    };
    Report { told, ..Report::default() }
}

#[cfg(feature = "fault")]
fn fail_as_told(is_back: bool) -> Result<(), String> {
    match std::env::var(FAIL).as_deref() {
        _ if is_back => Ok(()),
        Ok("refuse") => Err("as the test asks".to_owned()),
        Ok("panic") => std::panic::panic_any("as the test asks"),
        Ok("hang") => loop {
            fsstack_sync::thread::park();
        },
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In place of the program before is one that ends with an error, and this test with it.
    #[test]
    fn nothing_goes_back_once_requests_are_served() {
        let back = std::fs::File::open("/bin/false").unwrap();
        let way = WayBack { state: 0, back: Some(back.as_raw_fd()), is_over: Arc::default() };
        way.end();
        way.go_back("too late");
    }
}
