//! The union file system: requests in, answers out.
//!
//! It knows nothing of FUSE: a door's adapter calls one method an operation (`ops`) and turns the answer into
//! protocol structs. Every operation takes one snapshot of the pool, resolves the inode, and makes its calls
//! through `fsstack-sys`, each relative to a directory descriptor of a branch.

mod allocation;
pub mod answer;
mod blank;
pub mod branch;
pub mod caller;
pub mod change;
mod chattr;
mod clashes;
mod dir_number;
mod entries;
pub mod error;
mod exchange;
pub mod explain;
pub mod handles;
pub mod health;
pub mod home;
mod identify;
mod index;
pub mod inode;
mod intent;
mod journal;
pub mod live;
mod mounted_fd;
mod movers;
mod moving;
mod names;
pub mod open;
pub mod ops;
mod place;
pub mod pool;
pub mod poolid;
mod ranked;
mod reach;
mod record;
mod recover;
mod refusals;
mod regain;
mod relocate;
mod removed;
mod replace;
pub mod reserve;
mod resolve;
mod rights;
pub mod rules;
mod scouts;
mod search;
pub mod settings;
mod settle;
mod shape;
mod skeleton;
pub mod status;
pub mod tally;
pub mod terms;
mod thread;
mod transfer;
mod twin;
pub mod union;
mod unsynced;
pub mod watch;

/// Parts of a move that bulk copies share.
pub mod carry {
    pub use crate::chattr::Traits;
    pub use crate::skeleton::{Unfit, copy_xattrs};
    pub use crate::transfer::is_same;
}

pub use caller::Caller;
pub use error::{OpError, Result};
pub use index::{AwayBranch, IndexHealth};
pub use pool::Pool;
pub use union::{Held, Union};
