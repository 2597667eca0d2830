//! Supervision of the walk: branches are read and changed on a thread of their own, so that one that hangs does not hang the
//! command. The walk goes on without it, at the path where it hung.

use fsstack_sync::Mutex;
use fsstack_sync::atomic::Ordering::Relaxed;
use fsstack_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use fsstack_sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use fsstack_sync::time::{Duration, Instant};

use super::beside::BesideDaemon;
use super::output::CheckOutput;
use super::rules::DirRule;
use super::walk::Walk;
use super::{OpenBranch, cursor};
use crate::command::Failed;
use fsstack_control::api::CheckFinding;
use fsstack_pool::Printable;
use std::sync::Arc;

/// A branch in which one call lasts for this long hangs. Disks that have to spin up take less.
const CALL_HANGS_AFTER: Duration = Duration::from_secs(20);
/// How long the walk is waited for after a signal.
const WALK_ENDS_WITHIN: Duration = Duration::from_secs(2);
/// Interval of looking at the walk of a check.
const WALK_LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Findings that wait to be printed; the walk waits for the printer.
const WAITING: usize = 64;
/// No call is under way in a branch.
const NOWHERE: usize = usize::MAX;

/// A message of the walk's thread.
enum Report {
    Found(CheckFinding),
    /// The end; `Some` is where an interrupted walk goes on.
    Ended(Result<Option<String>, Failed>),
}

/// State of a walk that its supervisor looks at.
#[derive(Default)]
pub(super) struct WalkWatch {
    names: AtomicU64,
    /// Changes with each call in a branch.
    beats: AtomicU64,
    /// Index of the branch that is called.
    branch: AtomicUsize,
    /// The supervisor has given this walk up.
    over: AtomicBool,
    path: Mutex<Vec<u8>>,
}

impl WalkWatch {
    /// The next call is made in this branch.
    pub(super) fn calls(&self, branch: usize) {
        self.branch.store(branch, Relaxed);
        self.beats.fetch_add(1, Relaxed);
    }

    /// No call is under way.
    pub(super) fn rests(&self) {
        self.calls(NOWHERE);
    }

    /// The walk has come to a name of the pool.
    pub(super) fn passes(&self, path: &[u8]) {
        self.names.fetch_add(1, Relaxed);
        let mut at = self.path.lock();
        at.clear();
        at.extend_from_slice(path);
    }
}

/// The walk's side: it reports, and learns that it is to end.
#[derive(Clone)]
pub(super) struct Reporter {
    pub(super) watch: Arc<WalkWatch>,
    sender: SyncSender<Report>,
    stop: Arc<AtomicBool>,
}

impl Reporter {
    /// True once the walk is to end, by a signal or because it was given up.
    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Relaxed) || self.watch.over.load(Relaxed)
    }

    /// Reports a finding.
    ///
    /// # Errors
    /// The walk was given up.
    pub(super) fn add(&self, finding: CheckFinding) -> Result<(), Failed> {
        self.watch.rests();
        let gone = |_| Failed::Refused("check: given up".to_owned());
        self.sender.send(Report::Found(finding)).map_err(gone)
    }
}

/// Task of a walk.
#[derive(Clone)]
pub(super) struct Scope {
    pub(super) start: Vec<Vec<u8>>,
    pub(super) from: Vec<Vec<u8>>,
    /// The daemon, where findings are fixed.
    pub(super) fixes_beside: Option<Arc<BesideDaemon>>,
    /// Whether all branches of the pool are walked.
    pub(super) complete: bool,
    /// The pool's placement rules.
    pub(super) rules: Arc<[DirRule]>,
}

/// Walks the branches and prints what is found. Returns where it was interrupted.
pub(super) fn walk(
    mut branches: Vec<Arc<OpenBranch>>,
    mut scope: Scope,
    client: &fsstack_control::Client,
    output: &mut CheckOutput,
    stop: &Arc<AtomicBool>,
) -> Result<Option<String>, Failed> {
    loop {
        let (sender, told) = mpsc::sync_channel(WAITING);
        let watch = Arc::new(WalkWatch::default());
        watch.rests();
        let reporter = Reporter { watch: watch.clone(), sender: sender.clone(), stop: stop.clone() };
        let (own, scope_of, client) = (branches.clone(), scope.clone(), client.clone());
        fsstack_sync::thread::spawn(move || {
            let ended = Walk::new(own, reporter, &scope_of, client).run(&scope_of.start, &scope_of.from);
            // The supervisor may have given up.
            let _ = sender.send(Report::Ended(ended));
        });
        match attend(&told, &watch, output, stop) {
            Attended::Ended(ended) => return ended,
            Attended::Interrupted => return Ok(Some(cursor(&watch.path.lock()))),
            Attended::Hangs(branch) => {
                watch.over.store(true, Relaxed);
                let hung = branches.remove(branch);
                scope.complete = false;
                let path = watch.path.lock().clone();
                let reason = format!("branch {}: it hangs; the rest is checked without it", hung.shown);
                output.not_checked(&path, &reason)?;
                if branches.is_empty() {
                    return Ok(Some(cursor(&path)));
                }
                scope.from = path.split(|byte| *byte == b'/').skip(1).map(<[u8]>::to_vec).collect();
            }
        }
    }
}

/// How a walk ended for its supervisor.
enum Attended {
    Ended(Result<Option<String>, Failed>),
    /// A signal came, and the walk did not end by itself.
    Interrupted,
    /// The branch of this index.
    Hangs(usize),
}

/// Prints what a walk reports until it ends or hangs.
fn attend(
    told: &Receiver<Report>,
    watch: &WalkWatch,
    output: &mut CheckOutput,
    stop: &AtomicBool,
) -> Attended {
    let (mut counted, mut beats, mut since, mut stopped) = (0, 0, Instant::now(), None);
    loop {
        let report = told.recv_timeout(WALK_LOOK_INTERVAL);
        let names = watch.names.load(Relaxed);
        output.passed(names - counted, || shown(&watch.path.lock()));
        counted = names;
        match report {
            Ok(Report::Found(finding)) => {
                if let Err(failed) = output.add(&finding) {
                    return Attended::Ended(Err(failed));
                }
            }
            Ok(Report::Ended(ended)) => return Attended::Ended(ended),
            Err(RecvTimeoutError::Disconnected) => {
                let text = "check: its thread failed; please report this".to_owned();
                return Attended::Ended(Err(Failed::Refused(text)));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let (now, branch) = (watch.beats.load(Relaxed), watch.branch.load(Relaxed));
        if now != beats || branch == NOWHERE {
            (beats, since) = (now, Instant::now());
        } else if since.elapsed() > CALL_HANGS_AFTER {
            return Attended::Hangs(branch);
        }
        if stop.load(Relaxed) && stopped.get_or_insert_with(Instant::now).elapsed() > WALK_ENDS_WITHIN {
            return Attended::Interrupted;
        }
    }
}

/// A path in printable form.
pub(super) fn shown(path: &[u8]) -> String {
    if path.is_empty() { "/".to_owned() } else { Printable(path).to_string() }
}
