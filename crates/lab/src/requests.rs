//! How many requests the kernel sends to a FUSE daemon, counted by the kernel itself: its trace event, in an instance of
//! our own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{mounts, must};

/// Where instances are made.
const INSTANCES: &str = "/sys/kernel/tracing/instances";
/// The event of a request that is sent.
const EVENT: &str = "events/fuse/fuse_request_send";

/// Whether the kernel can count them here.
pub(crate) fn can_be_counted() -> bool {
    Path::new("/sys/kernel/tracing").join(EVENT).exists() && Path::new(INSTANCES).exists()
}

/// Requests are noted from its beginning until it drops.
#[derive(Debug)]
pub struct Requests {
    instance: PathBuf,
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
        let instance = Path::new(INSTANCES).join(format!("fsstack-{}-{connection}", std::process::id()));
        fs::create_dir(&instance)?;
        let made = Self { instance, connection };
        made.set("buffer_size_kb", "1024")?;
        made.set(&format!("{EVENT}/filter"), &format!("connection == {connection}"))?;
        made.set(&format!("{EVENT}/enable"), "1")?;
        Ok(made)
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        fs::write(self.instance.join(file), value).with_context(|| format!("{file} of a trace"))
    }

    /// Those since the last look, by what they are: `LOOKUP`, `CREATE`.
    #[track_caller]
    #[must_use]
    pub fn counted(&self) -> BTreeMap<String, usize> {
        let trace = self.instance.join("trace");
        let text = must(fs::read_to_string(&trace).map_err(Into::into), "reading a trace");
        must(fs::write(&trace, "").map_err(Into::into), "emptying a trace");
        let ours = format!("connection {} ", self.connection);
        let mut counted = BTreeMap::new();
        for line in text.lines().filter(|line| line.contains(&ours)) {
            let name = line.split_once("(FUSE_").and_then(|(_, rest)| rest.split_once(')'));
            if let Some((name, _)) = name {
                *counted.entry(name.to_owned()).or_default() += 1;
            }
        }
        counted
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        let gone =
            self.set(&format!("{EVENT}/enable"), "0").and_then(|()| Ok(fs::remove_dir(&self.instance)?));
        assert!(gone.is_ok() || std::thread::panicking(), "a trace stays: {gone:?}");
    }
}
