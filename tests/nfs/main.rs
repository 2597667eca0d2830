//! A pool exported by a real NFS server: a client's handles over all events of the pool.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

mod ganesha;
mod replaced;
mod test_bed;
