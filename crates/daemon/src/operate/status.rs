//! The pool as it is now.

use super::Served;
use crate::keeper;
use crate::values;
use fsstack_branch::metrics::{BranchMetricsSnapshot, ErrorClass};
use fsstack_control::api::{BranchStatus, Descriptors, OpenFiles, Status, Tables, WriteRule};
use fsstack_engine::admin::status::BranchStatus as Known;
use fsstack_pool::{BranchMode, Printable};
use fsstack_sys::at::Mounts;
use fsstack_sys::process::descriptors;

impl Served {
    pub(super) fn tell_status(&self) -> Status {
        self.told_of(&self.union.status())
    }

    /// `known`, and what only the daemon knows besides.
    pub(super) fn told_of(&self, known: &fsstack_engine::admin::status::Status) -> Status {
        let settings = self.settings.lock().clone();
        let rule = |rule: &fsstack_engine::rules::Rule| WriteRule {
            subtree: format!("/{}", Printable(rule.dir.path())),
            write_path: rule.how.to_string(),
        };
        let (open, limit) = descriptors();
        let bytes = |blocks: u64, unit: u32| blocks.saturating_mul(u64::from(unit));
        let size = self.union.statfs().ok();
        Status {
            id: self.id.clone(),
            mount_point: Printable::path(&settings.mount_point).to_string(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.since.elapsed().as_secs(),
            transport: self.transport.to_owned(),
            restart: self.restart().to_owned(),
            passthrough: self.passthrough,
            read_only: self.is_read_only(),
            create: settings.options.engine.create.to_string(),
            write_path: settings.options.engine.write_path.to_string(),
            write_rules: settings.options.engine.rules.iter().map(rule).collect(),
            placement_rules: known.rules.iter().map(super::rules::shown).collect(),
            misplaced: known.misplaced,
            tiers: self.tell_tiers(),
            total: size.map(|size| bytes(size.blocks, size.block_size)),
            available: size.map(|size| bytes(size.available, size.block_size)),
            branches: known.branches.iter().map(|branch| self.tell_branch(branch)).collect(),
            open_files: OpenFiles {
                passthrough: values::count(known.open.passthrough),
                stacked: values::count(known.open.stacked),
                other_way: values::count(known.open.other_way),
            },
            tables: Tables {
                inodes: values::count(known.held.inodes),
                files: values::count(known.held.files),
                dirs: values::count(known.held.dirs),
                dir_fds: values::count(known.held.dir_fds),
                listing_entries: values::count(known.held.listing_entries),
                lookups_known: known.metrics.lookups_known,
                lookups_asked: known.metrics.lookups_asked,
                opens_passthrough: known.metrics.opens_passthrough,
                opens_stacked: known.metrics.opens_stacked,
            },
            descriptors: Descriptors { open, limit },
            jobs: self.jobs_at_work(),
            pool_id: self.union.id().map(|id| id.to_string()),
            index: self.union.index_health().to_string(),
        }
    }
}

impl Served {
    /// Consequence of the daemon's death.
    fn restart(&self) -> &'static str {
        match self.union.kept() {
            None => "off",
            Some(kept) if keeper::is_kept(kept) => "keep",
            Some(_) => "lost",
        }
    }
}

fn faults(metrics: &BranchMetricsSnapshot) -> u64 {
    metrics.errors.iter().filter(|(class, _)| *class == ErrorClass::Fault).map(|(_, count)| count).sum()
}

fn micros(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl Served {
    fn tell_branch(&self, branch: &Known) -> BranchStatus {
        let pool = self.union.pool();
        let live = pool.live(branch.slot);
        let health = live.map_or("down", |branch| branch.state().name());
        let cross_mounts = live.is_some_and(|branch| branch.mounts == Mounts::Cross);
        BranchStatus { cross_mounts, ..tell_branch(branch, health) }
    }
}

fn tell_branch(branch: &Known, health: &'static str) -> BranchStatus {
    let state = match branch.space {
        _ if branch.leaving => "leaving",
        _ if health != "up" => health,
        None => "down",
        Some(_) if branch.mounted_read_only && branch.mode != BranchMode::ReadOnly => "read-only",
        Some(_) => "up",
    };
    BranchStatus {
        path: Printable::path(&branch.path).to_string(),
        id: branch.id.get(),
        class: branch.class.as_ref().map(ToString::to_string),
        mode: branch.mode.name().to_owned(),
        state: state.to_owned(),
        local: branch.local,
        cross_mounts: false,
        total: branch.space.map(|space| space.total),
        available: branch.space.map(|space| space.available),
        floor: branch.floor,
        inodes_free: branch.space.map(|space| space.inodes_free),
        reserved: branch.reserved,
        refuses_passthrough: branch.refuses_passthrough,
        open_files: values::count(branch.open_files),
        in_flight: branch.metrics.in_flight,
        calls: branch.metrics.count(),
        faults: faults(&branch.metrics),
        p50_us: branch.metrics.quantile(0.5).map(micros),
        p99_us: branch.metrics.quantile(0.99).map(micros),
        read_bytes: branch.metrics.read_bytes,
        written_bytes: branch.metrics.written_bytes,
        moved_away: branch.metrics.moved_away,
        moved_here: branch.metrics.moved_here,
    }
}
