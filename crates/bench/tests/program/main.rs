//! fsstack-bench as users run it: program, files, invalid input.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

mod command;
mod formats;
mod interrupted;
mod started;
mod test_beds;
