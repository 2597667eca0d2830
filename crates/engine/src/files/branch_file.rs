//! Place of an open file, and the order in which threads wait for it.
//!
//! A thread that makes a call on the file shares its place meanwhile; the thread that exchanges the descriptor has it
//! exclusively, for a moment. Either may be stuck in a branch that hangs: a thread that waits for another checks it. A file
//! that is about to be moved can be read, and not changed (`departure.rs`).

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

use fsstack_branch::admin_state::OpenFileRef;
use fsstack_branch::branch::Branch;
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::holder::ThreadInCalls;
use fsstack_branch::health::reply_takeover;
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_pool::BranchIx;
use fsstack_sync::atomic::Ordering::SeqCst;
use fsstack_sync::ranked::{HeldRank, PLACED};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use fsstack_sys as sys;

use super::departure::{Departure, DepartureOutcome};
use super::{Access, LOOKS, MAPPED_LOOK_PAUSE, OpenFile, OpenedObject};

/// How long one attempt to have a file alone lasts.
pub(super) const FILE_LOCK_ATTEMPT: Duration = Duration::from_millis(20);
/// How long an attempt to have a file alone becomes: meanwhile callers that share the file wait.
const LONGEST_FILE_LOCK_ATTEMPT: Duration = Duration::from_secs(1);
/// Timeout of waiting for other threads that hold the file, and may be stuck on a mount that was replaced.
pub(super) const OLD_MOUNT_TIMEOUT: Duration = Duration::from_secs(2);

/// Where an open file is.
#[derive(Debug)]
pub struct BranchFile {
    /// The branch.
    pub branch: OpenFileRef,
    /// The file there.
    pub fd: MountedFd,
    /// Access that `fd` allows.
    pub access: Access,
    /// The object that `fd` is; asked for when it is wanted, if the file has come here since it was opened.
    pub(super) object: OnceLock<OpenedObject>,
    /// The move that the file waits for: until it is over the file is not changed.
    pub(super) departure: Option<Arc<Departure>>,
}

/// A file's place, shared with other calls on the file.
#[derive(Debug)]
pub(crate) struct SharedFile<'a> {
    placed: RwLockReadGuard<'a, BranchFile>,
    _rank: HeldRank<PLACED>,
}

impl Deref for SharedFile<'_> {
    type Target = BranchFile;

    fn deref(&self) -> &BranchFile {
        &self.placed
    }
}

/// A file's place, held exclusively. Changes are published when this drops.
#[derive(Debug)]
pub(crate) struct ExclusiveFile<'a> {
    placed: RwLockWriteGuard<'a, BranchFile>,
    _rank: HeldRank<PLACED>,
    file: &'a OpenFile,
}

impl Deref for ExclusiveFile<'_> {
    type Target = BranchFile;

    fn deref(&self) -> &BranchFile {
        &self.placed
    }
}

impl DerefMut for ExclusiveFile<'_> {
    fn deref_mut(&mut self) -> &mut BranchFile {
        &mut self.placed
    }
}

impl Drop for ExclusiveFile<'_> {
    fn drop(&mut self) {
        let branch = self.placed.branch.branch();
        let mut at = self.file.at.lock();
        if !Arc::ptr_eq(&at, branch) {
            *at = branch.clone();
        }
        drop(at);
        self.file.writable.store(self.placed.access.writes(), SeqCst);
        *self.file.alone.lock() = None;
    }
}

/// Request to an open file to leave a full branch.
pub(crate) enum MoveRequest {
    /// It has left already.
    Gone,
    /// It waits for this move, which another caller ordered.
    UnderWay(Arc<Departure>),
    /// It waits for this move, which the caller is to order.
    Ordered(Arc<Departure>),
}

/// Identity of a file's descriptor and of the one that replaces it: that is opened first, without blocking the file, as its
/// branch may hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FdOrigin {
    /// The branch that it is on.
    pub(crate) branch: BranchIx,
    /// Access that it allows.
    pub(crate) access: Access,
    /// Which mount of the branch it was opened on.
    pub(crate) mount_generation: u32,
}

/// Descriptor of a file that has, or is in place of, another one: to be closed.
pub(super) struct ClosedFd {
    pub(super) fd: MountedFd,
    /// It was opened to take the other's place, and did not.
    pub(super) is_new: bool,
}

impl BranchFile {
    pub(crate) fn was(&self) -> FdOrigin {
        FdOrigin { branch: self.branch.ix, access: self.access, mount_generation: self.fd.mount_generation }
    }

    /// The file is `fd`, open for `access`, on the branch `mount_root` from now on: what it was.
    pub(crate) fn arrive(&mut self, mount_root: OpenFileRef, fd: MountedFd, access: Access) -> MountedFd {
        self.branch = mount_root;
        (self.access, self.object, self.departure) = (access, OnceLock::new(), None);
        std::mem::replace(&mut self.fd, fd)
    }

    /// The object that it is. None if the branch does not tell, or was mounted again since.
    pub(crate) fn object(&self) -> Option<OpenedObject> {
        let (branch, fd) = (&self.branch, &self.fd);
        if fd.mount_generation != branch.mount_generation() {
            return None;
        }
        if let Some(object) = self.object.get() {
            return Some(*object);
        }
        let stat = branch.ask(|| branch.stat_generation(fd.as_fd(), c"")).ok()?;
        Some(*self.object.get_or_init(|| OpenedObject::of(&stat)))
    }

    /// Whether a mapping made by passthrough may be alive. The file is open by this descriptor only, as far as the daemon
    /// knows. Where that is unknown, it may.
    pub(super) fn may_be_mapped(&self) -> bool {
        if self.access != Access::Name {
            return may_be_mapped(&self.branch, self.fd.as_fd());
        }
        self.open_to_read().map_or(true, |fd| may_be_mapped(&self.branch, fd.as_fd()))
    }

    /// The file once more, to read it; EAGAIN if another program's lease is in the way.
    pub(super) fn open_to_read(&self) -> Result<MountedFd> {
        let opened = self.branch.ask(|| sys::at::reopen(self.fd.as_fd(), Access::Read.flags()));
        opened.map(|fd| self.fd.opened(fd))
    }
}

/// Whether the file `fd` on `branch` may be mapped: another process has it open, or that is unknown.
pub(crate) fn may_be_mapped(branch: &Branch, fd: BorrowedFd<'_>) -> bool {
    let elsewhere = || branch.ask(|| sys::file::is_open_elsewhere(fd)).unwrap_or(true);
    // The kernel tells of a close before it closes the branch's file.
    (1..LOOKS).all(|_| {
        elsewhere()
            && reply_takeover::aside(|| {
                fsstack_sync::thread::sleep(MAPPED_LOOK_PAUSE);
                true
            })
    }) && elsewhere()
}

impl OpenFile {
    /// Its place. Waits aside for the exclusive holder.
    ///
    /// # Errors
    /// EIO if that thread does not come back from a branch that hangs.
    pub(super) fn placed(&self) -> Result<SharedFile<'_>> {
        self.share(HeldRank::in_order(), RwLock::try_read, RwLock::try_read_for)
    }

    /// Like [`Self::placed`], but not held back by threads that wait for exclusive access. Two files may be held so at once.
    pub(crate) fn held(&self) -> Result<SharedFile<'_>> {
        self.share(HeldRank::one_more(), RwLock::try_read_recursive, RwLock::try_read_recursive_for)
    }

    fn share<'a>(
        &'a self,
        rank: HeldRank<PLACED>,
        at_once: impl Fn(&'a RwLock<BranchFile>) -> Option<RwLockReadGuard<'a, BranchFile>>,
        within: impl Fn(&'a RwLock<BranchFile>, Duration) -> Option<RwLockReadGuard<'a, BranchFile>>,
    ) -> Result<SharedFile<'a>> {
        if let Some(placed) = at_once(&self.placed) {
            return Ok(SharedFile { placed, _rank: rank });
        }
        reply_takeover::aside(|| {
            loop {
                if let Some(placed) = within(&self.placed, FILE_LOCK_ATTEMPT) {
                    return Ok(SharedFile { placed, _rank: rank });
                }
                self.check_holder()?;
            }
        })
    }

    /// # Errors
    /// EIO if the thread that has the place alone may never come back.
    fn check_holder(&self) -> Result<()> {
        let is_stuck = self.alone.lock().as_ref().is_some_and(ThreadInCalls::is_stuck);
        if is_stuck { Err(OpError::UNSURE) } else { Ok(()) }
    }

    /// Where it is, for a change of the file by `take`: waits aside until the file is not about to be moved.
    ///
    /// # Errors
    /// Those of `take`; EIO if the mover hangs with the names half exchanged.
    pub(crate) fn settled<'a>(
        &'a self,
        take: impl Fn(&'a Self) -> Result<SharedFile<'a>>,
    ) -> Result<SharedFile<'a>> {
        loop {
            let placed = take(self)?;
            let departure = placed.departure.as_ref().filter(|departure| !departure.is_over()).cloned();
            let Some(departure) = departure else { return Ok(placed) };
            departure.yields();
            drop(placed);
            if reply_takeover::aside(|| departure.wait(|| ())) == DepartureOutcome::Unknown {
                return Err(OpError::UNSURE);
            }
        }
    }

    /// Source for a mover: the file's place, and one more descriptor of it, which needs no lock.
    ///
    /// # Errors
    /// As [`Self::placed`]; no descriptor is left.
    pub(crate) fn source(&self) -> Result<(FdOrigin, Arc<Branch>, MountedFd)> {
        let placed = self.placed()?;
        let source = placed.fd.one_more().map_err(OpError::Sys)?;
        Ok((placed.was(), placed.branch.branch().clone(), source))
    }

    /// The file is to leave the branch `full`: from now on it is not changed until the move is over.
    ///
    /// # Errors
    /// The errors of [`Self::hold_exclusively`].
    pub(crate) fn leave(&self, full: BranchIx) -> Result<MoveRequest> {
        let mut placed = self.hold_exclusively()?;
        if placed.branch.ix != full {
            return Ok(MoveRequest::Gone);
        }
        if let Some(departure) = &placed.departure {
            departure.yields();
            if !departure.is_over() {
                return Ok(MoveRequest::UnderWay(departure.clone()));
            }
        }
        let departure = Arc::new(Departure::ordered());
        placed.departure = Some(departure.clone());
        Ok(MoveRequest::Ordered(departure))
    }

    /// Like [`Self::leave`], as one of a batch; None where that would have to wait, or has left or is leaving.
    pub(crate) fn leave_in_batch(&self, from: BranchIx) -> Option<Arc<Departure>> {
        let mut placed = self.try_hold_exclusively()?;
        let is_leaving = placed.departure.as_ref().is_some_and(|departure| !departure.is_over());
        if placed.branch.ix != from || is_leaving {
            return None;
        }
        let departure = Arc::new(Departure::in_batch());
        placed.departure = Some(departure.clone());
        Some(departure)
    }

    /// Which mount of its branch it was opened on; None while it is being moved.
    pub(crate) fn mount_generation(&self) -> Option<u32> {
        self.placed.try_read_recursive().map(|placed| placed.fd.mount_generation)
    }

    /// Its branch, and the object there. None while it is being moved, if the branch does not tell, or was mounted again since.
    pub(crate) fn object_there(&self) -> Option<(BranchIx, OpenedObject)> {
        let placed = self.placed.try_read_recursive()?;
        let object = placed.object()?;
        Some((placed.branch.ix, object))
    }

    /// Closes `last`, the file when its last handle is closed.
    pub(crate) fn dispose(last: Arc<Self>) {
        let branch = last.branch();
        let mount_generation = last.mount_generation().unwrap_or_else(|| branch.mount_generation());
        // A local branch is in use until the file is closed, which may take the time of freeing its blocks.
        if let Some(placed) = last.placed.try_read_recursive().filter(|_| branch.is_remote()) {
            placed.branch.move_out();
        }
        branch.dispose(mount_generation, last);
    }

    /// The file stays where it is until the guard drops, and a move of it is called off: a name of it is about to come or go.
    ///
    /// # Errors
    /// EIO if the mover hangs with the names half exchanged.
    pub(crate) fn hold(&self) -> Result<SharedFile<'_>> {
        let held = self.held()?;
        if let Some(departure) = &held.departure {
            departure.call_off(DepartureOutcome::TryAgain);
        }
        Ok(held)
    }

    /// Takes the file exclusively, for a move.
    ///
    /// # Errors
    /// EIO if another holder of the file is stuck in its branch.
    pub(crate) fn hold_exclusively(&self) -> Result<ExclusiveFile<'_>> {
        let rank = HeldRank::in_order();
        let placed = match self.placed.try_write() {
            Some(placed) => placed,
            None => reply_takeover::aside(|| self.wait_for_exclusive())?,
        };
        *self.alone.lock() = Some(ThreadInCalls::here());
        Ok(ExclusiveFile { placed, _rank: rank, file: self })
    }

    /// Like [`Self::hold_exclusively`], if nobody shares it now. A thread may hold many files so, as it waits for none.
    pub(crate) fn try_hold_exclusively(&self) -> Option<ExclusiveFile<'_>> {
        let placed = self.placed.try_write()?;
        *self.alone.lock() = Some(ThreadInCalls::here());
        Some(ExclusiveFile { placed, _rank: HeldRank::unordered(), file: self })
    }

    fn wait_for_exclusive(&self) -> Result<RwLockWriteGuard<'_, BranchFile>> {
        let (came, mut attempt) = (Instant::now(), FILE_LOCK_ATTEMPT);
        loop {
            if let Some(alone) = self.placed.try_write_for(attempt) {
                return Ok(alone);
            }
            self.check_waiting(came)?;
            // Calls that are longer than the attempt would follow each other for ever.
            attempt = (attempt * 2).min(LONGEST_FILE_LOCK_ATTEMPT);
        }
    }

    /// The calling thread copies between this file and another one until the guard drops.
    pub(crate) fn copying_here(&self) -> CopyingHere<'_> {
        let here = ThreadInCalls::here();
        self.copying.lock().push(here.clone());
        CopyingHere { file: self, here }
    }

    /// # Errors
    /// EIO if a holder waited for since `came` is stuck in its branch, or in that of another file.
    pub(super) fn check_waiting(&self, came: Instant) -> Result<()> {
        let Some(placed) = self.placed.try_read_recursive() else { return self.check_holder() };
        placed.branch.check_open()?;
        if self.copying.lock().iter().any(ThreadInCalls::is_stuck) {
            return Err(OpError::UNSURE);
        }
        if placed.fd.mount_generation != placed.branch.mount_generation()
            && came.elapsed() > OLD_MOUNT_TIMEOUT
        {
            return Err(placed.branch.not_waited_for());
        }
        Ok(())
    }

    /// Its descriptor, if its branch was mounted again since.
    ///
    /// # Errors
    /// The branch is closed: EIO.
    pub(crate) fn stale(&self) -> Result<Option<FdOrigin>> {
        let placed = self.placed()?;
        if placed.fd.mount_generation == placed.branch.mount_generation() {
            return Ok(None);
        }
        placed.branch.check_open()?;
        Ok(Some(placed.was()))
    }

    /// Puts `fd`, which is good for `access`, in the place of the descriptor that `was` there; not if the file was moved or another
    /// came first.
    ///
    /// # Errors
    /// The errors of [`Self::hold_exclusively`].
    pub(crate) fn replace(&self, was: FdOrigin, access: Access, fd: MountedFd) -> Result<()> {
        let (branch, gone) = self.put(was, access, fd)?; // a close may hang too
        branch.dispose(gone.fd.mount_generation, gone.fd);
        Ok(())
    }

    /// Like [`Self::replace`]: returns the branch and the descriptor to close.
    pub(super) fn put(
        &self,
        was: FdOrigin,
        access: Access,
        fd: MountedFd,
    ) -> Result<(Arc<Branch>, ClosedFd)> {
        let mut placed = self.hold_exclusively()?;
        let is_new = placed.was() != was;
        let gone = if is_new {
            ClosedFd { fd, is_new }
        } else {
            (placed.access, placed.object) = (access, OnceLock::new());
            let gone = std::mem::replace(&mut placed.fd, fd);
            self.set_noatime_again(&placed.branch, &placed);
            ClosedFd { fd: gone, is_new }
        };
        Ok((placed.branch.branch().clone(), gone))
    }
}

/// A thread that copies between a file and another one.
pub(crate) struct CopyingHere<'a> {
    file: &'a OpenFile,
    here: ThreadInCalls,
}

impl Drop for CopyingHere<'_> {
    fn drop(&mut self) {
        let mut copying = self.file.copying.lock();
        if let Some(at) = copying.iter().position(|thread| thread.is(&self.here)) {
            copying.swap_remove(at);
        }
    }
}
