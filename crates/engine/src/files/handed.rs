//! Open files as rows of the state that one program hands to the next (`handover`).

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fsstack_branch::admin_state::OpenFileRef;
use fsstack_branch::error::OpError;
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_pool::{BranchIx, Handle};
use fsstack_sync::atomic::Ordering::{Relaxed, SeqCst};
use fsstack_sys::{Call, Errno, SysError};
use serde::{Deserialize, Serialize};

use super::decision::{PathDecision, StackedReason};
use super::lock_owner::LockOwner;
use super::route::{Backings, Route, Writer};
use super::{Access, OpenFile};
use crate::settings::Settings;

/// A name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NameRow(Box<[u8]>);

impl NameRow {
    pub(crate) fn of(name: &[u8]) -> Self {
        Self(name.into())
    }

    /// The name; None if it has a zero byte.
    pub(crate) fn name(&self) -> Option<CString> {
        CString::new(&*self.0).ok()
    }
}

/// A descriptor by its number, and whether it is on the mount of its branch that is there now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FdRow {
    pub(crate) fd: i32,
    pub(crate) is_current: bool,
}

impl FdRow {
    /// Mount generation of the descriptor in the next program, which begins to count anew.
    pub(crate) fn mount_generation(self) -> u32 {
        generation(self.is_current)
    }
}

/// Mount generation in the next program of what was of the current one, or of an earlier one.
pub(crate) fn generation(is_current: bool) -> u32 {
    if is_current { 0 } else { u32::MAX - 1 }
}

/// Why rows cannot be taken over: one sentence.
pub(crate) type Unusable = String;

/// The open file of an inode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OpenFileRow {
    /// The branch's slot.
    pub(crate) branch: u16,
    pub(crate) fd: FdRow,
    access: Access,
    /// The inode whose open file it is, by its place in the list, and the number of handles.
    pub(crate) of: Option<(usize, usize)>,
    decided: Option<Route>,
    because: Option<DecisionRow>,
    backing: Option<u32>,
    writers: Vec<Writer>,
    strips: u32,
    immutable: bool,
    append_only: bool,
    touched: bool,
    unsynced: bool,
    errors: ErrorsRow,
    pub(crate) lock_owners: Vec<LockOwnerRow>,
    has_atime_reader: bool,
    is_noatime: bool,
}

/// Why it goes as it goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct DecisionRow {
    route: Route,
    set: String,
    rule: Option<NameRow>,
    reason: Option<StackedReason>,
}

/// Write-back errors that handles have not got yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ErrorsRow {
    pub(super) reported: u64,
    /// Branch and errno of the last one.
    pub(super) last: Option<(u16, i32)>,
    pub(super) answered: Vec<(u64, u64)>,
}

impl ErrorsRow {
    pub(super) fn of(reported: u64, last: Option<OpError>, answered: &HashMap<Handle, u64>) -> Self {
        let last = last.map(|error| match error {
            OpError::Branch { branch, sys } => (branch.0, sys.errno.raw_os_error()),
            OpError::Sys(_) | OpError::NoBranch(_) | OpError::Refused(_) => {
                (u16::MAX, error.errno().raw_os_error())
            }
        });
        Self { reported, last, answered: answered.iter().map(|(handle, count)| (handle.0, *count)).collect() }
    }

    pub(super) fn last(&self) -> Option<OpError> {
        let (branch, errno) = self.last?;
        let sys = SysError::new(Call::Fsync, Errno::from_raw_os_error(errno));
        Some(OpError::Branch { branch: BranchIx(branch), sys })
    }
}

/// An owner of locks on the branch's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LockOwnerRow {
    pub(crate) owner: u64,
    pub(crate) fd: FdRow,
    pub(crate) by: Vec<u64>,
}

/// Gives the number of a descriptor that is handed over.
pub(crate) type Note<'a> = dyn FnMut(BorrowedFd<'_>) -> std::io::Result<i32> + 'a;
/// Takes a descriptor that was handed over.
pub(crate) type Take<'a> = dyn FnMut(i32) -> Result<OwnedFd, Unusable> + 'a;

impl OpenFile {
    /// Its row, of which `of` is a part.
    ///
    /// # Errors
    /// It is being moved, or no descriptor is left.
    pub(crate) fn row(
        &self,
        of: Option<(usize, usize)>,
        note: &mut Note<'_>,
    ) -> std::io::Result<OpenFileRow> {
        let busy = || std::io::Error::from(std::io::ErrorKind::ResourceBusy);
        let placed = self.placed.try_read_recursive().ok_or_else(busy)?;
        let current = placed.branch.mount_generation();
        let row = |fd: i32, generation: u32| FdRow { fd, is_current: generation == current };
        let mut lock_owners = Vec::new();
        for (owner, lock) in self.lock_owners.lock().iter().filter(|(_, lock)| lock.has_locks()) {
            let (fd, generation, by) = lock.parts();
            lock_owners.push(LockOwnerRow { owner: *owner, fd: row(note(fd)?, generation), by });
        }
        let (has_atime_reader, is_noatime) = self.noatime.row();
        let (decided, because, backing, writers) = {
            let io_mode = self.io_mode.lock();
            let because = io_mode.because.as_ref().map(DecisionRow::of);
            (io_mode.decided, because, io_mode.backing, io_mode.writers.to_vec())
        };
        Ok(OpenFileRow {
            branch: placed.branch.ix.0,
            fd: row(note(placed.fd.as_fd())?, placed.fd.mount_generation),
            access: placed.access,
            of,
            decided,
            because,
            backing,
            writers,
            strips: self.strips.load(SeqCst),
            immutable: self.immutable.load(Relaxed),
            append_only: self.append_only.load(Relaxed),
            touched: self.touched.load(Relaxed),
            unsynced: self.has_unsynced(),
            errors: self.write_back_errors.row(),
            lock_owners,
            has_atime_reader,
            is_noatime,
        })
    }

    /// The open file that `row` describes, on `branch`.
    ///
    /// # Errors
    /// A descriptor is not there.
    pub(crate) fn of_row(
        row: &OpenFileRow,
        branch: OpenFileRef,
        (settings, backings): (&Settings, Arc<dyn Backings>),
        take: &mut Take<'_>,
    ) -> Result<Self, Unusable> {
        let on = branch.branch().clone();
        let mut taken =
            |row: FdRow| take(row.fd).map(|fd| MountedFd::handed_over(fd, row.mount_generation(), &on));
        let fd = taken(row.fd)?;
        let file = Self::opened(branch, fd, row.access, backings);
        {
            let mut io_mode = file.io_mode.lock();
            io_mode.decided = row.decided;
            io_mode.backing = row.backing;
            io_mode.writers = row.writers.iter().copied().collect();
            io_mode.because = row.because.as_ref().and_then(|because| because.decision(settings));
        }
        file.strips.store(row.strips, SeqCst);
        file.immutable.store(row.immutable, Relaxed);
        file.append_only.store(row.append_only, Relaxed);
        file.touched.store(row.touched, Relaxed);
        if row.unsynced {
            file.note_written();
        }
        file.write_back_errors.take_row(&row.errors);
        {
            let mut owners = file.lock_owners.lock();
            for owner in &row.lock_owners {
                let lock = LockOwner::of(taken(owner.fd)?, &owner.by);
                owners.insert(owner.owner, lock);
            }
        }
        file.noatime.take_row(row.has_atime_reader, row.is_noatime);
        Ok(file)
    }
}

impl OpenFile {
    /// The kernel has it open so already, each with its writer; `because` is what would be decided now.
    pub(crate) fn take_opens(
        &self,
        because: PathDecision,
        opens: impl Iterator<Item = (Route, Option<Writer>)>,
    ) {
        let mut io_mode = self.io_mode.lock();
        for (route, writer) in opens {
            let rank = |route: Route| match route {
                Route::Passthrough(_) => 3,
                Route::DirectBeside(_) => 2,
                Route::Cached => 1,
                Route::Direct => 0,
            };
            // Several modes may be open at once; the others go beside the one that came first.
            if io_mode.decided.is_none_or(|decided| rank(decided) < rank(route)) {
                io_mode.decided = Some(route);
            }
            if let Route::Passthrough(id) | Route::DirectBeside(id) = route {
                io_mode.backing = Some(id);
            }
            if let (Route::Passthrough(_), Some(writer)) = (route, writer) {
                io_mode.writers.push(writer);
            }
        }
        let route = io_mode.decided.unwrap_or(because.route);
        io_mode.because = Some(PathDecision { route, ..because });
    }

    /// Nothing is known of what was written before: the next sync is one.
    pub(crate) fn owes_everything(&self) {
        self.touched.store(true, Relaxed);
        self.note_written();
    }
}

impl DecisionRow {
    fn of(decision: &PathDecision) -> Self {
        Self {
            route: decision.route,
            set: decision.set.to_string(),
            rule: decision.rule.as_ref().map(|rule| NameRow::of(rule.dir.path())),
            reason: decision.reason,
        }
    }

    fn decision(&self, settings: &Settings) -> Option<PathDecision> {
        let dir = self.rule.as_ref().and_then(NameRow::name);
        let rule = dir.and_then(|dir| settings.rules.find(dir.to_bytes())).cloned();
        Some(PathDecision { route: self.route, set: self.set.parse().ok()?, rule, reason: self.reason })
    }
}
