//! Administration of a mounted pool: branches, settings, state, reservations.

pub mod change;
pub mod explain;
pub mod live;
pub mod mount_watch;
pub mod reserve;
pub mod status;
pub mod watch;
