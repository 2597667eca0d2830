//! The identity of objects over mounts: the pool's id, numbers and how they are made, marks on objects, and the index.
//!
//! Objects are known to the kernel and to NFS clients by numbers that outlive mounts, moves between branches and another order of
//! the branches. This crate knows branches, not what a name in the pool means; what it stores is in `docs/dev/on-disk.md`.

pub mod index;
pub mod mark;
pub mod marked_branch;
pub mod number;
pub mod poolid;
pub mod zeros;
