//! `fsstack status`: one pool or all, with their branches.

use super::rule::misplaced;
use super::show::{self, Style};
use super::table::{Side, Table, age, latency, size};
use super::tier::percent;
use super::{Failed, dead, pool};
use fsstack_control::api::{Descriptors, JobStatus, SilentPool, Status, StatusList, TierStatus};
use std::ffi::OsStr;
use std::fmt::Write as _;

pub(crate) fn run(word: Option<&OsStr>, style: Style) -> Result<(), Failed> {
    let (list, first) = match word {
        Some(word) => {
            let status = pool::find(word)?.client().status()?;
            (StatusList { pools: vec![status], silent: Vec::new() }, None)
        }
        None => all(),
    };
    show::answer(style, &list, |list| {
        let silent =
            list.silent.iter().map(|pool| format!("{} ({}): {}\n", pool.mount_point, pool.id, pool.error));
        let parts: Vec<String> = list.pools.iter().map(human).chain(silent).collect();
        if parts.is_empty() { "no pool is mounted\n".to_owned() } else { parts.join("\n") }
    })?;
    first.map_or(Ok(()), Err)
}

/// Asks every pool. Returns the failure of the first that has no answer, too.
fn all() -> (StatusList, Option<Failed>) {
    let (mut list, mut first) = (StatusList { pools: Vec::new(), silent: Vec::new() }, None);
    let live = pool::all().live;
    for pool in &live {
        match pool.client().status() {
            Ok(status) => list.pools.push(status),
            Err(error) => {
                let (id, mount_point) = (pool.entry.id.clone(), pool.shown());
                list.silent.push(SilentPool { id, mount_point, error: error.to_string() });
                first.get_or_insert(Failed::from(error));
            }
        }
    }
    for mount in dead::mounts(&live, |_| true) {
        let (shown, error) = (mount.shown(), mount.reason());
        first.get_or_insert_with(|| Failed::Dead(format!("{shown}: {error}")));
        list.silent.push(SilentPool { id: mount.id(), mount_point: shown, error });
    }
    (list, first)
}

fn human(status: &Status) -> String {
    let mut text = String::new();
    let Status { id, mount_point, version, pid, transport, create, write_path, tables, restart, .. } = status;
    let granted = if status.passthrough { "" } else { " (the kernel has no passthrough here)" };
    let _ = writeln!(
        text,
        "{mount_point} ({id}): fsstack {version}, process {pid}, up {}",
        age(status.uptime_seconds)
    );
    let outlives = match restart.as_str() {
        "keep" => " restart=keep",
        "lost" => " restart=keep (its keeper has died: the pool ends with the daemon)",
        _ => "",
    };
    let _ =
        writeln!(text, "create={create} write-path={write_path}{granted} transport={transport}{outlives}");
    if status.read_only {
        text.push_str("mounted read-only: mount -o remount,rw lets programs change it\n");
    }
    for rule in &status.write_rules {
        let _ = writeln!(text, "write-path={} below {}", rule.write_path, rule.subtree);
    }
    for rule in &status.placement_rules {
        let _ = writeln!(text, "placement {} below {}", rule.rule, rule.dir);
    }
    text.push_str(&misplaced(status.misplaced));
    for tier in &status.tiers {
        let _ = writeln!(text, "{}", tier_line(tier));
    }
    let _ = writeln!(
        text,
        "open: {} passthrough, {} stacked ({} would go the other way); {} inodes, {} directories open, {} directory descriptors",
        status.open_files.passthrough,
        status.open_files.stacked,
        status.open_files.other_way,
        tables.inodes,
        tables.dirs,
        tables.dir_fds
    );
    let _ = writeln!(text, "{}", descriptors(status));
    for job in &status.jobs {
        let _ = writeln!(text, "{}", job_line(job));
    }
    text.push('\n');
    text + &branches(status)
}

/// How full the faster class of a tier is, and what the tier does.
pub(super) fn tier_line(tier: &TierStatus) -> String {
    format!("tier {}>{}: {} used, {}", tier.fast, tier.slow, percent(tier), tier.why)
}

/// How far a job at work is.
pub(super) fn job_line(job: &JobStatus) -> String {
    let JobStatus { id, kind, branch, state, moved_files, files, staying, .. } = job;
    let (moved, all) = (size(Some(job.moved_bytes)), size(Some(job.bytes)));
    format!(
        "job {id}: {kind} of {branch}: {state}, {moved_files} of {files} files, {moved} of {all}, {staying} staying"
    )
}

/// Warns when the daemon is near its limit of descriptors, at which no file can be opened any more.
fn descriptors(status: &Status) -> String {
    let Descriptors { open, limit } = status.descriptors;
    let Some(open) = open else { return format!("descriptors: limit {limit}") };
    let percent = (u128::from(open) * 100).checked_div(u128::from(limit)).unwrap_or_default();
    let near = if 80 <= percent { ": raise fs.nr_open or the service's LimitNOFILE" } else { "" };
    format!("descriptors: {open} of {limit} ({percent} %){near}")
}

fn branches(status: &Status) -> String {
    use Side::{Left, Right};
    let mut table = Table::new(&[
        ("BRANCH", Left),
        ("CLASS", Left),
        ("MODE", Left),
        ("STATE", Left),
        ("FREE", Right),
        ("SIZE", Right),
        ("FLOOR", Right),
        ("OPEN", Right),
        ("BUSY", Right),
        ("CALLS", Right),
        ("P50", Right),
        ("P99", Right),
        ("FAULTS", Right),
        ("MOVED", Right),
        ("INODES", Right),
    ]);
    for branch in &status.branches {
        table.row([
            branch.path.clone(),
            branch.class.clone().unwrap_or_else(|| "-".to_owned()),
            branch.mode.clone(),
            branch.state.clone(),
            size(branch.available),
            size(branch.total),
            size(Some(branch.floor)),
            branch.open_files.to_string(),
            branch.in_flight.to_string(),
            branch.calls.to_string(),
            latency(branch.p50_us),
            latency(branch.p99_us),
            branch.faults.to_string(),
            branch.moved_away.to_string(),
            branch.inodes_free.map_or_else(|| "-".to_owned(), |free| free.to_string()),
        ]);
    }
    table.text()
}
