//! Open files.
//!
//! All handles of an inode share one open file, whose descriptor on the branch can be exchanged under its own lock: readers
//! and writers hold it shared, a move holds it exclusively.

mod access;
mod branch_file;
pub(crate) mod capability;
pub mod decision;
pub(crate) mod departure;
mod dirty;
mod fixed;
pub(crate) mod handed;
pub(crate) mod lock_owner;
pub mod noatime;
pub mod route;
pub(crate) mod write_back_errors;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fsstack_branch::admin_state::OpenFileRef;
use fsstack_branch::branch::Branch;
use fsstack_branch::error::Result;
use fsstack_branch::health::holder::ThreadInCalls;
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_identity::number;
use fsstack_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use fsstack_sync::ranked::{IO_MODE, OWNERS, Ranked};
use fsstack_sync::{Mutex, RwLock};
use fsstack_sys::{self as sys, OFlags, Stat, SysError};
use serde::{Deserialize, Serialize};

pub use access::Access;
pub(crate) use access::is_refused;
pub use branch_file::BranchFile;
pub(crate) use branch_file::{ExclusiveFile, FdOrigin, MoveRequest, SharedFile, may_be_mapped};
use branch_file::{FILE_LOCK_ATTEMPT, OLD_MOUNT_TIMEOUT};
use capability::has_capability;
use decision::{PathDecision, StackedReason};
use dirty::DirtyFlag;
pub(crate) use dirty::check_not_given_up;
use lock_owner::LockOwner;
use noatime::NoatimeState;
use route::{Backings, IoMode, Known, Route, Unknown, Writer, register};
use write_back_errors::WriteBackErrors;

/// Set-uid, set-gid.
pub(crate) const SET_ID: u32 = 0o6000;

/// Reason that a file is not moved while the kernel reads or writes it.
pub(crate) const WRITTEN_PAST: &str = "it is open by passthrough, past the daemon";
/// Reason that a file is not moved after the kernel has read or written it.
pub(crate) const MAPPED: &str =
    "it may be mapped: a program that had it open by passthrough may store into it";
/// Tries for a file that seems to be mapped: a descriptor of it may be about to be closed.
const LOOKS: usize = 4;
/// Pause between two looks at a file that seems to be mapped.
const MAPPED_LOOK_PAUSE: Duration = Duration::from_millis(1);

/// The open file of an inode.
#[derive(Debug)]
pub struct OpenFile {
    /// Order: after the inode's state; before `io_mode`.
    placed: RwLock<BranchFile>,
    /// The thread that has `placed` alone.
    alone: Mutex<Option<ThreadInCalls>>,
    /// Threads that share `placed` while they may be in calls to another file's branch.
    copying: Mutex<Vec<ThreadInCalls>>,
    /// The branch that it is on, held for moments, and whether the descriptor is good for writing.
    at: Mutex<Arc<Branch>>,
    writable: AtomicBool,
    /// How the kernel reaches the bytes.
    io_mode: Ranked<IoMode, IO_MODE>,
    /// The file has set-uid or set-gid bits, or a file capability, which writes by others strip.
    /// 0: nothing is to be stripped. Otherwise the number of reasons so far.
    strips: AtomicU32,
    /// `chattr +i`, and `+a`, when it was opened or since: for opens that the branch is not asked for.
    immutable: AtomicBool,
    append_only: AtomicBool,
    /// By how much less than the kernel believes the file has, as others have cut it: an append does not wait for these bytes.
    pub(crate) cut_off: AtomicU64,
    /// The daemon changed the content since the open, or since the last successful fsync.
    touched: AtomicBool,
    unsynced: DirtyFlag,
    /// Fsyncs under way: what they may report is not covered by the two above.
    syncing: AtomicU32,
    /// Write-back errors of the branch, and the handles that got them.
    pub(crate) write_back_errors: WriteBackErrors,
    /// Owners of locks on the branch, each with an open file description of its own.
    pub(crate) lock_owners: Ranked<HashMap<u64, LockOwner>, OWNERS>,
    why: Mutex<Option<&'static str>>,
    noatime: NoatimeState,
    backings: Arc<dyn Backings>,
}

/// A file as its branch knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenedObject {
    /// Device and inode number.
    pub(crate) at: (u64, u64),
    /// Its own generation: that of its number in the pool is another one after a move.
    pub(crate) generation: u32,
}

impl OpenedObject {
    /// The file that `stat` describes.
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { at: (stat.dev, stat.ino), generation: number::generation(stat) }
    }
}

impl OpenFile {
    /// `fd`, just opened on `branch`; `stat` is its attributes.
    pub fn new(
        branch: OpenFileRef,
        fd: MountedFd,
        access: Access,
        stat: &Stat,
        backings: Arc<dyn Backings>,
    ) -> Self {
        let mut file = Self::opened(branch, fd, access, backings);
        *file.strips.get_mut() = u32::from(stat.mode & SET_ID != 0);
        *file.immutable.get_mut() = stat.is_immutable();
        *file.append_only.get_mut() = stat.is_append_only() || access == Access::Append;
        file.placed.get_mut().object = OpenedObject::of(stat).into();
        file
    }

    /// `fd`, just opened on `branch`; nothing is known of the file.
    fn opened(branch: OpenFileRef, fd: MountedFd, access: Access, backings: Arc<dyn Backings>) -> Self {
        let at = Mutex::new(branch.branch().clone());
        Self {
            placed: RwLock::new(BranchFile { branch, fd, access, object: OnceLock::new(), departure: None }),
            alone: Mutex::default(),
            copying: Mutex::default(),
            at,
            writable: AtomicBool::new(access.writes()),
            io_mode: Ranked::default(),
            strips: AtomicU32::new(0),
            immutable: AtomicBool::new(false),
            append_only: AtomicBool::new(false),
            cut_off: AtomicU64::new(0),
            touched: AtomicBool::new(false),
            unsynced: DirtyFlag::default(),
            syncing: AtomicU32::new(0),
            write_back_errors: WriteBackErrors::default(),
            lock_owners: Ranked::default(),
            why: Mutex::default(),
            noatime: NoatimeState::default(),
            backings,
        }
    }

    /// Whether the branch may still have an unreported error of earlier writes: by the kernel past the daemon, or through
    /// the daemon.
    pub(crate) fn may_have_unreported_error(&self) -> bool {
        // An fsync counts itself before it takes the two marks away, so it is looked for after them.
        self.is_past_us() || self.touched.load(SeqCst) || self.has_unsynced() || self.syncing.load(SeqCst) > 0
    }

    /// Runs a call on the file where it is; its error carries the branch.
    ///
    /// # Errors
    /// The call's error.
    pub fn ask<T>(&self, call: impl FnOnce(BorrowedFd<'_>) -> Result<T, SysError>) -> Result<T> {
        let placed = self.readable()?;
        placed.branch.ask(|| call(placed.fd.as_fd()))
    }

    /// Like [`Self::ask`], for a call that changes the file.
    ///
    /// # Errors
    /// The call's error.
    pub(crate) fn change<T>(
        &self,
        kind: CallKind,
        call: impl FnOnce(BorrowedFd<'_>) -> Result<T, SysError>,
    ) -> Result<T> {
        let placed = self.settled(Self::readable)?;
        check_not_given_up()?;
        placed.branch.ask_for(kind, || call(placed.fd.as_fd()))
    }

    /// Its attributes.
    ///
    /// # Errors
    /// The branch's error.
    pub fn stat(&self) -> Result<Stat> {
        let placed = self.placed()?;
        placed.branch.ask(|| sys::at::stat_fd(placed.fd.as_fd()))
    }

    /// Like [`Self::ask`], for calls that may take long on a branch in good order.
    ///
    /// # Errors
    /// The call's error.
    pub fn ask_long<T>(&self, call: impl FnOnce(BorrowedFd<'_>) -> Result<T, SysError>) -> Result<T> {
        let placed = self.readable()?;
        placed.branch.ask_long(|| call(placed.fd.as_fd()))
    }

    /// Like [`Self::ask_long`], inside a call on another open file, or on this one: does not wait for a thread that
    /// waits to move the file, which may be waiting for the outer call. For a file that is written, or calls that need its
    /// name only.
    ///
    /// # Errors
    /// The call's error.
    pub fn ask_inside<T>(&self, call: impl FnOnce(BorrowedFd<'_>) -> Result<T, SysError>) -> Result<T> {
        let placed = self.held()?;
        placed.branch.ask_inside(|| call(placed.fd.as_fd()))
    }

    /// Notes why the file was not moved when its branch was full; true if that is news.
    pub(crate) fn set_why(&self, why: &'static str) -> bool {
        self.why.lock().replace(why) != Some(why)
    }

    /// Reason that the file was not moved when its branch was full, or would not be.
    pub fn why(&self) -> Option<&'static str> {
        let reported = *self.why.lock();
        // A passthrough writer gets ENOSPC from the kernel, without the daemon.
        let passed = || (!self.io_mode.lock().writers.is_empty()).then_some(WRITTEN_PAST);
        reported.or_else(passed)
    }

    /// The branch that the file is on now. Waits for no call on it.
    pub fn branch(&self) -> Arc<Branch> {
        self.at.lock().clone()
    }

    /// Makes sure that the descriptor can be written to.
    ///
    /// # Errors
    /// The branch does not open it for writing.
    pub fn make_writable(&self) -> Result<()> {
        self.make_writable_for(OFlags::empty())
    }

    /// Like [`Self::make_writable`], for an open with `flags`: an append-only file can be opened to append, and the branch
    /// itself appends then, whatever offset a write names.
    ///
    /// # Errors
    /// The branch does not open it for writing.
    pub fn make_writable_for(&self, flags: OFlags) -> Result<()> {
        self.touched.store(true, Relaxed);
        loop {
            let placed = self.placed()?;
            if placed.access.writes() {
                return Ok(());
            }
            placed.branch.check_mode()?;
            let was = placed.was();
            let open = |how: Access| {
                let opened = placed.branch.past_leases(how.flags(), |flags| {
                    placed.branch.ask(|| sys::at::reopen(placed.fd.as_fd(), flags))
                });
                opened.map(|fd| (how, placed.fd.opened(fd)))
            };
            let (access, fd) = match open(Access::Write) {
                Err(error) if is_refused(error) && flags.contains(OFlags::APPEND) => {
                    let appends = open(Access::Append)?;
                    self.append_only.store(true, Relaxed); // so it is checked when another handle writes elsewhere
                    appends
                }
                opened => opened?,
            };
            // An open for reading did not check.
            if placed.branch.ask(|| Ok(has_capability(fd.as_fd())))? {
                self.set_strips(true);
            }
            drop(placed);
            self.replace(was, access, fd)?;
        }
    }

    /// Prepares for the loss of a name, maybe the last, by which the file could be opened. A file that cannot be opened now loses
    /// its name all the same: the kernel has it open for its readers.
    pub(crate) fn outlives_name(&self) {
        if let Err(error) = self.readable() {
            tracing::debug!(%error, "an open file that is removed cannot be opened by the daemon");
        }
    }

    /// Makes sure that the descriptor can be read from.
    ///
    /// # Errors
    /// The branch does not open it for reading.
    pub(crate) fn make_readable(&self) -> Result<()> {
        self.readable().map(drop)
    }

    pub(crate) fn readable(&self) -> Result<SharedFile<'_>> {
        loop {
            let placed = self.placed()?;
            if placed.access != Access::Name {
                return Ok(placed);
            }
            let was = placed.was();
            let branch = &placed.branch;
            let fd = branch.past_leases(Access::Read.flags(), |flags| {
                branch.ask(|| sys::at::reopen(placed.fd.as_fd(), flags)).map(|fd| placed.fd.opened(fd))
            })?;
            drop(placed);
            self.replace(was, Access::Read, fd)?;
        }
    }

    /// Writes by others must strip privileges from the file.
    pub fn strips(&self) -> bool {
        self.strips.load(SeqCst) != 0
    }

    /// Reasons for [`Self::stripped`].
    pub(crate) fn reasons_to_strip(&self) -> u32 {
        self.strips.load(SeqCst)
    }

    /// The file was stripped for the reasons up to then; there may be another one since.
    pub(crate) fn stripped(&self, reasons: u32) {
        _ = self.strips.compare_exchange(reasons, 0, SeqCst, SeqCst);
    }

    /// The file's mode or capabilities were changed.
    pub fn set_strips(&self, strips: bool) {
        if strips {
            self.strips.fetch_add(1, SeqCst);
        } else {
            self.strips.store(0, SeqCst);
        }
    }

    /// Decides how the kernel reaches the bytes for one more open, whose wish is `wish`, asked with the decision's lock
    /// held: giving the file a set-id bit looks for its writers under the same lock. A branch that may hang is asked before
    /// that, with the file's place held. `was_past`: it has been open by passthrough.
    pub fn io_mode(&self, wish: impl Fn() -> PathDecision, writer: Option<Writer>, was_past: bool) -> Route {
        let placed = self.placed();
        let mut known = Known { registered: None, mapped: (!was_past).then_some(false) };
        let (route, kept) = loop {
            let unknown = {
                let mut io_mode = self.io_mode.lock();
                match io_mode.join(wish(), writer, known) {
                    Ok(route) => break (route, io_mode.backing),
                    Err(unknown) => unknown,
                }
            };
            match (unknown, &placed) {
                (Unknown::Registered, Ok(placed)) => {
                    known.registered = Some(register(placed, &*self.backings));
                }
                (Unknown::Registered, Err(_)) => known.registered = Some(Err(StackedReason::DoesNotOpen)),
                (Unknown::Mapped, placed) => {
                    known.mapped = Some(placed.as_ref().map_or(true, |placed| placed.may_be_mapped()));
                }
            }
        };
        if let Some(Ok(id)) = known.registered.filter(|id| id.ok() != kept) {
            self.backings.close(id); // another open was faster
        }
        route
    }

    /// One open less, which `route` served.
    pub fn leave_io_mode(&self, route: Route, writer: Option<Writer>) {
        self.io_mode.lock().leave(route, writer);
    }

    /// True if a user other than root and `owner` has the file open for passthrough writes.
    pub fn has_strange_writer(&self, owner: u32) -> bool {
        self.io_mode.lock().writers.iter().any(|writer| writer.is_stranger_to(owner))
    }

    /// Reason for the first open's decision.
    pub fn because(&self) -> Option<PathDecision> {
        self.io_mode.lock().because.clone()
    }

    /// True if any handle is open for writing.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable.load(SeqCst)
    }

    /// True if the kernel reads or writes it, or its mappings, past the daemon.
    pub(crate) fn is_past_us(&self) -> bool {
        matches!(self.route(), Some(Route::Passthrough(_) | Route::DirectBeside(_)))
    }

    /// The route of the first open, if any is open.
    pub fn route(&self) -> Option<Route> {
        self.io_mode.lock().decided
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(id) = self.io_mode.get_mut().backing.take() {
            self.backings.close(id);
        }
    }
}

/// Durability of a write before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Sync {
    /// Data, and the metadata needed to read it (`O_DSYNC`).
    Data,
    /// Data and all metadata (`O_SYNC`).
    All,
}

impl Sync {
    /// From open(2)'s flags.
    pub fn of(flags: OFlags) -> Option<Self> {
        if flags.contains(OFlags::SYNC) {
            Some(Self::All)
        } else if flags.contains(sys::O_DSYNC) {
            Some(Self::Data)
        } else {
            None
        }
    }
}
