//! How many requests the kernel sends to a FUSE daemon, counted by the kernel itself: its trace event.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use crate::trace::{Event, Trace, What};
use crate::{mounts, must};

/// The event of a request that is sent.
const EVENT: &str = "events/fuse/fuse_request_send";

/// Requests are noted from its beginning until it drops.
#[derive(Debug)]
pub struct Requests {
    trace: Trace,
    connection: u32,
}

impl Requests {
    /// Begins to note those of the daemon that serves what is mounted at `target`.
    #[track_caller]
    pub fn to(target: &Path) -> Self {
        must(Self::begin(target), "tracing the requests of a mount")
    }

    fn begin(target: &Path) -> Result<Self> {
        let connection = mounts::at(target)?.context("nothing is mounted there")?.minor;
        let trace = Trace::new(&format!("requests-{connection}"))?;
        trace.set("buffer_size_kb", "1024")?;
        trace.set(&format!("{EVENT}/filter"), &format!("connection == {connection}"))?;
        trace.set(&format!("{EVENT}/enable"), "1")?;
        Ok(Self { trace, connection })
    }

    /// Those since the last look, by what they are: `LOOKUP`, `CREATE`.
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
