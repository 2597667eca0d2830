//! Scan of a branch for marks, in the background.
//!
//! Directories are taken one after the other by their paths; a path that cannot be opened has gone meanwhile. A directory
//! that is renamed in the pool during the scan is scanned once more under its new path: it may have been moved from a part
//! still to come to one already scanned. A file that is renamed reports its mark to the renaming thread (`Branch::stat`).
//! Renames under way are waited for before a branch is declared scanned.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use fsstack_branch::entries::{Entries, FoundEntry};
use fsstack_branch::error::OpError;
use fsstack_pool::Ino;
use fsstack_sync::atomic::Ordering::Relaxed;
use fsstack_sync::ranked::{HeldRank, RENAMES};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Errno, Kind, OFlags, SysError};

use super::dir_path::DirPath;
use super::store::{EntryKind, Store, StoreWhen};
use super::{SharedIndex, birth};
use crate::mark;
use crate::marked_branch::MarkedBranch;
use crate::number::{self, Identity};

/// Marks that are put into the index in one transaction.
const BATCH: usize = 4096;
/// Pause before directories that could not be scanned are tried again; doubled up to six times.
const SCAN_PAUSE: Duration = Duration::from_secs(1);
/// How long the end of a scan may hold up renames while it waits for one under way.
const WITHOUT_RENAMES: Duration = Duration::from_millis(20);
/// Interval of deferred work during a scan.
const TEND_INTERVAL: Duration = Duration::from_secs(1);
/// With this many directories that cannot be scanned, the scan of the branch is put off.
const FAILURES: usize = 64;

/// Branches and directories still to scan.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    waiting: VecDeque<ScanJob>,
    stopped: bool,
}

/// Directories of a branch to scan, with all that is in them.
#[derive(Debug)]
pub(super) struct ScanJob {
    branch: Weak<MarkedBranch>,
    dirs: Vec<Arc<DirPath>>,
    /// How often that has failed.
    failed: u32,
    /// Time before which it is not tried again.
    due: Instant,
}

impl Jobs {
    pub(super) fn add(&mut self, branch: &Arc<MarkedBranch>, path: Vec<u8>) {
        let dirs = vec![DirPath::from(path)];
        self.waiting.push_back(ScanJob {
            branch: Arc::downgrade(branch),
            dirs,
            failed: 0,
            due: Instant::now(),
        });
    }

    /// Removes and returns the first job that is due.
    pub(super) fn take(&mut self) -> Option<ScanJob> {
        let now = Instant::now();
        let at = self.waiting.iter().position(|job| job.due <= now)?;
        self.waiting.remove(at)
    }

    pub(super) fn is_empty(&self) -> bool {
        let now = Instant::now();
        self.waiting.iter().all(|job| job.due > now)
    }

    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }

    fn concern(&self, branch: &Arc<MarkedBranch>) -> bool {
        self.waiting.iter().any(|job| std::ptr::eq(job.branch.as_ptr(), Arc::as_ptr(branch)))
    }
}

/// Result of a scan.
enum ScanResult {
    Through,
    /// These directories could not be scanned.
    Not(Vec<Arc<DirPath>>, OpError),
    /// The pool is being unmounted, or the branch leaves it.
    Stopped,
}

/// Marks found and not yet in the index.
#[derive(Default)]
struct FoundMarks {
    files: Vec<(Identity, Ino, u32)>,
    dirs: Vec<(Identity, Ino, u32)>,
}

impl SharedIndex {
    pub(super) fn run(&self, job: ScanJob) {
        let Some(branch) = job.branch.upgrade() else { return };
        match self.look_through(&branch, job.dirs) {
            ScanResult::Through if !self.finished(&branch) => {
                let due = Instant::now() + SCAN_PAUSE;
                let again = ScanJob { branch: job.branch, dirs: Vec::new(), failed: job.failed, due };
                self.jobs.lock().waiting.push_back(again);
            }
            ScanResult::Through => {}
            ScanResult::Stopped => {}
            ScanResult::Not(dirs, error) => {
                // A branch out of reach is noticed and logged elsewhere; the scan goes on when it is back.
                let failed = job.failed + u32::from(branch.check_open().is_ok());
                if failed > job.failed {
                    tracing::warn!(%error, branch = %branch.path.display(), "index: cannot scan the branch now; it is tried again later");
                }
                let due = Instant::now() + SCAN_PAUSE * 2_u32.pow(failed.clamp(1, 7) - 1);
                self.jobs.lock().waiting.push_back(ScanJob { branch: job.branch, dirs, failed, due });
            }
        }
    }

    /// Declares that all marks of the branch are known, unless there is more to scan. False: that cannot be decided
    /// now.
    fn finished(&self, branch: &Arc<MarkedBranch>) -> bool {
        let Some(store) = self.store.load_full() else { return true };
        if let Err(error) = store.flush() {
            // Its disk may be full. Without a new index, objects that are gone would be "not now" until the next mount.
            self.start_over(&store, &error);
            return true;
        }
        match self.is_through(branch, &store) {
            Some(true) => {}
            through => return through.is_some(),
        }
        // Signing waits for disk and branch: no lock is held.
        self.sign(&store, branch);
        tracing::info!(branch = %branch.path.display(), objects = store.len().unwrap_or(0), "index: all marks of the branch recorded");
        true
    }

    /// Objects on the branch are not asked for their marks from now on, unless there is more to scan. None: a rename under
    /// way may have taken an object past the scan without reporting it yet.
    fn is_through(&self, branch: &Arc<MarkedBranch>, store: &Arc<Store>) -> Option<bool> {
        // A thread may be stuck in a branch with either lock held: other renames must go on.
        let _no_renames = self.renames.try_write_for(WITHOUT_RENAMES)?;
        let _rank = HeldRank::<RENAMES>::unordered();
        let _create_guard = self.making.try_lock()?;
        if self.jobs.lock().concern(branch) || !self.is_current(store) {
            return Some(false);
        }
        branch.marks.ask_files.store(false, Relaxed);
        branch.marks.ask_dirs.store(false, Relaxed);
        Some(true)
    }

    fn look_through(&self, branch: &MarkedBranch, mut waiting: Vec<Arc<DirPath>>) -> ScanResult {
        let mut caught = FoundMarks::default();
        let (mut failed, mut last) = (Vec::new(), None);
        let mut tended = Instant::now();
        while let Some(dir) = waiting.pop() {
            // A scan may take hours, and new entries are held in memory until they are on disk.
            if tended.elapsed() > TEND_INTERVAL {
                self.tend();
                tended = Instant::now();
            }
            // A branch that has left the pool answers that nothing is there.
            if self.jobs.lock().stopped() || branch.is_gone() {
                return ScanResult::Stopped;
            }
            let before = waiting.len();
            match self.look_into(branch, &dir, &mut waiting, &mut caught) {
                Ok(true) => {}
                Ok(false) => return ScanResult::Stopped,
                Err(error) => {
                    waiting.truncate(before);
                    failed.push(dir);
                    last = Some(error);
                    if failed.len() >= FAILURES || branch.check_open().is_err() {
                        failed.append(&mut waiting);
                    }
                }
            }
        }
        self.keep(&mut caught);
        last.map_or(ScanResult::Through, |error| ScanResult::Not(failed, error))
    }

    /// Scans one directory: its marks go to `caught`, its directories to `waiting`. False: the pool is being unmounted.
    fn look_into(
        &self,
        branch: &MarkedBranch,
        dir: &Arc<DirPath>,
        waiting: &mut Vec<Arc<DirPath>>,
        caught: &mut FoundMarks,
    ) -> Result<bool, OpError> {
        let opened = branch.ask(|| open_path(branch, &dir.path()));
        let fd = match opened {
            Err(error)
                if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::XDEV) =>
            {
                return Ok(true);
            }
            opened => opened?,
        };
        let mut entries = Entries::of(branch, fd.as_fd())?;
        while let Some(FoundEntry { kind, name, .. }) = entries.next_entry()? {
            let is_dir = match kind {
                Some(kind) => kind == Kind::Dir,
                None => match branch.ask(|| sys::at::stat(fd.as_fd(), &name)) {
                    Err(error) if error.is_missing() => continue,
                    stat => stat?.is_dir(),
                },
            };
            if is_dir || branch.asks_marks() {
                caught.look(branch, fd.as_fd(), &name, is_dir)?;
            }
            if is_dir {
                waiting.push(DirPath::below(dir, name.into_bytes()));
            }
            if caught.files.len() + caught.dirs.len() >= BATCH {
                self.keep(caught);
                if self.jobs.lock().stopped() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn keep(&self, caught: &mut FoundMarks) {
        for (sort, rows) in [(EntryKind::File, &mut caught.files), (EntryKind::Dir, &mut caught.dirs)] {
            if !rows.is_empty() {
                self.put(StoreWhen::Soon, sort, rows);
                rows.clear();
                // Entries are held in memory until they are on disk.
                self.with(Store::flush);
            }
        }
    }
}

impl FoundMarks {
    fn look(
        &mut self,
        branch: &MarkedBranch,
        dir: BorrowedFd<'_>,
        name: &std::ffi::CStr,
        is_dir: bool,
    ) -> Result<(), OpError> {
        let which = if is_dir { mark::DIR } else { mark::FILE };
        if !branch.ask(|| mark::is_there(On::Name(dir, name), which))? {
            return Ok(());
        }
        let marked = branch.ask(|| {
            let stat = sys::at::stat(dir, name)?;
            Ok(mark::read(On::Name(dir, name), which, stat.ino)?.map(|id| (id, stat)))
        });
        let (id, stat) = match marked {
            // It has gone meanwhile.
            Err(error) if error.is_missing() => return Ok(()),
            marked => match marked? {
                Some(marked) => marked,
                None => return Ok(()),
            },
        };
        let natural = number::number(branch, stat.dev, stat.ino);
        let rows = if is_dir { &mut self.dirs } else { &mut self.files };
        rows.push((id, natural, birth(&stat)));
        Ok(())
    }
}

/// Opens the directory at `path` below the branch's root. The path may be longer than PATH_MAX.
pub fn open_path(branch: &MarkedBranch, path: &[u8]) -> Result<OwnedFd, SysError> {
    let mut dir = sys::at::reopen(branch.root().as_fd(), OFlags::PATH | OFlags::DIRECTORY)?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let name = CString::new(name).map_err(|_| SysError { call: sys::Call::Open, errno: Errno::INVAL })?;
        dir = sys::at::open_dir(dir.as_fd(), &name, branch.mounts)?;
    }
    Ok(dir)
}
