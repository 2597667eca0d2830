//! A branch as a member of this pool: the branch, and what the pool keeps for each of its branches.

pub(crate) mod events;
pub(crate) mod searches;
pub(crate) mod staged;
pub(crate) mod unsynced;

use std::ffi::CStr;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

use fsstack_branch::branch::{Branch, BranchOptions};
use fsstack_branch::known_root::KnownRoot;
use fsstack_branch::mount_root::Proof;
use fsstack_catalogue::Pending;
use fsstack_identity::marked_branch::MarkedBranch;
use fsstack_pool::{BranchId, BranchIx, BranchSpec};
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Errno, SysError};

use crate::files::route::Backings;
use crate::inode::Inode;
use crate::settings::Settings;
use events::PoolEvents;
use searches::Searches;
use staged::StagedNames;
use unsynced::UnsyncedDirs;

/// A branch of this pool.
#[derive(Debug)]
pub struct Member {
    marked: Arc<MarkedBranch>,
    /// Walks through it for what is asked by number, where that is how objects are found.
    pub(crate) searches: Searches,
    /// Names in its hidden folder that the daemon is at work with.
    pub(crate) staged: StagedNames,
    /// Names that were removed here and may be back after a power cut.
    pub(crate) unsynced: UnsyncedDirs,
    /// Its names that have changed and are not in the catalogue yet.
    pub(crate) uncatalogued: Arc<Pending<Arc<Inode>>>,
    events: OnceLock<Arc<PoolEvents>>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.uncatalogued.stop();
    }
}

impl Deref for Member {
    type Target = MarkedBranch;

    fn deref(&self) -> &MarkedBranch {
        &self.marked
    }
}

impl Member {
    /// Opens the branch that `spec` names.
    ///
    /// # Errors
    /// The directory cannot be opened, or its file system does not answer.
    pub(crate) fn open(
        (ix, id): (BranchIx, BranchId),
        spec: &BranchSpec,
        root: OwnedFd,
        proof: Option<Proof>,
        settings: &Settings,
    ) -> Result<Arc<Self>, SysError> {
        Branch::open(ix, id, spec, root, proof, branch_options(settings))
            .map(|branch| Arc::new(Self::of(branch)))
    }

    /// A branch that a daemon before this one had, and that cannot be opened now: it is down, until it is back. The mount with the
    /// id `silent` is the branch, and does not answer.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn away(
        ids: (BranchIx, BranchId),
        spec: &BranchSpec,
        (known, silent): (&KnownRoot, Option<u64>),
        settings: &Settings,
        why: &str,
    ) -> Result<Arc<Self>, SysError> {
        let away = known.branch_away(ids, (spec, silent), branch_options(settings), why);
        away.map(|branch| Arc::new(Self::of(branch)))
    }

    /// A branch that has left: nothing is on it.
    pub(crate) fn nobody() -> Result<Self, SysError> {
        Branch::nobody().map(Self::of)
    }

    fn of(branch: Arc<Branch>) -> Self {
        Self {
            marked: Arc::new(MarkedBranch::new(branch)),
            searches: Searches::default(),
            staged: StagedNames::default(),
            unsynced: UnsyncedDirs::default(),
            uncatalogued: Arc::default(),
            events: OnceLock::new(),
        }
    }

    /// The branch as the index knows it.
    pub(crate) fn marked(&self) -> &Arc<MarkedBranch> {
        &self.marked
    }

    /// Its events are acted on by `events` from now on; the first one stays.
    pub(crate) fn reports_to(&self, events: &Arc<PoolEvents>) {
        let events = self.events.get_or_init(|| events.clone());
        let pool: Weak<PoolEvents> = Arc::downgrade(events);
        self.marked.reports_to(pool);
    }

    /// The part of the pool that acts on its events, once it is part of one.
    pub(crate) fn events(&self) -> Option<&Arc<PoolEvents>> {
        self.events.get()
    }

    /// Whether a program has put `name` into the root of this branch. A control file that a pool or mergerfs puts there
    /// does not count. False for a remote branch: it may hang, and a server may number objects in the order of lookups
    /// (mergerfs), which one at the mount alone would change.
    pub fn has_in_root(&self, name: &CStr) -> bool {
        if self.is_remote() {
            return false;
        }
        let root = self.root();
        let is_there = self.ask(|| sys::at::stat(root.as_fd(), name)).is_ok();
        let version = c"user.mergerfs.version";
        is_there && self.ask(|| sys::xattr::get(On::Name(root.as_fd(), name), version, &mut [])).is_err()
    }

    /// Whether the kernel takes a file of this branch for passthrough: tried with one that has no name.
    ///
    /// # Errors
    /// Why not.
    pub fn try_passthrough(&self, backings: &dyn Backings) -> std::io::Result<()> {
        let probe = self.ask(|| sys::at::tmpfile(self.root().as_fd(), sys::OFlags::RDWR, 0o600));
        let probe = match probe {
            // A branch that cannot make one may still have files to read.
            Err(error) if matches!(error.errno(), Errno::ROFS | Errno::OPNOTSUPP | Errno::NOSPC) => {
                return Ok(());
            }
            probe => probe.map_err(|error| std::io::Error::from(error.errno()))?,
        };
        backings.close(backings.open(probe.as_fd())?);
        Ok(())
    }
}

fn branch_options(settings: &Settings) -> BranchOptions {
    BranchOptions {
        timeout: settings.branch_timeout,
        inflight: settings.branch_inflight,
        privileged: settings.privileged,
        exact_generations: settings.nfs_export,
    }
}
