//! Administration of a mounted pool: branches, settings, state, reservations.

mod away;
mod branch_recovery;
pub mod change;
pub mod explain;
pub mod handles;
mod jobs;
mod known;
pub mod live;
pub mod mount_watch;
pub mod reserve;
pub mod status;
pub mod watch;
