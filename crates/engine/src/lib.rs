//! The union file system: requests in, answers out.
//!
//! It knows nothing of FUSE: a transport's adapter calls one method an operation (`ops`) and turns the answer into
//! protocol structs. Every operation takes one snapshot of the pool, resolves the inode, and makes its calls
//! through `fsstack-sys`, each relative to a directory descriptor of a branch.

pub mod admin;
pub mod answer;
mod bad_change;
mod branch_watch;
mod bulk_copy;
pub mod catalogue;
mod changes;
pub mod files;
pub mod handles;
pub mod handover;
pub mod inode;
pub mod jobs;
pub mod kept;
mod line_a_minute;
pub mod member;
#[cfg(test)]
#[cfg(feature = "shuttle")]
mod models;
mod moves;
pub mod opened;
pub mod ops;
pub mod pool;
mod pool_changes;
mod recovery;
mod root_mark;
pub mod rules;
pub mod settings;
mod taken_back;
pub mod tree;
pub mod union;
mod write_all;

/// Parts of a move that bulk copies share.
pub mod carry {
    pub use crate::moves::transfer::is_same;
    pub use crate::tree::inode_flags::InodeFlags;
    pub use crate::tree::skeleton::{Unfit, copy_xattrs};
}

pub use fsstack_branch::{Caller, OpError, Result};
pub use fsstack_identity::index::{AwayBranch, IndexHealth};
pub use pool::Pool;
pub use union::{TableCounts, Union};
