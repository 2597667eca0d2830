//! The daemon's side of the control socket: the operator's requests to this process's pool.
//!
//! Changes of settings that come at the same time come one after the other. Settings are replaced whole, so that a request of
//! the pool sees all of a change or nothing of it.

mod branches;
mod calls;
mod catalogue;
mod change;
pub(crate) mod control_file;
mod copying;
mod explain;
mod handles;
mod jobs;
mod metrics;
mod persist;
mod read_only;
mod rules;
mod status;
mod tiers;
mod upgrade;

use crate::handover::Handover;
use crate::log::LogLevel;
use crate::options;
use crate::settings::Settings;
pub(crate) use branches::Leaving;
use fsstack_control::api::{
    BranchChanged, BranchRequest, CallsByCaller, CataloguePage, CatalogueRequest, Changed, Explained,
    HandlesRequest, HandlesTried, JobRequest, Jobs, Key, Keys, PlacementExplained, ProfileRequest,
    RecentLines, RuleRequest, Rules, SettingsRequest, SlowCalls, SlowRequest, StaleRows, StaleRowsRequest,
    Status, TierList, TierRequest, Upgrade, UpgradeRequest, When, WritePathChanged, WritePathRequest,
};
use fsstack_control::{Copying, Operator, Refusal};
use fsstack_engine::Union;
use fsstack_fuse::Adapter;
use fsstack_sync::Mutex;
use fsstack_sync::atomic::AtomicBool;
use fsstack_sync::time::Instant;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// A pool that is served, as its operator sees it.
#[derive(Debug)]
pub(crate) struct Served {
    /// For threads that go on after the request that began them.
    pub(crate) itself: Weak<Self>,
    /// Its name in the registry, and the registry.
    pub(crate) id: String,
    pub(crate) registry: Option<PathBuf>,
    pub(crate) union: Arc<Union>,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) level: LogLevel,
    pub(crate) handover: Handover,
    /// How requests come.
    pub(crate) transport: &'static str,
    /// The kernel has passthrough for this mount.
    pub(crate) passthrough: bool,
    pub(crate) since: Instant,
    /// Held during a change of the settings, which may write a config file on a disk that hangs. Order: before `settings`.
    pub(crate) changing: Mutex<()>,
    /// Locked by requests of programs too, so never during a call that may hang. Order: before anything of the engine.
    pub(crate) settings: Mutex<Settings>,
    /// Branches that go when their files are closed, each with what calls that off.
    pub(crate) leaving: Leaving,
    /// Interrupted drains and tiers wait, as the pool was read-only at its mount.
    pub(crate) moves_wait: AtomicBool,
}

impl Operator for Served {
    fn status(&self) -> Status {
        self.tell_status()
    }

    fn keys(&self) -> Keys {
        let mut settings = self.settings.lock().clone();
        // SIGUSR1 and SIGUSR2 change it too.
        settings.options.log.level = self.level.get();
        let key = |row: &options::Row| Key {
            key: row.name().to_owned(),
            value: row.get(&settings.options).unwrap_or_default(),
            changes: if row.is_live() { When::AtOnce } else { When::AtMount },
            help: row.help.to_owned(),
            also: row.names.iter().skip(1).map(|name| (*name).to_owned()).collect(),
        };
        Keys { keys: options::keys().map(key).collect() }
    }

    fn change(&self, request: &SettingsRequest) -> Result<Changed, Refusal> {
        let _turn = self.handover.operators.read();
        let changed = self.make_changes(request).inspect(|_| self.note_state());
        if request.remount && changed.is_ok() {
            // The mount's flags depend on where the branches are now: a disk may be back with another device number.
            self.relist();
            self.begin_waiting_moves();
        }
        changed
    }

    fn write_path(&self, request: &WritePathRequest) -> Result<WritePathChanged, Refusal> {
        let _turn = self.handover.operators.read();
        self.switch_write_path(request).inspect(|_| self.note_state())
    }

    fn branch(&self, request: &BranchRequest) -> Result<BranchChanged, Refusal> {
        let _turn = self.handover.operators.read();
        self.change_branch(request).inspect(|_| self.note_state())
    }

    fn handles(&self, request: &HandlesRequest) -> HandlesTried {
        self.try_handles(request)
    }

    fn stale_rows(&self, request: &StaleRowsRequest) -> StaleRows {
        let _turn = self.handover.operators.read();
        self.look_at_rows(request)
    }

    fn jobs(&self, request: &JobRequest) -> Result<Jobs, Refusal> {
        let _turn = self.handover.operators.read();
        let is_change = !matches!(request, JobRequest::Show { .. });
        self.obey_job(request).inspect(|_| {
            if is_change {
                self.note_state();
            }
        })
    }

    fn rules(&self, request: &RuleRequest) -> Result<Rules, Refusal> {
        let _turn = self.handover.operators.read();
        self.obey_rule(request).inspect(|_| self.note_state())
    }

    fn catalogue(&self, request: &CatalogueRequest) -> Result<CataloguePage, Refusal> {
        self.look_up_names(request)
    }

    fn tiers(&self, request: &TierRequest) -> Result<TierList, Refusal> {
        let _turn = self.handover.operators.read();
        self.obey_tier(request).inspect(|_| self.note_state())
    }

    fn upgrade(self: Arc<Self>, request: &UpgradeRequest) -> Result<Upgrade, Refusal> {
        self.step_of_upgrade(request)
    }

    fn slow_calls(&self, request: &SlowRequest) -> SlowCalls {
        self.tell_slow_calls(request)
    }

    fn log_lines(&self) -> RecentLines {
        RecentLines { lines: crate::log::recent() }
    }

    fn profile(&self, request: &ProfileRequest) -> CallsByCaller {
        self.tell_profile(request)
    }

    fn explain(&self, path: &[u8]) -> Result<Explained, Refusal> {
        self.explain_path(path)
    }

    fn explain_create(&self, path: &[u8], size: u64) -> Result<PlacementExplained, Refusal> {
        self.explain_placement(path, size)
    }

    fn copy(&self) -> Box<dyn Copying> {
        self.begin_copy()
    }

    fn metrics(&self) -> String {
        let known = self.union.status();
        metrics::page(&self.told_of(&known), &known)
    }
}
