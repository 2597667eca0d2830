//! Pools mounted by the real `mount.fsstack`: one file a subject.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

mod basic;
mod lifetime;
