//! Scenarios in which every system call fails once, and what the pool then says and holds.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]
