//! The union file system: requests in, answers out.
//!
//! It knows nothing of FUSE: a transport's adapter calls one method an operation (`ops`) and turns the answer into
//! protocol structs. Every operation takes one snapshot of the pool, resolves the inode, and makes its calls
//! through `fsstack-sys`, each relative to a directory descriptor of a branch.

mod allocation;
pub mod answer;
mod blank;
mod branch_recovery;
mod by_number;
pub mod change;
mod clashes;
mod clone_metadata;
mod dir_number;
mod entries;
mod exchange;
pub mod explain;
mod give_up;
pub mod handles;
pub mod handover;
mod identify;
mod index;
pub mod inode;
mod inode_flags;
mod intent;
pub mod jobs;
mod journal;
pub mod live;
pub mod member;
pub mod mount_watch;
mod movers;
mod moves;
mod moving;
mod names;
pub mod open;
pub mod ops;
mod parallel_lookup;
mod place;
pub mod pool;
pub mod poolid;
mod record;
mod recover;
mod refusals;
mod relocate;
mod removed;
mod replace;
pub mod reserve;
mod resolve;
mod rights;
pub mod rules;
mod search;
pub mod settings;
mod settle;
mod skeleton;
pub mod status;
mod transfer;
mod tree_lock;
pub mod union;
mod unsynced_dirs;
pub mod watch;
mod zeros;

/// Parts of a move that bulk copies share.
pub mod carry {
    pub use crate::inode_flags::InodeFlags;
    pub use crate::skeleton::{Unfit, copy_xattrs};
    pub use crate::transfer::is_same;
}

pub use fsstack_branch::{Caller, OpError, Result};
pub use index::{AwayBranch, IndexHealth};
pub use pool::Pool;
pub use union::{TableCounts, Union};
