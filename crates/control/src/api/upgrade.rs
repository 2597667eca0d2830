//! Another version of the daemon in place of the one that serves, with the pool mounted.

use serde::{Deserialize, Serialize};

/// Asks for a step of an upgrade. The one who asks runs the check between the first two: a daemon starts no process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum UpgradeRequest {
    /// Opens the program, and says what it is to be checked with.
    Prepare {
        /// Path of the program; null: where the running one was started from.
        #[serde(default)]
        program: Option<String>,
    },
    /// Hands the pool over.
    Begin {
        /// Number of the preparation.
        ticket: u64,
        /// The line that the program printed in its check.
        #[serde(default)]
        answer: String,
    },
    /// Only tells how it went.
    Show,
}

/// How far an upgrade has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Upgrade {
    /// The stage.
    pub stage: UpgradeStage,
    /// Number of the preparation; 0: there was none since the mount.
    pub ticket: u64,
    /// Path of the program.
    pub program: String,
    /// Version that served before.
    pub from: String,
    /// Version that serves now.
    pub to: String,
    /// Milliseconds for which no request was served.
    pub pause_ms: Option<f64>,
    /// Why the pool stays with the version that served before.
    pub reason: Option<String>,
    /// Prepared: the daemon's process, and the numbers there of the descriptors of the program and of the state to check.
    #[serde(default)]
    pub check: Option<UpgradeCheck>,
}

/// Descriptors for the check of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UpgradeCheck {
    /// The daemon's process.
    pub pid: u32,
    /// The program.
    pub program_fd: i32,
    /// The state.
    pub state_fd: i32,
}

/// The stage of an upgrade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum UpgradeStage {
    /// There was none since the mount.
    #[default]
    None,
    /// The program is open, and to be checked.
    Prepared,
    /// The pool is being handed over.
    Running,
    /// The new program serves.
    Done,
    /// The old program serves on.
    Failed,
}
