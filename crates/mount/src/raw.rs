//! The options as typed, before anything is looked at in the world: later ones win, policies are all kept.

use crate::log::LogTarget;
use crate::options::{Origin, Typed};
use crate::settings::{
    AccessTimes, Degraded, Locks, OutOfBand, PageCache, Relocate, Require, RunIn, Seccomp, StatfsView,
    Transport, TransportScheduling, Verify, WritePath,
};
use fsstack_engine::poolid::PoolId;
use fsstack_engine::rules::Rules;
use fsstack_pool::{Chain, Floor, Size};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;
use tracing::Level;

/// Given value of one option; knows its spelling for the messages that refuse it.
#[derive(Clone, Debug)]
pub(crate) struct Given<T>(Option<Gift<T>>);

#[derive(Clone, Debug)]
struct Gift<T> {
    value: T,
    spelled: String,
    origin: Origin,
}

impl<T> Default for Given<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Given<T> {
    /// Takes the value in place of any before it. Never fails, so that a table's setter can end with it.
    pub(crate) fn give(&mut self, typed: &Typed<'_>, value: T) -> Result<(), String> {
        self.0 = Some(Gift { value, spelled: typed.to_string(), origin: typed.origin });
        Ok(())
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_ref().map(|gift| &gift.value)
    }

    pub(crate) fn or(&self, default: T) -> T
    where
        T: Clone,
    {
        self.get().cloned().unwrap_or(default)
    }

    /// Its spelling; only for options that were given.
    pub(crate) fn spelled(&self) -> &str {
        self.0.as_ref().map_or("", |gift| &gift.spelled)
    }

    pub(crate) fn origin(&self) -> Option<Origin> {
        self.0.as_ref().map(|gift| gift.origin)
    }
}

/// A placement policy under one of the names that choose it.
#[derive(Clone, Debug)]
pub(crate) struct PolicyChoice {
    pub(crate) name: String,
    pub(crate) spelled: String,
    pub(crate) origin: Origin,
    pub(crate) chain: Chain,
}

/// Everything that was typed.
#[derive(Clone, Debug, Default)]
pub struct RawOptions {
    pub(crate) policies: Vec<PolicyChoice>,
    pub(crate) floor: Given<Floor>,
    pub(crate) mlimit: Given<Floor>,
    pub(crate) min_inodes: Given<u64>,
    pub(crate) relocate: Given<bool>,
    pub(crate) relocate_policy: Given<Chain>,
    pub(crate) relocate_verify: Given<Verify>,
    pub(crate) relocate_speed: Given<Option<NonZeroU64>>,
    pub(crate) require: Given<Require>,
    pub(crate) branches_timeout: Given<Duration>,
    pub(crate) wait_for_mounts: Given<bool>,
    pub(crate) write_path: Given<WritePath>,
    pub(crate) page_cache: Given<PageCache>,
    pub(crate) cache_files: Given<PageCache>,
    pub(crate) cache_writeback: Given<bool>,
    pub(crate) passthrough_headroom: Given<Size>,
    pub(crate) attr_timeout: Given<Duration>,
    pub(crate) entry_timeout: Given<Duration>,
    pub(crate) negative_timeout: Given<Duration>,
    pub(crate) branch_timeout: Given<Duration>,
    pub(crate) out_of_band: Given<OutOfBand>,
    pub(crate) branch_inflight: Given<usize>,
    pub(crate) degraded: Given<Degraded>,
    pub(crate) transport: Given<Transport>,
    pub(crate) transport_scheduling: Given<TransportScheduling>,
    pub(crate) seccomp: Given<Seccomp>,
    pub(crate) max_threads: Given<NonZeroUsize>,
    pub(crate) max_write: Given<u32>,
    pub(crate) statfs: Given<StatfsView>,
    pub(crate) locks: Given<Locks>,
    pub(crate) nfs_export: Given<bool>,
    pub(crate) nfs_identity: Given<PoolId>,
    pub(crate) state_dir: Given<PathBuf>,
    pub(crate) allow_other: Given<bool>,
    pub(crate) default_permissions: Given<bool>,
    pub(crate) fsname: Given<OsString>,
    pub(crate) subtype: Given<String>,
    pub(crate) nonempty: Given<bool>,
    pub(crate) run_in: Given<RunIn>,
    pub(crate) log: Given<LogTarget>,
    pub(crate) log_level: Given<Level>,
    pub(crate) config: Vec<PathBuf>,
    pub(crate) metrics: Given<SocketAddr>,
    pub(crate) write_rules: Given<Rules>,
    pub(crate) flags: RawFlags,
    given: Vec<&'static str>,
    notices: Vec<String>,
    remarks: Vec<String>,
}

/// A restriction that mount(8) and mount.fuse always write the opposite of when it is not given (`rw`, `suid`,
/// `dev`): so what the command line says for the opposite does not undo what the config file says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Restriction(Option<Origin>);

impl Restriction {
    pub(crate) fn set(&mut self, typed: &Typed<'_>) {
        self.0 = Some(typed.origin);
    }

    pub(crate) fn undo(&mut self, typed: &Typed<'_>) {
        self.0 = self.0.filter(|origin| *origin != typed.origin);
    }

    pub(crate) fn holds(self) -> bool {
        self.0.is_some()
    }
}

/// The flags of mount(8).
#[derive(Clone, Debug)]
pub(crate) struct RawFlags {
    pub(crate) read_only: Restriction,
    pub(crate) access_times: AccessTimes,
    pub(crate) directory_access_times: bool,
    pub(crate) no_suid: Restriction,
    pub(crate) no_devices: Restriction,
    pub(crate) execute: bool,
    pub(crate) synchronous: bool,
    pub(crate) synchronous_directories: bool,
}

impl Default for RawFlags {
    fn default() -> Self {
        Self {
            read_only: Restriction::default(),
            access_times: AccessTimes::Relative,
            directory_access_times: true,
            no_suid: Restriction::default(),
            no_devices: Restriction::default(),
            execute: true,
            synchronous: false,
            synchronous_directories: false,
        }
    }
}

impl RawOptions {
    /// Keeps a policy; the same name given again goes in place of what it said before.
    pub(crate) fn choose_policy(&mut self, typed: &Typed<'_>, chain: Chain) {
        let name = typed.name.replace('_', "-");
        self.policies.retain(|before| before.name != name);
        self.policies.push(PolicyChoice { name, spelled: typed.to_string(), origin: typed.origin, chain });
    }

    /// Remembers that an option was typed behind `-o`.
    pub(crate) fn note_given(&mut self, name: &'static str) {
        if !self.given.contains(&name) {
            self.given.push(name);
        }
    }

    /// The options that were typed behind `-o`.
    pub(crate) fn given(&self) -> &[&'static str] {
        &self.given
    }

    /// Something the user should know.
    pub(crate) fn notice(&mut self, text: String) {
        if !self.notices.contains(&text) {
            self.notices.push(text);
        }
    }

    /// Adds a line for the log alone.
    pub(crate) fn remark(&mut self, text: &str) {
        self.remarks.push(text.to_owned());
    }

    pub(crate) fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    pub(crate) fn relocation(&self) -> Relocate {
        if self.relocate.or(true) { Relocate::On } else { Relocate::Off }
    }
}
