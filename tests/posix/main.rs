//! Public test suites, on XFS and on the pool: the pool passes what XFS passes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

mod expected;
mod fsx;
mod pjdfstest;
mod suites;
mod test_beds;
