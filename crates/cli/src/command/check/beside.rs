//! The daemon beside which findings are fixed: its branches as they were when the check began, and what it has open.

use super::fix::Fixed;
use fsstack_control::Client;
use fsstack_control::api::Status;
use fsstack_sys::Stat;
use std::os::unix::fs::MetadataExt as _;

/// Identity, mode and state of a branch.
#[derive(PartialEq, Eq)]
struct ToldBranch {
    id: u16,
    path: String,
    mode: String,
    state: String,
}

/// A pool's daemon, and its branches when the check began.
pub(super) struct BesideDaemon {
    pid: u32,
    client: Client,
    branches: Vec<ToldBranch>,
}

impl BesideDaemon {
    /// The daemon with this process, whose `status` the check goes by.
    pub(super) fn new(pid: u32, client: Client, status: &Status) -> Self {
        Self { pid, client, branches: told(status) }
    }

    /// Whether the pool's branches are still those of the start, in order, mode and state: a copy that is shown from a
    /// branch that leaves is no reason to set another one aside.
    pub(super) fn has_the_branches_of_the_start(&self) -> Fixed {
        let status = self.client.status().map_err(|error| format!("cannot ask for the branches: {error}"))?;
        if told(&status) == self.branches {
            return Ok(());
        }
        Err("the branches have changed; run it again".to_owned())
    }

    /// Whether the daemon has no descriptor of the object. Files that programs write by passthrough have one too.
    pub(super) fn has_not_open(&self, object: &Stat) -> Fixed {
        let pid = self.pid;
        let unknown = |error| format!("cannot tell whether it is open: /proc/{pid}/fd: {error}");
        for descriptor in std::fs::read_dir(format!("/proc/{pid}/fd")).map_err(unknown)? {
            let path = descriptor.map_err(unknown)?.path();
            // Closed meanwhile.
            let Ok(metadata) = std::fs::metadata(path) else { continue };
            if (metadata.dev(), metadata.ino()) == (object.dev, object.ino) {
                return Err("a program has it open; run it again when it is closed".to_owned());
            }
        }
        Ok(())
    }
}

fn told(status: &Status) -> Vec<ToldBranch> {
    let of = status.branches.iter();
    of.map(|branch| ToldBranch {
        id: branch.id,
        path: branch.path.clone(),
        mode: branch.mode.clone(),
        state: branch.state.clone(),
    })
    .collect()
}
