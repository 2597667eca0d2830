//! Advice on the options of a pool, each with its reason.

use super::DoctorReport;
use fsstack_control::api::{BranchStatus, Keys, Status};
use fsstack_pool::Size;

pub(super) fn advise(status: &Status, keys: &Keys, report: &mut DoctorReport) {
    let shown = status.mount_point.as_str();
    let value = |name: &str| keys.value(name).unwrap_or_default();
    let local = status.branches.iter().all(|branch| branch.local);
    match (status.passthrough, status.write_path.as_str()) {
        (true, "stacked") => report.warn(
            shown,
            "write-path=stacked: every byte goes through the daemon, though the kernel could write by itself: write-path=auto",
        ),
        (true, path) => report.ok(shown, format!("write-path={path}, and the kernel has passthrough for this mount")),
        (false, _) => report.warn(
            shown,
            "no passthrough for this mount (kernel before 6.9, a user's mount, or page-cache=writeback): data goes through the daemon",
        ),
    }
    if status.read_only {
        report.warn(
            shown,
            "mounted read-only: programs can change nothing, and interrupted drains and tiers wait: mount -o remount,rw",
        );
    }
    if value("page-cache") != "off" && local {
        let text = format!(
            "page-cache={}: the branches are local disks with a cache of their own: what is read is kept in memory twice: page-cache=off",
            value("page-cache")
        );
        report.warn(shown, text);
    }
    if !local && ["attr-timeout", "entry-timeout"].iter().any(|key| value(key) == "0") {
        report.warn(
            shown,
            "attr-timeout=0 or entry-timeout=0 over a network: each look at a name asks a server: 1 is coherent enough without out-of-band changes",
        );
    }
    if value("relocate") == "off" && value("write-path") == "stacked" {
        report.warn(shown, "relocate=off: a file that outgrows its branch gets ENOSPC, though it could be moved: relocate=on");
    }
    strict_rules(status, report);
    let headroom: u64 = value("passthrough-headroom").parse().map_or(0, |Size(bytes)| bytes);
    for branch in &status.branches {
        floor(branch, headroom, report);
    }
}

/// Warns of strict placement rules that no branch obeys: nothing can be made there.
fn strict_rules(status: &Status, report: &mut DoctorReport) {
    let takes = |path: &String| status.branches.iter().any(|at| at.path == *path && at.mode == "RW");
    for rule in status.placement_rules.iter().filter(|rule| rule.strict && !rule.branches.iter().any(takes)) {
        let text = format!(
            "placement rule {}={}: no branch is left that takes anything new there: ENOSPC",
            rule.dir, rule.rule
        );
        report.warn(&status.mount_point, text);
    }
}

fn floor(branch: &BranchStatus, headroom: u64, report: &mut DoctorReport) {
    let about = branch.path.as_str();
    let (Some(total), Some(available)) = (branch.total, branch.available) else { return };
    let shown = |bytes: u64| Size(bytes).approx().to_string();
    if total < branch.floor {
        let text = format!(
            "its floor of {} is more than all of it ({}): new files come here only as a last resort: lower minfreespace or the branch's floor",
            shown(branch.floor),
            shown(total)
        );
        report.warn(about, text);
    } else if branch.mode == "RW" && available < branch.floor {
        report.warn(
            about,
            format!(
                "{} free, under its floor of {}: new files go elsewhere",
                shown(available),
                shown(branch.floor)
            ),
        );
    }
    if total < headroom {
        let text = format!(
            "passthrough-headroom={} is more than all of it ({}): with write-path=auto no file is written by passthrough here: lower it",
            Size(headroom),
            shown(total)
        );
        report.warn(about, text);
    }
    if branch.refuses_passthrough {
        report.warn(
            about,
            "the kernel refuses passthrough on it (a stacked file system?): its files go through the daemon",
        );
    }
}
