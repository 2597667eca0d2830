//! A branch of a pool: a directory of another file system, held by descriptor.
//!
//! It may hang, die, and be mounted again. Calls to it go through [`branch::Branch::ask`], which limits how many are
//! inside, measures them, and diagnoses a call that fails or does not return. This crate knows nothing of what a pool
//! stores on its branches (names, numbers, records); the pool gets changes through [`events::BranchEvents`].

pub mod admin_state;
pub mod branch;
pub mod caller;
pub mod dir_fd;
pub mod entries;
pub mod error;
pub mod events;
mod fs_kind;
pub mod health;
pub mod known_root;
mod known_space;
mod lease_waits;
pub mod longest;
pub mod metrics;
pub mod mount_root;
pub mod mounted_fd;
mod refused_writes;
pub mod thread;

pub use fsstack_sync::ranked;

pub use branch::Branch;
pub use caller::Caller;
pub use error::{OpError, Result};
