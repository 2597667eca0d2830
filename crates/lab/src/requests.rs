//! Counts the requests that the kernel sends to a FUSE daemon, by the kernel's trace event.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use crate::trace::{Event, Trace, What};
use crate::{mounts, must};

/// Trace event of a sent request.
const EVENT: &str = "events/fuse/fuse_request_send";

/// A recording of requests, from its start until drop.
#[derive(Debug)]
pub struct Requests {
    trace: Trace,
    connection: u32,
}

impl Requests {
    /// Starts recording requests to the daemon of the mount at `target`.
    #[track_caller]
    pub fn to(target: &Path) -> Self {
        must(Self::begin(target), "tracing the requests of a mount")
    }

    fn begin(target: &Path) -> Result<Self> {
        let connection = mounts::at(target)?.context("nothing is mounted there")?.connection();
        let trace = Trace::new(&format!("requests-{connection}"))?;
        trace.set("buffer_size_kb", "1024")?;
        trace.set(&format!("{EVENT}/filter"), &format!("connection == {connection}"))?;
        trace.set(&format!("{EVENT}/enable"), "1")?;
        Ok(Self { trace, connection })
    }

    /// Requests since the last call, by name: `LOOKUP`, `CREATE`.
    #[track_caller]
    #[must_use]
    pub fn counted(&self) -> BTreeMap<String, usize> {
        let text = must(self.trace.text(), "reading a trace");
        must(self.trace.clear(), "emptying a trace");
        let mut counted = BTreeMap::new();
        for event in text.lines().filter_map(Event::read) {
            match event.what {
                What::Sent { connection, name, .. } if connection == self.connection => {
                    *counted.entry(name).or_default() += 1;
                }
                _ => {}
            }
        }
        counted
    }
}
