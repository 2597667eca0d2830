//! Reasons that the branches of a pool stay as they are.

use fsstack_pool::BranchIx;
use fsstack_sys::SysError;

use crate::settings::MAX_BRANCHES;

/// Why the branches stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChange {
    /// There is no such branch.
    #[error("no branch of this pool is in slot {0}")]
    NoBranch(BranchIx),
    /// The directory does not open.
    #[error("branch {path}: {error}")]
    Unopened {
        /// Its path.
        path: String,
        /// Error of the system.
        error: SysError,
    },
    /// Its disk was mounted or unmounted meanwhile.
    #[error("branch {0}: another directory is there than a moment ago: look at its mount, and add it again")]
    Replaced(String),
    /// The directory is a branch already.
    #[error("branch {path}: the same directory as branch {known}, which is in the pool")]
    Double {
        /// Its path.
        path: String,
        /// The path of the branch that it is.
        known: String,
    },
    /// Only the order distinguishes it from another.
    #[error(
        "branch {0}: its id cannot be stored there, and another branch has the same: its handles would lead elsewhere"
    )]
    SameId(String),
    /// The pool is as large as can be.
    #[error("the pool has {MAX_BRANCHES} branches, which is the most")]
    TooMany,
    /// The last branch cannot go.
    #[error("the pool's only branch cannot be removed: unmount the pool")]
    Last,
    /// Files are open there.
    #[error("branch {path}: {open} files are open there: close them, or remove it when they are closed")]
    InUse {
        /// Its path.
        path: String,
        /// How many.
        open: usize,
    },
    /// Another branch is being added or removed.
    #[error("another change of the branches is under way, and waits for a disk or for requests: try again")]
    Busy,
    /// It is being removed already.
    #[error("branch {0}: it is being removed already, when its files are closed")]
    Leaving(String),
    /// Records there wait for another branch.
    #[error(
        "branch {0}: it has records of interrupted changes that are not settled: mount the branch that they wait for, or give that \
         up (fsstack branch forget), or mount the pool without this branch"
    )]
    Awaiting(String),
    /// A branch in the pool cannot be given up.
    #[error("branch {0}: it is in the pool: remove it first")]
    InPool(String),
    /// Without `nfs-export` no handle outlives what the kernel remembers.
    #[error("the pool is mounted without nfs-export: it has no handles that wait for a branch")]
    NotExported,
    /// There is no index, or it failed.
    #[error("the pool's index failed: the log says why")]
    NotKept,
    /// A branch in the pool keeps records of interrupted changes for the branch that was to be given up.
    #[error(
        "branch {path}: what it has for the branch to forget could not be removed ({error}): try again when it answers"
    )]
    Remembered {
        /// Its path.
        path: String,
        /// Why.
        error: String,
    },
    /// The pool promises passthrough, which the kernel does not do there.
    #[error("branch {path}: the kernel refuses passthrough there ({why}): set write-path=auto first")]
    NoPassthrough {
        /// Its path.
        path: String,
        /// Error of the kernel.
        why: String,
    },
}
