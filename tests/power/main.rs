//! Power cuts at every moment: each branch has its own journal, and is left in any of its states since its last sync.
//!
//! A scenario runs once on real file systems. The content of each disk is kept after each call that changes or syncs
//! something (`record`). Every combination that a cut may leave (`recording`) is mounted and judged (`judge`) by the
//! promises (`model`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

mod act;
mod after;
mod batches;
mod bulk;
mod disk;
#[path = "../model/engine.rs"]
#[expect(dead_code, reason = "shared with the tests against the model")]
mod engine;
mod groups;
mod host;
mod judge;
mod known;
mod model;
mod page;
mod pairs;
mod plan;
mod record;
mod recording;
mod report;
mod run;
mod second;
mod shown;
mod shrink;
mod single;
