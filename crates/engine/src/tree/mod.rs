//! The tree: objects by number, what a name means, where something new is put.

pub(crate) mod clashes;
pub(crate) mod entries;
pub mod inode;
pub(crate) mod parallel_lookup;
pub(crate) mod place;
pub(crate) mod resolve;
pub(crate) mod rights;
pub(crate) mod skeleton;
pub(crate) mod tree_lock;
pub(crate) mod unsynced_dirs;
