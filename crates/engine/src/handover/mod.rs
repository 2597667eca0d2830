//! A pool that goes from one program to another in the same process (`fsstack upgrade`).
//!
//! The kernel's numbers mean the same to the next program, since they are made from what is on the branches. It is handed what is in
//! memory only: which inodes the kernel knows and how often it has looked each of them up, the open files and handles with the
//! descriptors, what fsync still has to report, and locks. Caches begin anew.
//!
//! Everything is gathered while no request is served. Work that goes on by itself is waited for, or the handover is refused.
//! Descriptors go over exec by their numbers. Mount generations begin at 0 again; a descriptor of a mount that was replaced has
//! another one, and is opened again at its next use, as it would have been.

mod branches;
mod gather;
mod restore;
mod revive;

use std::os::fd::OwnedFd;

use fsstack_pool::Printable;
use fsstack_sync::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

use crate::files::handed::NameRow;
use crate::files::handed::OpenFileRow;
use crate::inode::handed::InodeRow;
use crate::jobs::JobView;
use crate::jobs::handed::JobsRow;
use crate::member::unsynced::UnsyncedRow;
use crate::opened::handed::{DirHandleRow, FileHandleRow};
use crate::union::Union;
pub use restore::Unreachable;
pub use revive::Revived;

/// Pause between two looks at work that an upgrade waits for.
const HANDOVER_LOOK_PAUSE: Duration = Duration::from_millis(1);

/// Memory of a pool that is not made anew. Its form is part of the handover's format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolState {
    branches: Vec<BranchRow>,
    /// Ids of the branches in order, with those that have left in between.
    line: Vec<u16>,
    next_handle: u64,
    /// The root comes first.
    inodes: Vec<InodeRow>,
    files: Vec<OpenFileRow>,
    handles: Vec<FileHandleRow>,
    dirs: Vec<DirHandleRow>,
    jobs: JobsRow,
}

/// A branch, in the pool's order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct BranchRow {
    slot: u16,
    id: u16,
    path: NameRow,
    mode: String,
    floor: Option<String>,
    min_inodes: Option<u64>,
    cross_mounts: bool,
    class: Option<String>,
    /// Descriptor of its root.
    root: i32,
    /// Device and inode number of its root.
    object: (u64, u64),
    /// Further marks by which its root is recognised.
    known: KnownRootRow,
    unsynced: UnsyncedRow,
}

/// [`KnownRoot`](fsstack_branch::known_root::KnownRoot) of a branch, without device and inode number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct KnownRootRow {
    f_type: u64,
    fsid: u64,
    proof: Option<[u8; 16]>,
    was_listed: bool,
    level: u8,
    subvolume: Option<u64>,
    joined: u64,
}

/// The state with the descriptors that it names.
#[derive(Debug)]
pub struct Gathered {
    /// The state.
    pub state: PoolState,
    /// Numbers of descriptors that the next program needs.
    pub descriptors: Vec<i32>,
    /// Descriptors that were made for it.
    pub made: Vec<OwnedFd>,
}

/// Why the pool cannot be handed over now: one line, with the way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotNow(pub String);

impl PoolState {
    /// Numbers of all descriptors that it names.
    pub fn descriptors(&self) -> Vec<i32> {
        let files = self.files.iter();
        let files = files.flat_map(|file| {
            std::iter::once(file.fd.fd).chain(file.lock_owners.iter().map(|owner| owner.fd.fd))
        });
        let unlinked = self.inodes.iter().filter_map(|inode| Some(inode.unlinked?.fd));
        self.branches.iter().map(|branch| branch.root).chain(files).chain(unlinked).collect()
    }
}

impl Union {
    /// Whether the pool could be handed over if requests were at rest: for an answer before they are stopped.
    ///
    /// # Errors
    /// What stands against it.
    pub fn check_handover(&self) -> Result<(), NotNow> {
        let pool = self.tree.pool.load();
        let shown = |path: &std::path::Path| Printable::path(path).to_string();
        for branch in &pool.branches {
            let path = shown(&branch.path);
            if branch.is_leaving() {
                return Err(NotNow(format!(
                    "branch {path} is being removed when its files are closed: wait, or call that off: fsstack branch mode"
                )));
            }
            if !branch.is_open() || branch.is_stuck() || matches!(branch.state().name(), "suspect" | "down") {
                return Err(NotNow(format!(
                    "branch {path} does not answer: wait until it is back, or remove it first"
                )));
            }
        }
        // Becoming another program waits for all threads.
        if let Some(path) = self.changes.lock().stuck_in_removed() {
            return Err(NotNow(format!(
                "branch {}, which was removed, hangs in calls of the daemon: wait until its server answers, or end it",
                shown(path)
            )));
        }
        Ok(())
    }

    /// Waits until nothing works on the pool by itself. Requests must be at rest.
    ///
    /// # Errors
    /// What still works at `deadline`, or stands against a handover.
    pub fn rest(&self, deadline: Instant) -> Result<(), NotNow> {
        self.check_handover()?;
        if let Some(job) = self.jobs.list.at_work() {
            let JobView { id, kind, subject, .. } = job;
            return Err(NotNow(format!("job {id} ({kind} of {subject}) is inside a branch: try again")));
        }
        // Their connections have ended.
        if !self.copies.lock().is_empty() {
            return Err(NotNow("a bulk copy is inside a branch: try again".to_owned()));
        }
        let idle = || {
            self.moves.movers.are_idle()
                && self.tree.pool.load().branches.iter().all(|branch| branch.closing() == 0)
        };
        while !idle() {
            if deadline <= Instant::now() {
                return Err(NotNow(
                    "a file is still being moved to another branch, or closed: try again".to_owned(),
                ));
            }
            fsstack_sync::thread::sleep(HANDOVER_LOOK_PAUSE);
        }
        self.check_handover()?;
        self.tree.index.rest();
        // Becoming another program waits for all threads.
        if !self.end_catalogue_within(deadline.saturating_duration_since(Instant::now())) {
            return Err(NotNow("the catalogue's thread is still inside a branch: try again".to_owned()));
        }
        Ok(())
    }

    /// Nobody adds or removes a branch until the guard drops.
    ///
    /// # Errors
    /// Somebody does.
    pub fn keep_branches(&self) -> Result<impl Sized + '_, NotNow> {
        self.changes.change_branches().map_err(|error| NotNow(error.to_string()))
    }

    /// The pool stays with this program after [`Self::rest`].
    pub fn go_on(&self) {
        self.tree.index.go_on();
    }
}
