//! A pool exported by a real NFS server: handles that a client holds, over all that may happen to the pool.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

mod ganesha;
mod test_bed;
