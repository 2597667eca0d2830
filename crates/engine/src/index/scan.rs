//! Looking through a branch for marks, in the background.
//!
//! Directories are taken one after the other by their paths; what cannot be opened has gone meanwhile. A directory
//! that is renamed in the pool while its branch is looked through is looked through once more under its new path:
//! it may have been moved from where the scan had still to come to where it had been. A file that is renamed
//! tells its mark to whoever renames it (`Branch::stat`).

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fsstack_pool::Ino;
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Errno, Kind, OFlags, SysError};

use super::store::{Sort, When};
use super::{Shared, birth};
use crate::branch::Branch;
use crate::entries::{Entries, Listed};
use crate::inode::mark;
use crate::inode::number::{self, Identity};

/// Marks that are put into the index at once.
const BATCH: usize = 4096;
/// How long a branch that does not answer is left alone.
const PAUSE: Duration = Duration::from_secs(1);

/// What is to be looked through.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    waiting: VecDeque<Job>,
    stopped: bool,
}

/// A directory of a branch, with all that is in it.
#[derive(Debug)]
pub(super) struct Job {
    branch: Weak<Branch>,
    path: Vec<u8>,
}

impl Jobs {
    pub(super) fn add(&mut self, branch: &Arc<Branch>, path: Vec<u8>) {
        self.waiting.push_back(Job { branch: Arc::downgrade(branch), path });
    }

    pub(super) fn take(&mut self) -> Option<Job> {
        self.waiting.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }

    fn concern(&self, branch: &Arc<Branch>) -> bool {
        self.waiting.iter().any(|job| std::ptr::eq(job.branch.as_ptr(), Arc::as_ptr(branch)))
    }
}

/// Marks found and not yet in the index.
#[derive(Default)]
struct Catch {
    files: Vec<(Identity, Ino, u32)>,
    dirs: Vec<(Identity, Ino, u32)>,
}

impl Shared {
    pub(super) fn run(&self, job: Job) {
        let Some(branch) = job.branch.upgrade() else { return };
        match self.look_through(&branch, job.path.clone()) {
            Ok(true) => self.finished(&branch),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, branch = %branch.path.display(), "the branch cannot be looked through for marks now");
                let mut jobs = self.jobs.lock();
                jobs.add(&branch, job.path);
                if !jobs.stopped() {
                    self.wake.wait_for(&mut jobs, PAUSE);
                }
            }
        }
    }

    /// All marks of the branch are known, unless there is more to look through.
    fn finished(&self, branch: &Arc<Branch>) {
        let _making = self.making.lock();
        if self.jobs.lock().concern(branch) {
            return;
        }
        let Some(store) = self.store.load_full() else { return };
        if let Err(error) = store.flush() {
            tracing::error!(%error, "the index is not complete");
            return;
        }
        self.say_covered(&store, branch);
        branch.marks.ask_files.store(false, Relaxed);
        branch.marks.ask_dirs.store(false, Relaxed);
        tracing::info!(branch = %branch.path.display(), objects = store.len().unwrap_or(0), "all marks of the branch are in the index");
    }

    /// False: the pool is being unmounted, or the branch leaves it.
    fn look_through(&self, branch: &Branch, from: Vec<u8>) -> Result<bool, crate::error::OpError> {
        let mut waiting = vec![from];
        let mut caught = Catch::default();
        while let Some(path) = waiting.pop() {
            let opened = branch.ask(|| open_path(branch, &path));
            // (One that has left answers that nothing is there.)
            if self.jobs.lock().stopped() || branch.is_gone() {
                return Ok(false);
            }
            let dir = match opened {
                Err(error)
                    if matches!(
                        error.errno(),
                        Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::XDEV
                    ) =>
                {
                    continue;
                }
                opened => opened?,
            };
            let mut entries = Entries::of(branch, dir.as_fd())?;
            while let Some(Listed { kind, name, .. }) = entries.next()? {
                let is_dir = match kind {
                    Some(kind) => kind == Kind::Dir,
                    None => sys::at::stat(dir.as_fd(), &name).is_ok_and(|stat| stat.is_dir()),
                };
                if is_dir || branch.asks_marks() {
                    caught.look(branch, dir.as_fd(), &name, is_dir)?;
                }
                if is_dir {
                    let mut below = path.clone();
                    if !below.is_empty() {
                        below.push(b'/');
                    }
                    below.extend_from_slice(name.to_bytes());
                    waiting.push(below);
                }
                if caught.files.len() + caught.dirs.len() >= BATCH {
                    self.keep(&mut caught);
                }
            }
        }
        self.keep(&mut caught);
        Ok(true)
    }

    fn keep(&self, caught: &mut Catch) {
        for (sort, rows) in [(Sort::File, &mut caught.files), (Sort::Dir, &mut caught.dirs)] {
            if !rows.is_empty() {
                self.put(When::Soon, sort, rows);
                rows.clear();
            }
        }
    }
}

impl Catch {
    fn look(
        &mut self,
        branch: &Branch,
        dir: BorrowedFd<'_>,
        name: &std::ffi::CStr,
        is_dir: bool,
    ) -> Result<(), crate::error::OpError> {
        let which = if is_dir { mark::DIR } else { mark::FILE };
        if !branch.ask(|| mark::is_there(On::Name(dir, name), which))? {
            return Ok(());
        }
        let Ok(stat) = sys::at::stat(dir, name) else { return Ok(()) };
        let natural = number::number(branch, stat.dev, stat.ino);
        let Some(id) = mark::get(On::Name(dir, name), which, stat.ino) else { return Ok(()) };
        let rows = if is_dir { &mut self.dirs } else { &mut self.files };
        rows.push((id, natural, birth(&stat)));
        Ok(())
    }
}

/// The directory at `path` below the branch's root, which may be longer than a path can be.
pub(crate) fn open_path(branch: &Branch, path: &[u8]) -> Result<OwnedFd, SysError> {
    let mut dir = sys::at::reopen(branch.root().as_fd(), OFlags::PATH | OFlags::DIRECTORY)?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let name = CString::new(name).map_err(|_| SysError { call: sys::Call::Open, errno: Errno::INVAL })?;
        dir = sys::at::open_dir(dir.as_fd(), &name, branch.mounts)?;
    }
    Ok(dir)
}
