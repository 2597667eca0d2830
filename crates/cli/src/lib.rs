//! `fsstack`, the operator's command, and its bulk copy. Linux only.

mod copy;

pub mod command;
pub mod nfs;
