//! Administrative state of a branch, which can change while the pool is mounted, and its open-file references.
//!
//! A branch that is being removed first gets no new files, and leaves the pool when no file is open on it. Checking the
//! number of open files and closing the branch to new ones is one atomic step: a later open finds the branch gone.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use arc_swap::ArcSwap;
use fsstack_pool::{BranchMode, BranchSpec, Floor};
use fsstack_sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use fsstack_sync::ranked::{AWAITED, Ranked};
use fsstack_sys as sys;

use crate::branch::Branch;
use crate::error::{OpError, Result};

/// Value of the open-file counter after the branch has left the pool.
const GONE: usize = usize::MAX / 2;

/// Administrative state of a branch.
#[derive(Debug)]
pub(crate) struct AdminState {
    mode: AtomicU8,
    /// The branch is being removed: nothing new is placed on it.
    leaving: AtomicBool,
    limits: ArcSwap<SpaceLimits>,
    /// Number of open files, or [`GONE`].
    open: AtomicUsize,
    /// Bytes reserved for copies in progress.
    reserved: AtomicU64,
    /// The part of `reserved` that is for files of this pool that move here.
    moving: AtomicU64,
    /// Written part of these reservations when the file system's space was last queried: its figures include it.
    arrived: AtomicU64,
    /// Large files with reserved space, by number.
    awaited: Ranked<HashMap<u64, AwaitedFile>, AWAITED>,
}

/// A file that is being copied.
#[derive(Clone, Debug)]
struct AwaitedFile {
    written: WrittenPart,
    bytes: u64,
    /// Its part of `arrived`.
    arrived: u64,
}

/// Source of the number of bytes that a copy has taken so far.
#[derive(Clone, Debug)]
pub enum WrittenPart {
    /// Its file in this directory, where it is named [`staged`].
    Staged(Arc<OwnedFd>),
    /// The copying thread's own count.
    Counted(Arc<AtomicU64>),
}

/// Smaller files are complete before counting them twice matters.
const LARGE: u64 = 16 << 20;

/// Name of a copy's file until it is complete.
pub fn staged(id: u64) -> CString {
    CString::new(id.to_string()).unwrap_or_default()
}

/// Bytes of [`Branch::reserved`] that are for files that move to the branch from others.
pub fn moving_here(branch: &Branch) -> &AtomicU64 {
    &branch.admin.moving
}

#[derive(Clone, Copy, Debug)]
struct SpaceLimits {
    floor: Option<Floor>,
    min_inodes: Option<u64>,
}

impl AdminState {
    pub(crate) fn new(spec: &BranchSpec) -> Self {
        let limits = SpaceLimits { floor: spec.floor, min_inodes: spec.min_inodes };
        Self {
            mode: AtomicU8::new(code(spec.mode)),
            leaving: AtomicBool::new(false),
            limits: ArcSwap::from_pointee(limits),
            open: AtomicUsize::new(0),
            reserved: AtomicU64::new(0),
            moving: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            awaited: Ranked::default(),
        }
    }
}

impl AdminState {
    /// Makes the branch gone from the beginning: no file can be opened on it.
    pub(crate) fn close(&self) {
        self.open.store(GONE, SeqCst);
    }
}

/// A file is open on the branch, which cannot leave the pool until this is dropped or released.
#[derive(Debug)]
pub struct OpenFileRef {
    branch: Arc<Branch>,
    is_out: AtomicBool,
}

impl OpenFileRef {
    /// The branch.
    pub fn branch(&self) -> &Arc<Branch> {
        &self.branch
    }

    /// Releases the reference early: the file is closed to all users, though a thread may be stuck in a call on it.
    pub fn move_out(&self) {
        if !self.is_out.swap(true, SeqCst) {
            let before = self.branch.admin.open.fetch_sub(1, SeqCst);
            debug_assert!(0 < before && before < GONE, "a file was closed that was not open");
        }
    }
}

impl std::ops::Deref for OpenFileRef {
    type Target = Arc<Branch>;
    fn deref(&self) -> &Arc<Branch> {
        &self.branch
    }
}

impl Drop for OpenFileRef {
    fn drop(&mut self) {
        self.move_out();
    }
}

impl Branch {
    /// True if the branch takes objects that move: by its mode, and its mount's present state.
    pub fn takes_moves(&self) -> bool {
        self.mode() == BranchMode::ReadWrite && self.is_writable()
    }

    /// Returns its mode; no-create while it is being removed.
    pub fn mode(&self) -> BranchMode {
        match self.given_mode() {
            BranchMode::ReadWrite if self.is_leaving() => BranchMode::NoCreate,
            set => set,
        }
    }

    /// Returns the mode that was configured.
    pub fn given_mode(&self) -> BranchMode {
        match self.admin.mode.load(Relaxed) {
            0 => BranchMode::ReadWrite,
            1 => BranchMode::NoCreate,
            _ => BranchMode::ReadOnly,
        }
    }

    /// Returns its own floor, if it has one.
    pub fn floor(&self) -> Option<Floor> {
        self.admin.limits.load().floor
    }

    /// Returns its own least number of free inodes, if it has one.
    pub fn min_inodes(&self) -> Option<u64> {
        self.admin.limits.load().min_inodes
    }

    /// Returns the number of files open on it.
    pub fn open_files(&self) -> usize {
        match self.admin.open.load(SeqCst) {
            open if open < GONE => open,
            _ => 0,
        }
    }

    /// Returns the bytes reserved for copies in progress.
    pub fn reserved(&self) -> u64 {
        self.admin.reserved.load(Relaxed)
    }

    /// True if it leaves the pool when its files are closed.
    pub fn is_leaving(&self) -> bool {
        self.admin.leaving.load(Relaxed)
    }

    /// True if it has left the pool: calls on it find nothing.
    pub fn is_gone(&self) -> bool {
        self.admin.open.load(Relaxed) >= GONE
    }

    /// Takes a reference for a file about to be opened here.
    ///
    /// # Errors
    ///
    /// ESTALE if the branch has left the pool.
    pub fn acquire(&self) -> Result<OpenFileRef> {
        let branch = self.me.upgrade().ok_or(OpError::STALE)?;
        let taken = self.admin.open.fetch_update(SeqCst, SeqCst, |open| (open < GONE).then_some(open + 1));
        match taken {
            Ok(_) => Ok(OpenFileRef { branch, is_out: AtomicBool::new(false) }),
            Err(_) => Err(OpError::STALE),
        }
    }

    /// Makes the branch gone for good. If files are open there, returns their number and changes nothing.
    pub fn shut(&self) -> Result<(), usize> {
        self.admin.open.compare_exchange(0, GONE, SeqCst, SeqCst).map(drop)
    }

    /// Reserves `bytes` for the copy number `id`, of which `written` is there already at any time. Returns how many were reserved before.
    pub fn promise(&self, id: u64, bytes: u64, written: WrittenPart) -> u64 {
        let before = self.admin.reserved.fetch_add(bytes, Relaxed);
        if LARGE <= bytes {
            self.admin.awaited.lock().insert(id, AwaitedFile { written, bytes, arrived: 0 });
        }
        before
    }

    /// Releases a reservation: the copy is complete or has failed.
    pub fn give_back(&self, id: u64, bytes: u64) {
        if let Some(awaited) = self.admin.awaited.lock().remove(&id) {
            let before = self.admin.arrived.fetch_sub(awaited.arrived, Relaxed);
            debug_assert!(before >= awaited.arrived, "less has arrived on a branch than of one file");
        }
        let before = self.admin.reserved.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes, "more was given back than was promised");
    }

    /// Returns how much of the reservation for file `id` the file system's figures include.
    pub fn arrived(&self, id: u64) -> u64 {
        self.admin.awaited.lock().get(&id).map_or(0, |awaited| awaited.arrived)
    }

    /// Reserved bytes that the file system's last figures do not include.
    pub(crate) fn still_to_come(&self) -> u64 {
        self.reserved().saturating_sub(self.admin.arrived.load(Relaxed))
    }

    /// Returns the current size of each file with a reservation. Called before the file system's space is queried, so
    /// that no byte is missing from both figures.
    pub(crate) fn what_arrived(&self) -> Vec<(u64, u64)> {
        let awaited: Vec<(u64, AwaitedFile)> =
            self.admin.awaited.lock().iter().map(|(id, awaited)| (*id, awaited.clone())).collect();
        let has = |(id, file): (u64, AwaitedFile)| {
            let taken = match file.written {
                WrittenPart::Staged(dir) => {
                    let stat = self.ask(|| sys::at::stat(dir.as_fd(), &staged(id)));
                    stat.map_or(0, |stat| stat.blocks.saturating_mul(512))
                }
                WrittenPart::Counted(written) => written.load(Relaxed),
            };
            (id, taken.min(file.bytes))
        };
        awaited.into_iter().map(has).collect()
    }

    /// Records these sizes: the space just queried already excludes them.
    pub(crate) fn note_arrived(&self, files: &[(u64, u64)]) {
        let mut awaited = self.admin.awaited.lock();
        for (id, has) in files {
            if let Some(known) = awaited.get_mut(id) {
                self.admin.arrived.fetch_add(*has, Relaxed);
                self.admin.arrived.fetch_sub(std::mem::replace(&mut known.arrived, *has), Relaxed);
            }
        }
    }

    /// Changes its mode.
    pub fn set_mode(&self, mode: BranchMode) {
        self.admin.mode.store(code(mode), Relaxed);
    }

    /// Marks it as being removed, or not.
    pub fn set_leaving(&self, leaving: bool) {
        self.admin.leaving.store(leaving, Relaxed);
    }

    /// Changes its own floor and its own least number of free inodes; `None` means the pool's.
    pub fn set_limits(&self, floor: Option<Floor>, min_inodes: Option<u64>) {
        self.admin.limits.store(Arc::new(SpaceLimits { floor, min_inodes }));
    }
}

fn code(mode: BranchMode) -> u8 {
    match mode {
        BranchMode::ReadWrite => 0,
        BranchMode::NoCreate => 1,
        BranchMode::ReadOnly => 2,
    }
}
