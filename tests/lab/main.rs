//! Pools over a real GlusterFS, and their answers while it is broken.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

mod command;
mod dead;
mod four;
mod full;
mod scenario;
mod served;
mod silent;
mod whole;
