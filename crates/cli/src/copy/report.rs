//! Results of a copy, counted by all threads and displayed during it.

use std::collections::BTreeMap;
use std::fmt::Display;

use fsstack_control::api::{Copied, CopiedTo, NotCopied};
use fsstack_pool::Printable;
use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use fsstack_sync::time::Instant;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Plan;
use crate::command::Failed;

/// Maximum redraws of the bar a second.
const FRAMES: u8 = 5;

/// Counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    Files,
    Directories,
    HardLinks,
    Symlinks,
    Others,
    AlreadyThere,
}

/// Results so far.
#[derive(Debug)]
pub(super) struct CopyReport {
    into: String,
    pool: String,
    began: Instant,
    verified: bool,
    counts: [AtomicU64; 6],
    bytes: AtomicU64,
    branches: Mutex<BTreeMap<String, (u64, u64)>>,
    failed: Mutex<Vec<NotCopied>>,
    not_synced: Mutex<Option<String>>,
    fatal: Mutex<Option<Failed>>,
    stopped: AtomicBool,
    bar: ProgressBar,
}

impl CopyReport {
    pub(super) fn new(plan: &Plan) -> Self {
        let target = match plan.show {
            true => ProgressDrawTarget::stderr_with_hz(FRAMES),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let line = "{bar:30} {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left; {msg}";
        bar.set_style(ProgressStyle::with_template(line).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self {
            into: Printable::path(&plan.into).to_string(),
            pool: Printable::path(&plan.mount_point).to_string(),
            began: Instant::now(),
            verified: plan.verify,
            counts: Default::default(),
            bytes: AtomicU64::new(0),
            branches: Mutex::default(),
            failed: Mutex::default(),
            not_synced: Mutex::default(),
            fatal: Mutex::default(),
            stopped: AtomicBool::new(false),
            bar,
        }
    }

    /// Counts one.
    pub(super) fn count(&self, what: Count) {
        let counted = self.counts[what as usize].fetch_add(1, Relaxed) + 1;
        if what == Count::Files && counted.is_multiple_of(64) {
            self.bar.set_message(format!("{counted} files"));
        }
    }

    /// Adds found files.
    pub(super) fn found(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// Adds bytes that were copied or existed already.
    pub(super) fn passed(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Adds files named on a branch.
    pub(super) fn named(&self, branch: &str, files: u64, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        let mut branches = self.branches.lock();
        let sums = branches.entry(branch.to_owned()).or_default();
        *sums = (sums.0 + files, sums.1 + bytes);
    }

    /// Reports an object that is not copied; the copy continues.
    pub(super) fn fail(&self, path: &[u8], why: impl Display) {
        let one = NotCopied { path: Printable(path).to_string(), error: why.to_string() };
        self.bar.suspend(|| eprintln!("fsstack: {}: {}", one.path, one.error));
        self.failed.lock().push(one);
    }

    /// Reports that what was copied may not be on disk, as the pool could not be synced.
    pub(super) fn not_synced(&self, why: impl Display) {
        let text = format!("not all of the pool could be synced, so the copy may not be on disk: {why}");
        self.bar.suspend(|| eprintln!("fsstack: {}: {text}", self.pool));
        *self.not_synced.lock() = Some(text);
    }

    /// Stops the copy.
    pub(super) fn stop(&self, why: impl Into<Failed>) {
        self.fatal.lock().get_or_insert(why.into());
        self.stopped.store(true, Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Ends the display and returns the result.
    pub(super) fn end(&self) -> Result<Copied, Failed> {
        self.bar.finish_and_clear();
        if let Some(fatal) = self.fatal.lock().take() {
            return Err(fatal);
        }
        let count = |what: Count| self.counts[what as usize].load(Relaxed);
        let to = |(branch, (files, bytes)): (&String, &(u64, u64))| CopiedTo {
            branch: branch.clone(),
            files: *files,
            bytes: *bytes,
        };
        Ok(Copied {
            into: self.into.clone(),
            files: count(Count::Files),
            bytes: self.bytes.load(Relaxed),
            directories: count(Count::Directories),
            hard_links: count(Count::HardLinks),
            symlinks: count(Count::Symlinks),
            others: count(Count::Others),
            already_there: count(Count::AlreadyThere),
            verified: self.verified,
            seconds: self.began.elapsed().as_secs_f64(),
            branches: self.branches.lock().iter().map(to).collect(),
            failed: self.failed.lock().clone(),
            not_synced: self.not_synced.lock().clone(),
        })
    }
}
