//! The engine on temporary directories, without FUSE: one file an operation.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]
