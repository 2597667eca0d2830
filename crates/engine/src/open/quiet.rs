//! Reads that leave no trace: O_NOATIME, and a pool that is mounted `noatime`.
//!
//! All handles of a file read through one descriptor. As long as all of them read with O_NOATIME, that descriptor leaves the
//! access time alone. From the first handle that updates it until the last close it does not, and O_NOATIME readers beside
//! it use a second descriptor. Where the branch's file system refuses (a daemon without root, another user's file) reads
//! update the access time.
//!
//! Reads by passthrough do not come here: the kernel heeds O_NOATIME there, and of `noatime` the branch's own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use fsstack_pool::BranchIx;
use fsstack_sys::{self as sys, OFlags, SysError};

use super::{Access, OpenFile, Placed};
use crate::error::Result;
use crate::ranked::{QUIET, Ranked};
use crate::tally::Sum;

/// Objects whose access times do not change by reads through the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Untouched {
    /// Files' (`noatime`).
    pub files: bool,
    /// Directories' (`nodiratime`, `noatime`).
    pub directories: bool,
}

/// How a file's descriptors are.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// Somebody has it open whose reads are to be seen.
    loud: AtomicBool,
    /// Order: after the file's place.
    state: Ranked<State, QUIET>,
}

#[derive(Debug, Default)]
struct State {
    /// The one that all share leaves the access time alone.
    hushed: bool,
    apart: Option<Apart>,
}

/// The second descriptor.
#[derive(Debug)]
struct Apart {
    /// Place of the first descriptor when this was opened.
    on: (BranchIx, u32),
    fd: Arc<OwnedFd>,
}

impl OpenFile {
    /// One more handle reads by the daemon; if it is not `quiet`, its reads are to be seen.
    pub(crate) fn has_reader(&self, quiet: bool) {
        if self.quiet.loud.load(SeqCst) {
            return;
        }
        // (Who cannot have its place cannot read it either.)
        let Ok(placed) = self.placed() else { return };
        let (mut was, mut hushed) = {
            let mut state = self.quiet.state.lock();
            if !quiet {
                self.quiet.loud.store(true, SeqCst);
            }
            let hushed = quiet && !self.quiet.loud.load(SeqCst);
            (std::mem::replace(&mut state.hushed, hushed), hushed)
        };
        // The branch is asked without the lock: another open may have its way meanwhile.
        while was != hushed {
            hush(&placed, hushed);
            (was, hushed) = (hushed, self.quiet.state.lock().hushed);
        }
    }

    /// Another descriptor is in its place: the second one, which is on what was there before, goes.
    pub(crate) fn hush_again(&self, placed: &Placed) {
        let (hushed, apart) = {
            let mut state = self.quiet.state.lock();
            (state.hushed, state.apart.take())
        };
        if let Some(apart) = apart {
            placed.branch.dispose(apart.on.1, apart);
        }
        if hushed {
            hush(placed, true);
        }
    }

    /// Like [`Self::ask`], for reads: `quietly` or not. The bytes are counted.
    ///
    /// # Errors
    /// What the call answered.
    pub(crate) fn ask_to_read(
        &self,
        quietly: bool,
        call: impl FnOnce(BorrowedFd<'_>) -> Result<usize, SysError>,
    ) -> Result<usize> {
        let placed = self.readable()?;
        placed.branch.as_daemon()?;
        let read = match quietly {
            true => self.quietly(&placed, call)?,
            false => placed.branch.ask(|| call(placed.fd.as_fd()))?,
        };
        placed.branch.tally.add(Sum::ReadBytes, read as u64);
        Ok(read)
    }

    /// Runs a call on the file by a descriptor that leaves its access time alone, if there can be one.
    fn quietly<T>(
        &self,
        placed: &Placed,
        call: impl FnOnce(BorrowedFd<'_>) -> Result<T, SysError>,
    ) -> Result<T> {
        let apart = if self.quiet.loud.load(SeqCst) { self.apart(placed) } else { None };
        placed.branch.ask(|| call(apart.as_ref().map_or(placed.fd.as_fd(), |fd| fd.as_fd())))
    }

    fn apart(&self, placed: &Placed) -> Option<Arc<OwnedFd>> {
        let on = (placed.branch.ix, placed.fd.epoch);
        let known =
            |state: &State| state.apart.as_ref().filter(|apart| apart.on == on).map(|apart| apart.fd.clone());
        let found = known(&self.quiet.state.lock());
        found.or_else(|| {
            let how = Access::Read.flags() | OFlags::NOATIME;
            let fd = Arc::new(placed.branch.ask(|| sys::at::reopen(placed.fd.as_fd(), how)).ok()?);
            let old = self.quiet.state.lock().apart.replace(Apart { on, fd: fd.clone() });
            if let Some(old) = old {
                placed.branch.dispose(old.on.1, old); // (not under the lock)
            }
            Some(fd)
        })
    }
}

fn hush(placed: &Placed, quiet: bool) {
    // `O_PATH` descriptors are never read. If O_NOATIME is refused, reads update the access time.
    if placed.access != Access::Name
        && let Err(error) = placed.branch.ask(|| sys::file::set_noatime(placed.fd.as_fd(), quiet))
    {
        tracing::debug!(%error, "O_NOATIME refused: reads update the access time");
    }
}
