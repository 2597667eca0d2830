//! A pool that goes from this program to another one in this process: `fsstack upgrade`.
//!
//! 1. Prepare: the program is opened, and a draft of the state is written, with all but the tables. The command has the program check
//!    that, under its own process id: this daemon may start no process.
//! 2. Requests come to rest, then what works by itself (`fsstack_engine::handover`). What does not rest in time refuses the upgrade, and
//!    all goes on.
//! 3. The state goes into a sealed file in memory, and this process becomes the program, with exactly the descriptors that the state
//!    names. Where exec fails, all goes on.
//! 4. The new program takes the pool over (`adopt.rs`). Until it serves its first request it can go back: it becomes the old program
//!    again, which takes the same state over. It does so when it fails, panics or takes too long. A signal that kills it in that time
//!    takes the mount with it.
//!
//! With `restart=keep` this process ends instead of step 3, and the keeper becomes the program (`keeper/`): what is open is in memory that
//! both have, and the keeper's table of descriptors.
//!
//! Everything on the way is checked twice, by programs that may be of different versions: the format has a version of its own, and a
//! state of another version is refused by name.

pub(crate) mod adopt;
mod format;
mod settings;
mod state;

use std::ffi::OsString;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fsstack_control::api::{Upgrade, UpgradeCheck, UpgradeStage};
use fsstack_control::{Connections, Listeners};
use fsstack_engine::handover::{Gathered, PoolState};
use fsstack_engine::kept::Kept;
use fsstack_fuse::{Granted, LockWait, Mounted, Paused, Pauser, StillInside};
use fsstack_pool::Printable;
use fsstack_sync::atomic::AtomicBool;
use fsstack_sync::atomic::Ordering::SeqCst;
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Mutex, RwLock};
use fsstack_sys::handover::{self, become_file, sealed_file};

use crate::keeper::{self, Noted};
use crate::log::{LogHandle, LogTarget};
use crate::operate::Served;
use crate::serve::timeout;
use crate::settings::Privilege;
use format::{FORMAT, encode};
pub(crate) use state::{MountRow, PassedState};

/// This program's version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Time limit for checks of a program: longer than any runs.
const CHECKS_TIMEOUT: Duration = Duration::from_secs(60);
/// Upgrades that were prepared and not begun, at most.
const MOST_REPLACED: usize = 32;
/// How long other requests of operators are waited for.
const OPERATORS_TIMEOUT: Duration = Duration::from_secs(2);

const IS_ENDING: &str = "the pool is being unmounted";

/// Parts of a daemon that a handover needs besides the pool.
#[derive(Debug)]
pub(crate) struct Handover {
    /// None: requests come over io_uring.
    pub(crate) pauser: Option<Pauser>,
    pub(crate) granted: Granted,
    /// Number of the device that programs see.
    pub(crate) dev: Option<u64>,
    pub(crate) log: LogHandle,
    /// Path of the program of this process: an upgrade is to that path, unless it names another one.
    pub(crate) program: PathBuf,
    /// System calls that the filter allows; None: there is no filter.
    pub(crate) calls: Mutex<Option<Vec<String>>>,
    /// Descriptors by which the control socket and the metrics' address are listened at.
    pub(crate) listeners: Mutex<Listeners>,
    /// Connections to those, which end before this program does.
    pub(crate) connections: Mutex<Option<Connections>>,
    /// Held shared while an operator changes something, or a signal is acted on.
    pub(crate) operators: RwLock<()>,
    /// A signal has begun to unmount the pool. Changed with `operators` held.
    pub(crate) is_ending: AtomicBool,
    pub(crate) report: Mutex<Report>,
    /// State for a daemon after this one, should it die.
    pub(crate) noted: Noted,
}

/// How far the last upgrade has come.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) told: Upgrade,
    prepared: Option<Prepared>,
    /// Those that another one has replaced, and since when. Their check may still be running: it knows the descriptors by
    /// number, which must not come to mean another file.
    replaced: Vec<(Instant, Prepared)>,
}

/// A program, and the draft of the state for its check.
#[derive(Debug)]
struct Prepared {
    program: OwnedFd,
    path: PathBuf,
    draft: OwnedFd,
    /// Text in the draft that the program answers with.
    question: String,
}

/// Values of a state that differ between a draft, a handover, and what a daemon leaves to the next one.
#[derive(Debug, Default)]
pub(crate) struct Passing<'a> {
    pub(crate) waits: &'a [LockWait],
    pub(crate) paused_at: Duration,
    /// Path of the program that goes on; None: of this one.
    pub(crate) next: Option<&'a Path>,
    pub(crate) question: &'a str,
}

impl Report {
    /// Checks that upgrade `ticket` is prepared, and that `answer` is what its program prints if it can take the pool over.
    ///
    /// # Errors
    /// One line: why it cannot begin.
    pub(crate) fn checked(&self, ticket: u64, answer: &str) -> Result<Upgrade, String> {
        let prepared = self.prepared.as_ref().filter(|_| self.told.ticket == ticket);
        let (Some(prepared), Some(_)) = (prepared, self.told.check) else {
            return Err("that upgrade is not prepared: begin anew".to_owned());
        };
        if answer != adopt::answer(&prepared.question) {
            return Err(format!(
                "{}: does not answer as mount.fsstack of this state format does, so it is another program, or of another version; \
                 nothing was changed: name the new mount.fsstack by --program",
                Printable::path(&prepared.path)
            ));
        }
        Ok(self.told.clone())
    }
}

/// Returns text that nobody can guess who has not read it.
fn question() -> String {
    let half = || RandomState::new().hash_one(Instant::now());
    format!("{:016x}{:016x}", half(), half())
}

impl Handover {
    /// For a pool that was mounted by this program.
    pub(crate) fn new(pauser: Option<Pauser>, mounted: &Mounted, log: &LogHandle) -> Self {
        Self {
            pauser,
            granted: mounted.granted,
            dev: mounted.dev(),
            log: log.clone(),
            program: PathBuf::new(),
            calls: Mutex::default(),
            listeners: Mutex::default(),
            connections: Mutex::default(),
            operators: RwLock::default(),
            is_ending: AtomicBool::new(false),
            report: Mutex::default(),
            noted: Noted::default(),
        }
    }
}

/// Path of the running program, before another one is installed in its place.
pub(crate) fn own_program() -> PathBuf {
    std::env::current_exe().unwrap_or_default()
}

impl Served {
    /// Opens `program`, and writes the draft.
    ///
    /// # Errors
    /// One line: why the pool cannot be handed over, or not to that program.
    pub(crate) fn prepare_upgrade(&self, program: Option<&str>) -> Result<Upgrade, String> {
        self.check_upgrade()?;
        let path = program.map_or_else(|| self.handover.program.clone(), PathBuf::from);
        let shown = Printable::path(&path).to_string();
        let opened = handover::open_program(&path).map_err(|error| format!("{shown}: {error}"))?;
        if opened.metadata().is_ok_and(|found| self.handover.dev == Some(found.dev())) {
            // Running it would wait for requests that nobody serves at that moment.
            return Err(format!(
                "{shown}: lies in the pool that it is to serve: copy it to another file system"
            ));
        }
        let outline = self.union.outline().map_err(|error| error.to_string())?;
        let question = question();
        let draft = self.write_state(outline, &Passing { question: &question, ..Passing::default() })?;
        let mut report = self.handover.report.lock();
        if report.told.stage == UpgradeStage::Running {
            return Err("another upgrade is under way".to_owned());
        }
        report.replaced.retain(|(since, _)| since.elapsed() < CHECKS_TIMEOUT);
        if MOST_REPLACED <= report.replaced.len() {
            return Err("too many upgrades are being prepared: try again in a minute".to_owned());
        }
        let check = UpgradeCheck {
            pid: std::process::id(),
            program_fd: opened.as_raw_fd(),
            state_fd: draft.as_raw_fd(),
        };
        report.told = Upgrade {
            stage: UpgradeStage::Prepared,
            ticket: report.told.ticket + 1,
            program: shown,
            from: VERSION.to_owned(),
            to: VERSION.to_owned(),
            check: Some(check),
            ..Upgrade::default()
        };
        let prepared = Prepared { program: opened.into(), path, draft, question };
        let replaced = report.prepared.replace(prepared);
        report.replaced.extend(replaced.map(|replaced| (Instant::now(), replaced)));
        Ok(report.told.clone())
    }

    /// Checks that the pool can be handed over at all.
    ///
    /// # Errors
    /// One line: why not.
    fn check_upgrade(&self) -> Result<(), String> {
        if self.handover.pauser.is_none() {
            return Err("requests come over io_uring (transport=ring): those on their way to a thread would fail when the rings are \
                        closed. Mount with transport=dev, or unmount to upgrade"
                .to_owned());
        }
        if self.settings.lock().privilege == Privilege::User {
            return Err(
                "only a pool that root has mounted can be handed over: unmount it to upgrade".to_owned()
            );
        }
        if self.handover.is_ending.load(SeqCst) {
            return Err(IS_ENDING.to_owned());
        }
        if let LogTarget::File(path) = &self.settings.lock().options.log.target
            && std::fs::metadata(path).is_ok_and(|found| self.handover.dev == Some(found.dev()))
        {
            return Err(format!(
                "log={} lies in the pool itself: it could not be written while the pool changes hands",
                Printable::path(path)
            ));
        }
        self.union.check_handover().map_err(|not| not.0)
    }

    /// Hands the pool over to the prepared program, in this thread: returns only if the pool stays here.
    pub(crate) fn hand_over(&self, ticket: u64) {
        let prepared = {
            let mut report = self.handover.report.lock();
            let prepared = report.prepared.take();
            match prepared.filter(|_| report.told.ticket == ticket) {
                Some(prepared) => {
                    (report.told.stage, report.told.check) = (UpgradeStage::Running, None);
                    prepared
                }
                None => return,
            }
        };
        drop(prepared.draft);
        let why = self.try_to_hand_over(&prepared.program, &prepared.path);
        tracing::warn!(
            "upgrade to {} failed: {why}; the pool is served on as before",
            Printable::path(&prepared.path)
        );
        let mut report = self.handover.report.lock();
        (report.told.stage, report.told.reason) = (UpgradeStage::Failed, Some(why));
    }

    /// Returns why not.
    fn try_to_hand_over(&self, program: &OwnedFd, path: &Path) -> String {
        let Some(pauser) = &self.handover.pauser else { return "no transport that rests".to_owned() };
        let at_work =
            || "another request of an operator, or of a bulk copy, is at work: try again".to_owned();
        // Answered before this program ends. Later ones wait for the next program, or for this one to go on.
        let connections = self.handover.connections.lock().clone();
        let ended = connections.map(|connections| connections.end(OPERATORS_TIMEOUT));
        if matches!(ended, Some(None)) {
            return at_work();
        }
        let Some(_operators) = self.handover.operators.try_write_for(OPERATORS_TIMEOUT) else {
            return at_work();
        };
        if self.handover.is_ending.load(SeqCst) {
            return IS_ENDING.to_owned();
        }
        // Before the branches are kept: drains that begin again need to set their branches' modes.
        let _jobs = self.union.hold_jobs();
        let _branches = match self.union.keep_branches() {
            Ok(kept) => kept,
            Err(why) => return why.0,
        };
        let deadline = Instant::now() + timeout(&self.union);
        let paused_at = handover::since_boot();
        let paused = match pauser.pause(deadline) {
            Ok(paused) => paused,
            Err(StillInside(inside)) => {
                let limit = timeout(&self.union).as_secs();
                return format!(
                    "{inside} requests were not answered within {limit} s (branch-timeout): try again when the branches are less busy; \
                     calls that hang on a branch end with fsstack branch abort"
                );
            }
        };
        let why = match self.union.rest(deadline) {
            Ok(()) => match self.union.kept() {
                Some(kept) => self.leave_to_keeper(kept, program, path, paused_at),
                None => self.become_program(program, path, &paused, paused_at),
            },
            Err(why) => why.0,
        };
        self.union.go_on();
        self.union.start_catalogue();
        drop(paused);
        why
    }

    /// Returns why not.
    fn become_program(&self, program: &OwnedFd, path: &Path, paused: &Paused, paused_at: Duration) -> String {
        let gathered = self.union.gather().map_err(|error| error.to_string());
        let waits = paused.lock_waits().map_err(|error| error.to_string());
        let (gathered, waits) = match (gathered, waits) {
            (Ok(gathered), Ok(waits)) => (gathered, waits),
            (Err(why), _) | (_, Err(why)) => return why,
        };
        let Gathered { state, mut descriptors, made: _made } = gathered;
        let Some(pauser) = &self.handover.pauser else { return String::new() };
        descriptors.push(pauser.device().as_raw_fd());
        descriptors.extend(waits.iter().map(|wait| wait.device.as_raw_fd()));
        let listeners = self.handover.listeners.lock().clone();
        descriptors
            .extend([&listeners.socket, &listeners.metrics].into_iter().flatten().map(|fd| fd.as_raw_fd()));
        let back = match File::open("/proc/self/exe") {
            Ok(back) => back,
            Err(error) => return format!("/proc/self/exe: {error}"),
        };
        let passing = Passing { waits: &waits, paused_at, next: Some(path), ..Passing::default() };
        let state = match self.write_state(state, &passing) {
            Ok(state) => state,
            Err(why) => return why,
        };
        descriptors.extend([back.as_raw_fd(), state.as_raw_fd()]);
        if let Err(error) = handover::set_all_kept(&descriptors, true) {
            let _undone = handover::set_all_kept(&descriptors, false);
            return format!("descriptors: {error}");
        }
        tracing::info!("upgrade: version {VERSION} hands the pool over to {}", Printable::path(path));
        self.handover.log.flush();
        let error = become_file(program.as_fd(), &adopt::arguments(&state, Some(&back), path));
        if let Err(error) = handover::set_all_kept(&descriptors, false) {
            tracing::error!(%error, "upgrade: descriptors of the pool stay open in programs that the daemon starts");
        }
        format!("it cannot be run: {error}")
    }

    /// The state in a sealed file.
    pub(crate) fn write_state(&self, pool: PoolState, passing: &Passing<'_>) -> Result<OwnedFd, String> {
        let Passing { waits, paused_at, next, question } = *passing;
        let own = &self.handover.program;
        let mut settings = self.settings.lock().clone();
        settings.options.log.level = self.level.get();
        let device = self.handover.pauser.as_ref().map_or(-1, |pauser| pauser.device().as_raw_fd());
        let listeners = self.handover.listeners.lock().clone();
        let report = self.handover.report.lock();
        let state = PassedState {
            version: VERSION.to_owned(),
            program: next.unwrap_or(own).as_os_str().as_bytes().to_vec(),
            program_before: own.as_os_str().as_bytes().to_vec(),
            question: question.to_owned(),
            calls: self.handover.calls.lock().clone(),
            settings: settings::SettingsRow::of(&settings),
            mount: MountRow::of(device, self.handover.dev, &self.handover.granted),
            pool_id: self.id.clone(),
            uuid: self.union.id().map(|id| id.to_string()),
            uptime: self.since.elapsed(),
            paused_at,
            ticket: report.told.ticket,
            kept: self.union.kept().map(|_| Kept::FORMAT),
            lock_waits: waits.iter().map(|wait| (wait.device.as_raw_fd(), wait.message.clone())).collect(),
            listeners: [&listeners.socket, &listeners.metrics].map(|fd| fd.as_ref().map(|fd| fd.as_raw_fd())),
            pool,
        };
        drop(report);
        let body = state.to_bytes()?;
        let header = encode(FORMAT, VERSION, &body);
        sealed_file("fsstack-state", &[&header, &body]).map_err(|error| format!("state: {error}"))
    }
}

/// Arguments without those of a handover, or of a keeper.
pub(crate) fn plain_arguments() -> Vec<OsString> {
    let mut all: Vec<OsString> = std::env::args_os().collect();
    let extra = match all.get(1) {
        Some(first) if first == adopt::ADOPT => adopt::ARGUMENTS,
        Some(first) if first == keeper::REVIVE => keeper::ARGUMENTS,
        _ => 0,
    };
    all.drain(1.min(all.len())..all.len().min(1 + extra));
    all
}
