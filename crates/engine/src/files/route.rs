//! How the kernel reaches an open file's bytes.
//!
//! The kernel ties an inode, while it is open, to one I/O mode: passthrough (with one backing file) or cached.
//! Cached files may be joined by an open with direct I/O; passthrough only by opens that name the same backing
//! file, whose reads and writes are direct I/O if they ask for both. So the first open decides for all; a later
//! one that must not do as the first (a writer of a set-uid file beside a passthrough reader) goes beside it.
//! A file first opened by direct I/O stays so, since a shared mapping of it puts the inode into cached mode unseen.
//!
//! A mapping made by passthrough is one of the branch's file and outlives its descriptor, and only the descriptor's end
//! reaches the daemon. As long as there may be one, stacked opens go beside passthrough though none is open: their mappings
//! are of the same file, and no page cache of the FUSE layer comes between.

use std::os::fd::{AsFd, BorrowedFd};

use fsstack_branch::branch::FsKind;
use fsstack_branch::caller::{Caller, UNKNOWN, taking_space};
use fsstack_sys as sys;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::decision::{PathDecision, StackedReason};
use super::{Access, BranchFile};

/// How the reads and writes of one open go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Route {
    /// By the kernel, on the branch's file; the number is the backing file's id (0 in a wish).
    Passthrough(u32),
    /// By the daemon, each read and write a request.
    Direct,
    /// Like `Direct`, beside opens by passthrough, whose backing file has this id.
    DirectBeside(u32),
    /// By the daemon, through the FUSE layer's page cache.
    Cached,
}

/// Registry of the kernel's backing files for passthrough.
pub trait Backings: Send + Sync + std::fmt::Debug {
    /// Registers `fd`: the backing id.
    ///
    /// # Errors
    /// The kernel, the privilege or the file system cannot do passthrough.
    fn open(&self, fd: BorrowedFd<'_>) -> std::io::Result<u32>;
    /// Gives the registration back. Opens that use it keep their file.
    fn close(&self, id: u32);
    /// Whether there is any hope for [`Self::open`].
    fn work(&self) -> bool {
        true
    }
}

/// Where there is no passthrough: no kernel below (tests), or no privilege.
#[derive(Debug)]
pub struct NoBackings;

impl Backings for NoBackings {
    fn open(&self, _: BorrowedFd<'_>) -> std::io::Result<u32> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
    fn close(&self, _: u32) {}
    fn work(&self) -> bool {
        false
    }
}

/// Facts for the decision on an open, gathered without the decision's lock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// The file's backing id, or why it has none.
    pub registered: Option<Result<u32, StackedReason>>,
    /// A mapping made by passthrough may be alive, though the file is not open so.
    pub mapped: Option<bool>,
}

/// Facts to gather first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// The backing id.
    Registered,
    /// Whether the file may be mapped.
    Mapped,
}

/// The I/O mode that an open file is tied to.
#[derive(Debug, Default)]
pub struct IoMode {
    /// Route that the first open decided.
    pub decided: Option<Route>,
    /// Why.
    pub because: Option<PathDecision>,
    /// The backing id, as long as the open file lives.
    pub backing: Option<u32>,
    /// Users that have it open for writing by passthrough.
    pub writers: SmallVec<[Writer; 2]>,
}

/// User that a file is open for writing by, as far as set-id bits depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Writer(pub(crate) u64);

impl Writer {
    /// Bit of user 0 without root's rights, by an idmapped mount. Bit 32 is for a row's own use.
    pub(crate) const NOT_ROOT: u64 = 1 << 33;

    /// Returns the user that `caller` writes as.
    pub fn of(caller: Caller) -> Self {
        match caller.uid {
            _ if caller.is_root() => Self(0),
            0 => Self(Self::NOT_ROOT),
            uid => Self(uid.into()),
        }
    }

    /// The user; [`UNKNOWN`] for one that is not known, or is root in an idmapped mount only.
    pub(crate) fn user(self) -> u32 {
        let is_known = self.0 & Self::NOT_ROOT == 0;
        u32::try_from(self.0 & u64::from(u32::MAX)).ok().filter(|_| is_known).unwrap_or(UNKNOWN)
    }

    /// True for a user other than root and `owner`. An unknown user is a stranger to every owner.
    pub fn is_stranger_to(self, owner: u32) -> bool {
        self.0 != 0 && self.0 & u64::from(u32::MAX) != u64::from(owner)
    }
}

impl IoMode {
    /// One more open, which wishes for `wish`.
    ///
    /// # Errors
    /// The fact that is needed and not `known`.
    pub fn join(
        &mut self,
        wish: PathDecision,
        writer: Option<Writer>,
        known: Known,
    ) -> Result<Route, Unknown> {
        let registered = || self.backing.map(Ok).or(known.registered).ok_or(Unknown::Registered);
        let route = match (self.decided, wish.route) {
            (None, Route::Passthrough(_)) => {
                let (route, because) = match registered()? {
                    Ok(id) => {
                        self.backing = Some(id);
                        (Route::Passthrough(id), wish)
                    }
                    Err(reason) => (Route::Direct, wish.refused(Route::Direct, reason)),
                };
                self.because = Some(because);
                route
            }
            (None, other) => {
                let beside = if known.mapped.ok_or(Unknown::Mapped)? { registered()?.ok() } else { None };
                self.backing = self.backing.or(beside);
                self.because = Some(wish);
                beside.map_or(other, Route::DirectBeside)
            }
            (Some(Route::Passthrough(id)), Route::Passthrough(_)) => Route::Passthrough(id),
            // It makes way from its next first open. Beside passthrough it would be slower, and be kept as long.
            (Some(Route::Passthrough(id)), _) if wish.reason == Some(StackedReason::MakesWay) => {
                Route::Passthrough(id)
            }
            (Some(Route::Passthrough(id)), _) => Route::DirectBeside(id),
            (Some(Route::Cached), Route::Direct) if wish.reason == Some(StackedReason::AppendOnly) => {
                Route::Direct
            }
            (Some(decided), _) => decided,
        };
        self.decided.get_or_insert(route);
        if let (Route::Passthrough(_), Some(writer)) = (route, writer) {
            self.writers.push(writer);
        }
        Ok(route)
    }

    /// One open less.
    pub fn leave(&mut self, route: Route, writer: Option<Writer>) {
        if let (Route::Passthrough(_), Some(writer)) = (route, writer)
            && let Some(at) = self.writers.iter().position(|known| *known == writer)
        {
            self.writers.swap_remove(at);
        }
    }
}

/// The backing id of the file; else why it has none. The branch and the kernel are asked.
pub(super) fn register(placed: &BranchFile, kernel: &dyn Backings) -> Result<u32, StackedReason> {
    if placed.branch.refuses_passthrough() {
        return Err(StackedReason::BranchRefuses);
    }
    // The kernel writes as the user that the thread acts as now, for later opens by other users too.
    let is_asked = placed.branch.kind == FsKind::LocalHashed;
    let stat = is_asked.then(|| placed.branch.ask(|| sys::at::stat_fd(placed.fd.as_fd())));
    let owner = stat.and_then(Result::ok).map_or(UNKNOWN, |stat| stat.uid);
    let open = |fd| {
        taking_space(&placed.branch, owner, || kernel.open(fd))
            .unwrap_or_else(|error| Err(std::io::Error::from_raw_os_error(error.errno.raw_os_error())))
    };
    let mut opened = open(placed.fd.as_fd());
    if opened.is_err() && placed.access == Access::Name {
        // What the branch has against it says nothing of the kernel.
        let Ok(file) = placed.open_to_read() else { return Err(StackedReason::DoesNotOpen) };
        opened = open(file.as_fd());
        if opened.is_ok() {
            placed.branch.opens_in_full();
        }
    }
    opened.map_err(|error| {
        placed.branch.set_refuses_passthrough(&error);
        StackedReason::BranchRefuses
    })
}
