//! A branch: a member directory of the pool, held by a descriptor, and the known state of its file system.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};

use fsstack_pool::{BranchId, BranchIx, BranchMode, BranchSpec, Class, Space};
use fsstack_sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use fsstack_sync::ranked::assert_none_held;
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::at::Mounts;
use fsstack_sys::file::FsSpace;
use fsstack_sys::handle::ByNumber;
use fsstack_sys::{self as sys, Stat, SysError, identity};

use crate::admin_state::AdminState;
use crate::caller::Caller;
use crate::error::{OpError, Result, is_branch_fault};
use crate::events::BranchEvents;
use crate::fs_kind::NFS;
use crate::health::Health;
use crate::health::free::FUSE;
use crate::health::inflight_limit::{CallKind, InflightLimit};
use crate::known_space::KnownSpace;
use crate::lease_waits::LeaseWaits;
use crate::longest;
use crate::metrics::{BranchCounter, BranchMetrics};
use crate::mount_root::{MountRoot, Proof};
use crate::refused_writes::RefusedWrites;

pub use crate::fs_kind::FsKind;

/// Attribute of a pool's root, for a pool above it: the number of stacked pools, itself included.
pub const LEVEL: &CStr = c"user.fsstack.level";

/// Settings of a branch that come from its pool.
#[derive(Clone, Copy, Debug)]
pub struct BranchOptions {
    /// Longest time that a call may stay inside a remote branch.
    pub timeout: Duration,
    /// Maximum number of calls inside a remote branch.
    pub inflight: usize,
    /// Objects may be opened by number: the daemon has the capability.
    pub privileged: bool,
    /// Generations are read exactly, by an extra call.
    pub exact_generations: bool,
}

/// The part of a branch that its directory decides.
pub(crate) struct BranchBase {
    pub root_ino: u64,
    pub kind: FsKind,
    pub level: u8,
    pub by_number: Option<ByNumber>,
    pub mount_root: MountRoot,
    pub space: FsSpace,
}

/// A member directory of the pool.
#[derive(Debug)]
pub struct Branch {
    /// Its slot in the pool, unchanged while it is a member.
    pub ix: BranchIx,
    /// Its durable id, stored with the branch: inode numbers contain it.
    pub id: BranchId,
    /// Join time: orders the branches by when they came to the pool.
    joined: OnceLock<u64>,
    /// Its path when it was added, for messages only: the pool uses the descriptor.
    pub path: PathBuf,
    /// Class by which placement rules name it.
    pub class: Option<Class>,
    /// Whether mounts inside it are entered.
    pub mounts: Mounts,
    /// Inode number of its root.
    pub root_ino: u64,
    /// Kind of its file system.
    pub kind: FsKind,
    /// Method to open objects by inode number, if there is one.
    pub by_number: Option<ByNumber>,
    /// Generations are exact, at the cost of a call: handles of NFS clients contain them.
    versions: bool,
    pub(crate) admin: AdminState,
    /// Number of pools stacked below its root; 0 if it is not the root of a pool.
    pub level: u8,
    pub(crate) mount_root: MountRoot,
    /// The pool that it reports to.
    events: OnceLock<Weak<dyn BranchEvents>>,
    pub(crate) health: Arc<Health>,
    /// Weak reference to itself, for its monitor.
    pub(crate) me: Weak<Self>,
    space: KnownSpace,
    /// Mount generation plus one of the space query in progress; 0 if there is none.
    asking_space: AtomicU64,
    /// Bytes that this pool has written, and files and directories that it has made, since the last space query.
    placed: AtomicU64,
    made: AtomicU64,
    pub(crate) refused_writes: RefusedWrites,
    /// The kernel refused passthrough for a file here; tried again only after a remount of the pool.
    no_passthrough: AtomicBool,
    /// The kernel does not accept `O_PATH` descriptors for passthrough (before Linux 6.12).
    no_names: AtomicBool,
    pub(crate) lease_waits: LeaseWaits,
    /// Counters of its calls, bytes and moves.
    pub metrics: BranchMetrics,
}

impl Branch {
    /// Opens the branch in `spec`.
    ///
    /// # Errors
    ///
    /// The directory cannot be opened, or its file system does not answer.
    pub fn open(
        ix: BranchIx,
        id: BranchId,
        spec: &BranchSpec,
        root: OwnedFd,
        proof: Option<Proof>,
        options: BranchOptions,
    ) -> Result<Arc<Self>, SysError> {
        let space = sys::file::statfs(root.as_fd())?;
        Self::with_space((ix, id), spec, (root, space), proof, options)
    }

    pub(crate) fn with_space(
        (ix, id): (BranchIx, BranchId),
        spec: &BranchSpec,
        (root, space): (OwnedFd, FsSpace),
        proof: Option<Proof>,
        options: BranchOptions,
    ) -> Result<Arc<Self>, SysError> {
        // The kernel's cached number may differ from the number that probes will get.
        let stat = sys::at::stat_now(root.as_fd())?;
        let kind = FsKind::of(space.f_type);
        let base = BranchBase {
            root_ino: stat.ino,
            kind,
            level: if kind.is_local() { 0 } else { pools_below(&root) },
            by_number: ByNumber::of(root.as_fd(), space.f_type),
            mount_root: MountRoot::new(root, &stat, &space, proof),
            space,
        };
        Ok(Self::with_base((ix, id), spec, base, options))
    }

    pub(crate) fn with_base(
        (ix, id): (BranchIx, BranchId),
        spec: &BranchSpec,
        base: BranchBase,
        options: BranchOptions,
    ) -> Arc<Self> {
        let BranchBase { root_ino, kind, level, by_number, mount_root, space } = base;
        let inflight_limit =
            (!kind.is_local()).then(|| InflightLimit::new(options.timeout, options.inflight));
        Arc::new_cyclic(|me| Self {
            mount_root: mount_root.of(me, kind),
            ix,
            id,
            joined: OnceLock::new(),
            path: spec.path.clone(),
            class: spec.class.clone(),
            mounts: if spec.cross_mounts { Mounts::Cross } else { Mounts::Stay },
            root_ino,
            kind,
            level,
            by_number: by_number.filter(|_| options.privileged),
            versions: options.exact_generations,
            health: Arc::new(Health::new(inflight_limit)),
            me: me.clone(),
            admin: AdminState::new(spec),
            events: OnceLock::new(),
            space: KnownSpace::new(space),
            asking_space: AtomicU64::new(0),
            placed: AtomicU64::new(0),
            made: AtomicU64::new(0),
            refused_writes: RefusedWrites::default(),
            no_passthrough: AtomicBool::new(false),
            no_names: AtomicBool::new(false),
            lease_waits: LeaseWaits::default(),
            metrics: BranchMetrics::new(kind.is_local()),
        })
    }

    /// Returns the attributes of `name` in its directory `dir`, with the generation. Called inside [`Self::ask`].
    ///
    /// # Errors
    ///
    /// The branch's error.
    pub fn stat_generation(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Stat, SysError> {
        match self.by_number.filter(|_| self.versions) {
            Some(how) => how.stat(dir, name),
            None if name.is_empty() => sys::at::stat_fd(dir),
            None => sys::at::stat(dir, name),
        }
    }

    /// Sets the pool that it reports to; only the first call has an effect.
    pub fn reports_to(&self, pool: Weak<dyn BranchEvents>) {
        self.events.get_or_init(|| pool);
    }

    /// Reports an event to the pool, if that still exists.
    pub(crate) fn report(&self, event: impl FnOnce(&dyn BranchEvents)) {
        if let Some(pool) = self.events.get().and_then(Weak::upgrade) {
            event(&*pool);
        }
    }

    /// Returns its join time, as stored on the branch; a branch that cannot store it counts as the last.
    pub fn joined(&self) -> u64 {
        self.joined.get().copied().unwrap_or(u64::MAX)
    }

    /// Sets its join time; only the first call has an effect.
    pub fn set_joined(&self, at: u64) {
        self.joined.get_or_init(|| at);
    }

    /// Makes an empty branch that is gone from the beginning.
    pub fn nobody() -> Result<Arc<Self>, SysError> {
        let options = BranchOptions {
            timeout: Duration::ZERO,
            inflight: 1,
            privileged: false,
            exact_generations: false,
        };
        let base = BranchBase {
            root_ino: 0,
            kind: FsKind::Local,
            level: 0,
            by_number: None,
            mount_root: MountRoot::nowhere()?,
            space: FsSpace::default(),
        };
        let spec = BranchSpec::new("(left)".into());
        let branch = Self::with_base((BranchIx(u16::MAX), BranchId::MAX), &spec, base, options);
        branch.no_passthrough.store(true, Relaxed);
        branch.no_names.store(true, Relaxed);
        branch.admin.close();
        Ok(branch)
    }

    /// Runs a call on this branch; its error carries the branch.
    pub fn ask<T>(&self, call: impl FnOnce() -> Result<T, SysError>) -> Result<T> {
        self.ask_for(CallKind::Short, call)
    }

    /// Like [`Self::ask`], for calls that may take long on a healthy branch (fsync, copies): they overstay only if a
    /// probe fails too.
    pub fn ask_long<T>(&self, call: impl FnOnce() -> Result<T, SysError>) -> Result<T> {
        self.ask_for(CallKind::Long, call)
    }

    /// Like [`Self::ask`], for a call of the class `kind`.
    pub fn ask_for<T>(&self, kind: CallKind, call: impl FnOnce() -> Result<T, SysError>) -> Result<T> {
        self.check_there()?;
        self.be_daemon()?;
        longest::timed(self.ix, || {
            let _inside = self.come_in(kind)?;
            self.metrics.time(call).map_err(|sys| self.said(sys))
        })
    }

    /// Like [`Self::ask`], acting as `caller`: for calls that create objects, or that a server permits by caller.
    ///
    /// # Errors
    ///
    /// The branch's error, or that of changing the thread's identity.
    pub fn ask_as<T>(&self, caller: Caller, call: impl FnOnce() -> Result<T, SysError>) -> Result<T> {
        self.check_there()?;
        longest::timed(self.ix, || {
            let _inside = self.come_in(CallKind::Short)?;
            let done = caller.acting_on(self, || self.metrics.time(call))?;
            done.map_err(|sys| self.said(sys))
        })
    }

    /// A server checks the caller's identity. On a local disk it matters only for creating objects
    /// (`identity::before_making`).
    fn be_daemon(&self) -> Result<()> {
        if self.kind.is_local() { Ok(()) } else { identity::become_daemon().map_err(OpError::Sys) }
    }

    /// Like [`Self::ask`], inside a call that has its permit already.
    pub fn ask_inside<T>(&self, call: impl FnOnce() -> Result<T, SysError>) -> Result<T> {
        self.check_there()?;
        self.be_daemon()?;
        self.check_open()?;
        longest::timed(self.ix, || self.metrics.time(call)).map_err(|sys| self.said(sys))
    }

    /// True if the file system keeps a removed open file under another name until its close (NFS), so that its
    /// directory cannot be removed at once.
    pub fn renames_what_is_held(&self) -> bool {
        self.mount_root.f_type == NFS
    }

    /// Calls on a branch that has left the pool fail with ENOENT.
    fn check_there(&self) -> Result<()> {
        assert_none_held();
        if self.is_gone() {
            let sys = SysError { call: sys::Call::Open, errno: sys::Errno::NOENT };
            return Err(OpError::Branch { branch: self.ix, sys });
        }
        Ok(())
    }

    /// Records `sys` as this branch's error. If it is a fault of the branch, the branch is probed. ENOENT is believed
    /// only if no subvolume of the branch is missing.
    pub fn said(&self, sys: SysError) -> OpError {
        let sys = match sys.errno {
            // A branch without one of its subvolumes cannot know that a name is missing.
            sys::Errno::NOENT => self.check_subvolumes().map_or_else(|unknown| unknown, |()| sys),
            _ => sys,
        };
        if is_branch_fault(sys.errno) {
            self.suspect(sys.errno);
        } else if sys.errno == sys::Errno::ROFS {
            self.note_refused_write();
        }
        OpError::Branch { branch: self.ix, sys }
    }

    /// Returns the file system's space, queried at most once a second. A remote branch is given a short time; after
    /// that its last figures are good enough to place a file elsewhere.
    ///
    /// # Errors
    ///
    /// The file system does not answer.
    pub fn fs_space(&self) -> Result<FsSpace> {
        self.check_open()?;
        // One thread queries at a time, without a lock: the branch may hang, and placement on any branch needs its space.
        match self.space.young() {
            Some(known) => Ok(known),
            None if self.is_remote() => self.space_soon(),
            None => self.ask_space(),
        }
    }

    /// Queries the space in another thread, so that placement on another branch cannot get stuck in this one.
    fn space_soon(&self) -> Result<FsSpace> {
        let Some(me) = self.me.upgrade() else { return self.ask_space() };
        // A thread stuck in an old mount may never return, so the present mount is queried regardless.
        let asked_of = u64::from(self.mount_generation()) + 1;
        if self.asking_space.swap(asked_of, Relaxed) == asked_of {
            return Ok(self.space.last());
        }
        let (tell, reported) = fsstack_sync::mpsc::channel();
        let thread = fsstack_sync::thread::Builder::new().name("branch-space".into()).stack_size(128 << 10);
        let asking = crate::thread::start(thread, move || {
            let asked = me.ask_space();
            let _later = me.asking_space.compare_exchange(asked_of, 0, Relaxed, Relaxed);
            // The receiver may have timed out.
            let _heard = tell.send(asked);
        });
        if let Err(error) = asking {
            tracing::warn!(%error, branch = %self.path.display(), "branch space: cannot start a thread; using the last known figures");
            self.asking_space.store(0, Relaxed);
            return Ok(self.space.last());
        }
        reported.recv_timeout(self.timeout()).unwrap_or_else(|_| Ok(self.space.last()))
    }

    fn ask_space(&self) -> Result<FsSpace> {
        let mount_generation = self.mount_generation();
        let arrived = self.what_arrived();
        let asked =
            self.ask(|| sys::file::statfs(self.root().as_fd())).inspect_err(|_| self.distrust_space())?;
        let replacing = self.space.replace();
        if self.mount_generation() != mount_generation {
            return Ok(asked); // of a mount that is gone
        }
        let read_only = asked.read_only || self.refuses_writes(mount_generation);
        let asked = FsSpace { read_only, ..asked };
        self.placed.store(0, Relaxed);
        self.made.store(0, Relaxed);
        self.note_arrived(&arrived);
        replacing.set(asked);
        Ok(asked)
    }

    /// True if the last space query found it read-only.
    pub(crate) fn is_known_read_only(&self) -> bool {
        self.space.last().read_only
    }

    /// Like [`Self::fs_space`], in bytes, for placement: less the bytes that this pool has placed since the last query.
    /// Passthrough writes are unknown.
    ///
    /// # Errors
    ///
    /// The file system does not answer.
    pub fn space(&self) -> Result<Space> {
        Ok(self.space_of(&self.fs_space()?))
    }

    /// Like [`Self::space`], of the figures `fs` of [`Self::fs_space`].
    pub fn space_of(&self, fs: &FsSpace) -> Space {
        let unit = fs.frag_size;
        let placed = self.placed.load(Relaxed).saturating_add(self.still_to_come());
        Space {
            total: fs.blocks.saturating_mul(unit),
            free: fs.free.saturating_mul(unit).saturating_sub(placed),
            available: fs.available().saturating_sub(placed),
            inodes_total: fs.files,
            inodes_free: fs.files_free.saturating_sub(self.made.load(Relaxed)),
        }
    }

    /// Returns true and drops cached figures from before `then`: they count objects that were removed since.
    pub fn recount(&self, then: Instant) -> bool {
        self.space.distrust_before(then)
    }

    /// Notes that a file or directory was made on this branch.
    pub fn note_made(&self) {
        self.made.fetch_add(1, Relaxed);
    }

    /// Counts `bytes` as used that the pool did not write itself.
    pub fn note_placed_beside(&self, bytes: u64) {
        self.placed.fetch_add(bytes, Relaxed);
    }

    /// Counts `bytes` that the pool has written.
    pub fn note_placed(&self, bytes: usize) {
        self.placed.fetch_add(bytes as u64, Relaxed);
        self.metrics.add(BranchCounter::WrittenBytes, bytes as u64);
    }

    /// Drops the cached figures: a call failed for lack of space.
    pub fn distrust_space(&self) {
        self.space.replace().distrust();
    }

    /// True if the branch can be changed, by its mode and its mount's present state.
    pub fn is_writable(&self) -> bool {
        self.mode() != BranchMode::ReadOnly && !self.is_mounted_read_only()
    }

    /// Like [`Self::is_writable`], by the last known state of its mount: without a call on the branch.
    pub fn is_thought_writable(&self) -> bool {
        self.mode() != BranchMode::ReadOnly && !self.is_known_read_only()
    }

    /// # Errors
    ///
    /// EROFS if the branch is read-only by its mode, whatever its file system says.
    pub fn check_mode(&self) -> Result<()> {
        if self.mode() == BranchMode::ReadOnly {
            return Err(self.said(SysError { call: sys::Call::Access, errno: sys::Errno::ROFS }));
        }
        Ok(())
    }

    /// True if the file system is mounted read-only, or has become so.
    pub fn is_mounted_read_only(&self) -> bool {
        self.fs_space().is_ok_and(|fs| fs.read_only)
    }

    /// True if the kernel has refused passthrough on this branch.
    pub fn refuses_passthrough(&self) -> bool {
        self.no_passthrough.load(Relaxed)
    }

    /// True if each open is a request to a FUSE server, so that the daemon does not open what the kernel opens by passthrough.
    pub fn opens_by_name(&self) -> bool {
        self.mount_root.f_type == FUSE && !self.no_names.load(Relaxed)
    }

    /// The kernel needs files opened in full for passthrough, at all later opens.
    pub fn opens_in_full(&self) {
        self.no_names.store(true, Relaxed);
    }

    /// Notes that the kernel refused passthrough. Logged once; files here use the stacked path from then on.
    pub fn set_refuses_passthrough(&self, why: &std::io::Error) {
        if why.kind() != std::io::ErrorKind::Unsupported && !self.no_passthrough.swap(true, Relaxed) {
            tracing::warn!(branch = %self.path.display(), %why, "passthrough refused on this branch; its files use the stacked path");
        }
    }
}

impl Drop for Branch {
    fn drop(&mut self) {
        self.health.end();
    }
}

/// Number of pools stacked below the directory, if it is the root of one.
fn pools_below(root: &OwnedFd) -> u8 {
    let mut level = [0; 4];
    let reported = sys::xattr::get(sys::xattr::On::Fd(root.as_fd()), LEVEL, &mut level).unwrap_or(0);
    let digits = level.get(..reported).and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}
