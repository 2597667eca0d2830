//! The state of a daemon that is handed over, and the check whether this program can go on with it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use fsstack_engine::handover::PoolState;
use fsstack_engine::kept::Kept;
use fsstack_fuse::{Granted, known_flags};
use fsstack_sys::seccomp;
use serde::{Deserialize, Serialize};

use super::format::{self, BadState};
use super::settings::SettingsRow;

/// The state of a daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PassedState {
    /// Version of the program that wrote it.
    pub(crate) version: String,
    /// Path of the program that goes on with the state: the next upgrade is to that path, unless it names another one.
    pub(crate) program: Vec<u8>,
    /// Path of the program that wrote it.
    pub(crate) program_before: Vec<u8>,
    /// A program that is checked answers with this text: so it has read the state.
    pub(crate) question: String,
    /// System calls that the process's filter allows; None: it has none.
    pub(crate) calls: Option<Vec<String>>,
    pub(crate) settings: SettingsRow,
    pub(crate) mount: MountRow,
    /// The pool's name in the registry.
    pub(crate) pool_id: String,
    /// The pool's id, for branches that cannot store it.
    pub(crate) uuid: Option<String>,
    /// Time since the mount.
    pub(crate) uptime: Duration,
    /// When requests came to rest, since the machine's start.
    pub(crate) paused_at: Duration,
    /// Number of the upgrade.
    pub(crate) ticket: u64,
    /// Requests that wait for locks, each with the number of the descriptor that it is answered by.
    pub(crate) lock_waits: Vec<(i32, Vec<u8>)>,
    /// Numbers of the descriptors by which the control socket and the metrics' address are listened at.
    pub(crate) listeners: [Option<i32>; 2],
    /// Format of the memory that outlives the daemon; None: there is none.
    pub(crate) kept: Option<u64>,
    pub(crate) pool: PoolState,
}

/// Features that were agreed on with the kernel, and its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountRow {
    /// Number of the device's descriptor.
    pub(crate) device: i32,
    pub(crate) dev: Option<u64>,
    passthrough: bool,
    setxattr_ext: bool,
    kills_privileges: bool,
    payload: u32,
    flags: u64,
}

impl MountRow {
    pub(crate) fn of(device: i32, dev: Option<u64>, granted: &Granted) -> Self {
        let Granted { passthrough, setxattr_ext, ring: _, kills_privileges, payload, flags } = *granted;
        Self { device, dev, passthrough, setxattr_ext, kills_privileges, payload, flags }
    }

    pub(crate) fn granted(&self) -> Granted {
        let Self { passthrough, setxattr_ext, kills_privileges, payload, flags, .. } = *self;
        Granted { passthrough, setxattr_ext, ring: false, kills_privileges, payload, flags }
    }
}

impl PassedState {
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, String> {
        postcard::to_allocvec(self).map_err(|error| format!("state: {error}"))
    }

    /// Path of the program that serves with this state: the one that wrote it, where the next one could not serve.
    pub(crate) fn path(&self, is_back: bool) -> PathBuf {
        let path = if is_back { &self.program_before } else { &self.program };
        PathBuf::from(OsString::from_vec(path.clone()))
    }

    /// The state with its header.
    ///
    /// # Errors
    /// Why it is none for this program.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, BadState> {
        let (state, rest) = postcard::take_from_bytes(format::body(bytes)?)
            .map_err(|error| BadState::Content(error.to_string()))?;
        if rest.is_empty() { Ok(state) } else { Err(BadState::Content("it has a rest".to_owned())) }
    }

    /// Numbers of all descriptors that it names.
    pub(crate) fn descriptors(&self) -> Vec<i32> {
        let waits = self.lock_waits.iter().map(|(device, _)| *device);
        self.pool
            .descriptors()
            .into_iter()
            .chain(waits)
            .chain(self.listeners.into_iter().flatten())
            .chain([self.mount.device])
            .collect()
    }

    /// Whether this program can serve what was agreed.
    ///
    /// # Errors
    /// One line: what it lacks.
    pub(crate) fn check(&self) -> Result<(), String> {
        let strange = self.mount.flags & !known_flags();
        if strange != 0 {
            return Err(format!(
                "version {} has agreed with the kernel on features that this program does not have (INIT flags {strange:#x})",
                self.version
            ));
        }
        if self.kept.is_some_and(|format| format != Kept::FORMAT) {
            return Err(format!(
                "restart=keep: version {} keeps open files in another form: unmount and mount to change versions",
                self.version
            ));
        }
        self.settings.settings()?;
        self.pool.specs()?;
        // A keeper has no filter that the next daemon would inherit.
        let Some(calls) = self.calls.as_ref().filter(|_| self.kept.is_none()) else { return Ok(()) };
        let lacking = seccomp::allowed().into_iter().filter(|call| !calls.contains(call)).count();
        if lacking > 0 {
            return Err(format!(
                "it needs system calls ({lacking}) that the filter of version {} refuses (seccomp=): unmount and mount to change versions",
                self.version
            ));
        }
        Ok(())
    }
}
