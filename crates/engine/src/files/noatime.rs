//! Reads that leave no trace: O_NOATIME, and a pool that is mounted `noatime`.
//!
//! All handles of a file read through one descriptor. As long as all of them read with O_NOATIME, that descriptor leaves the
//! access time alone. From the first handle that updates it until the last close it does not, and O_NOATIME readers beside
//! it use a second descriptor. Where the branch's file system refuses (a daemon without root, another user's file) reads
//! update the access time.
//!
//! Reads by passthrough do not come here: the kernel heeds O_NOATIME there, and of `noatime` the branch's own.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_branch::error::Result;
use fsstack_branch::metrics::BranchCounter;
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_pool::BranchIx;
use fsstack_sync::atomic::{AtomicBool, Ordering::SeqCst};
use fsstack_sync::ranked::{NOATIME, Ranked};
use fsstack_sys::{self as sys, OFlags, SysError};

use super::{Access, BranchFile, OpenFile, may_be_mapped};

/// Objects whose access times do not change by reads through the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoatimeScope {
    /// Files' (`noatime`).
    pub files: bool,
    /// Directories' (`nodiratime`, `noatime`).
    pub directories: bool,
}

/// How a file's descriptors are.
#[derive(Debug, Default)]
pub(super) struct NoatimeState {
    /// A handle is open whose reads must update the access time.
    has_atime_reader: AtomicBool,
    /// Order: after the file's place.
    state: Ranked<NoatimeDescriptors, NOATIME>,
}

#[derive(Debug, Default)]
struct NoatimeDescriptors {
    /// The one that all share leaves the access time alone.
    is_noatime: bool,
    noatime_fd: Option<NoatimeDescriptor>,
}

/// The second descriptor.
#[derive(Debug)]
struct NoatimeDescriptor {
    /// Place of the first descriptor when this was opened.
    on: (BranchIx, u32),
    fd: Arc<MountedFd>,
}

impl NoatimeState {
    /// For another program: whether somebody reads whose reads are to be seen, and whether the shared descriptor leaves the access
    /// time alone.
    pub(super) fn row(&self) -> (bool, bool) {
        (self.has_atime_reader.load(SeqCst), self.state.lock().is_noatime)
    }

    /// Takes over what another program has handed on.
    pub(super) fn take_row(&self, has_atime_reader: bool, is_noatime: bool) {
        self.has_atime_reader.store(has_atime_reader, SeqCst);
        self.state.lock().is_noatime = is_noatime;
    }
}

impl OpenFile {
    /// One more handle reads by the daemon; if it is not `noatime`, its reads are to be seen.
    pub(crate) fn has_reader(&self, noatime: bool) {
        if self.noatime.has_atime_reader.load(SeqCst) {
            return;
        }
        // A handle that cannot get the file's place cannot read it either.
        let Ok(placed) = self.placed() else { return };
        let (mut was, mut is_noatime) = {
            let mut state = self.noatime.state.lock();
            if !noatime {
                self.noatime.has_atime_reader.store(true, SeqCst);
            }
            let is_noatime = noatime && !self.noatime.has_atime_reader.load(SeqCst);
            (std::mem::replace(&mut state.is_noatime, is_noatime), is_noatime)
        };
        // The branch is asked without the lock: another open may have its way meanwhile.
        while was != is_noatime {
            set_noatime(&placed, is_noatime);
            (was, is_noatime) = (is_noatime, self.noatime.state.lock().is_noatime);
        }
    }

    /// Another descriptor is in its place: the second one, which is on what was there `before`, goes.
    pub(crate) fn set_noatime_again(&self, before: &Branch, placed: &BranchFile) {
        let (is_noatime, noatime_fd) = {
            let mut state = self.noatime.state.lock();
            (state.is_noatime, state.noatime_fd.take())
        };
        if let Some(noatime_fd) = noatime_fd {
            before.dispose(noatime_fd.on.1, noatime_fd);
        }
        if is_noatime {
            set_noatime(placed, true);
        }
    }

    /// Like [`may_be_mapped`], of the file's first descriptor `fd`. The second one would count as another process's: it is closed,
    /// and opened again by the next read that needs it.
    pub(crate) fn may_be_mapped(&self, branch: &Branch, fd: BorrowedFd<'_>) -> bool {
        let second = self.noatime.state.lock().noatime_fd.take();
        if let Some(second) = second {
            branch.dispose(second.on.1, second); // (not under the lock)
        }
        may_be_mapped(branch, fd)
    }

    /// Like [`Self::ask`], for reads: `with_descriptor` or not. The bytes are counted.
    ///
    /// # Errors
    /// What the call answered.
    pub(crate) fn ask_to_read(
        &self,
        with_descriptor: bool,
        call: impl FnOnce(BorrowedFd<'_>) -> Result<usize, SysError>,
    ) -> Result<usize> {
        let placed = self.readable()?;
        let read = match with_descriptor {
            true => self.with_descriptor(&placed, call)?,
            false => placed.branch.ask(|| call(placed.fd.as_fd()))?,
        };
        placed.branch.metrics.add(BranchCounter::ReadBytes, read as u64);
        Ok(read)
    }

    /// Runs a call on the file by a descriptor that leaves its access time alone, if there can be one.
    fn with_descriptor<T>(
        &self,
        placed: &BranchFile,
        call: impl FnOnce(BorrowedFd<'_>) -> Result<T, SysError>,
    ) -> Result<T> {
        let noatime_fd =
            if self.noatime.has_atime_reader.load(SeqCst) { self.noatime_fd(placed) } else { None };
        placed.branch.ask(|| call(noatime_fd.as_ref().map_or(placed.fd.as_fd(), |fd| fd.as_fd())))
    }

    fn noatime_fd(&self, placed: &BranchFile) -> Option<Arc<MountedFd>> {
        let on = (placed.branch.ix, placed.fd.mount_generation);
        let known = |state: &NoatimeDescriptors| {
            state
                .noatime_fd
                .as_ref()
                .filter(|noatime_fd| noatime_fd.on == on)
                .map(|noatime_fd| noatime_fd.fd.clone())
        };
        let found = known(&self.noatime.state.lock());
        found.or_else(|| {
            let how = Access::Read.flags() | OFlags::NOATIME;
            let fd = placed.branch.ask(|| sys::at::reopen(placed.fd.as_fd(), how)).ok()?;
            let fd = Arc::new(placed.fd.opened(fd));
            let old = self.noatime.state.lock().noatime_fd.replace(NoatimeDescriptor { on, fd: fd.clone() });
            if let Some(old) = old {
                placed.branch.dispose(old.on.1, old); // (not under the lock)
            }
            Some(fd)
        })
    }
}

fn set_noatime(placed: &BranchFile, noatime: bool) {
    // `O_PATH` descriptors are never read. If O_NOATIME is refused, reads update the access time.
    if placed.access != Access::Name
        && let Err(error) = placed.branch.ask(|| sys::file::set_noatime(placed.fd.as_fd(), noatime))
    {
        tracing::debug!(%error, "O_NOATIME refused: reads update the access time");
    }
}
