//! Moves of files to other branches: because a branch is full, or because a job has files leave it.

pub(crate) mod allocation;
pub(crate) mod clone_metadata;
pub(crate) mod directories;
pub(crate) mod group;
pub(crate) mod inode_flags;
pub(crate) mod job_move;
pub(crate) mod movers;
pub(crate) mod moving;
pub(crate) mod naming;
pub(crate) mod reasons;
pub(crate) mod refusals;
pub(crate) mod relocate;
pub(crate) mod special;
pub(crate) mod transfer;
