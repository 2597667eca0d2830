//! The kernel, its limits, and mounts whose daemons are gone.

use super::DoctorReport;
use crate::command::dead;
use crate::command::pool::Pool;
use fsstack_control::api::Descriptors;
use std::fs;
use std::path::Path;

/// Enough descriptors for a large pool: one for each open file and directory.
const ENOUGH_FILES: u64 = 16_384;

/// Default maximum of pages per request.
const USUAL_PAGES: u64 = 256;

/// Measured in docs/figures/operations.md: names over /dev/fuse gain a tenth to two thirds, over io_uring nothing.
const HALTS_AT_ONCE: &str = "haltpoll.guest_halt_poll_ns=0: idle virtual CPUs halt at once, and requests by /dev/fuse wait for \
     them to wake: set it to 200000 (/sys/module/haltpoll/parameters), or use transport=ring";

pub(super) fn kernel(report: &mut DoctorReport) {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    match version(&release) {
        Some(version) if version < (5, 6) => {
            report.fail(
                "kernel",
                format!("{release}: older than 5.6, which has openat2(2): no pool can be mounted"),
            );
        }
        Some(version) if version < (6, 9) => {
            report.warn(
                "kernel",
                format!("{release}: no FUSE passthrough before 6.9: all data goes through the daemon"),
            );
        }
        _ => report.ok("kernel", format!("{release}: has FUSE passthrough")),
    }
    match fs::metadata("/dev/fuse") {
        Ok(_) => report.ok("kernel", "/dev/fuse is there"),
        Err(error) => report.fail("kernel", format!("/dev/fuse: {error}: load the module fuse")),
    }
    match read("/sys/module/fuse/parameters/enable_uring").as_deref() {
        Some("Y" | "1") => report.ok("kernel", "FUSE over io_uring is switched on"),
        Some(_) => report.warn(
            "kernel",
            "FUSE over io_uring is switched off: transport=ring switches it on, or enable_uring=1 of the module fuse",
        ),
        None => report.warn("kernel", "no FUSE over io_uring (Linux 6.14 and later have it): requests come by /dev/fuse"),
    }
    match read("/proc/sys/kernel/io_uring_disabled").as_deref() {
        None | Some("0") => report.ok("kernel", "io_uring may be used"),
        Some(level) => report.warn(
            "kernel",
            format!("kernel.io_uring_disabled={level}: without io_uring requests come by /dev/fuse"),
        ),
    }
}

/// Tells whether idle CPUs of a virtual machine poll before they halt.
pub(super) fn idle(report: &mut DoctorReport) {
    let governor = read("/sys/devices/system/cpu/cpuidle/current_governor");
    let polls = read("/sys/module/haltpoll/parameters/guest_halt_poll_ns");
    match polled(governor.as_deref(), polls.as_deref()) {
        None => {}
        Some("0") => report.warn("idle", HALTS_AT_ONCE),
        Some(ns) => {
            report.ok("idle", format!("haltpoll.guest_halt_poll_ns={ns}: idle CPUs poll before they halt"))
        }
    }
}

/// Nanoseconds of polling; None if another governor decides, as on hardware.
fn polled<'a>(governor: Option<&str>, ns: Option<&'a str>) -> Option<&'a str> {
    ns.filter(|_| governor == Some("haltpoll"))
}

pub(super) fn limits(report: &mut DoctorReport) {
    match read("/proc/sys/fs/fuse/max_pages_limit").and_then(|text| text.parse::<u64>().ok()) {
        Some(pages) if pages < USUAL_PAGES => {
            report.warn(
                "limits",
                format!("fs.fuse.max_pages_limit={pages}: requests are small: set {USUAL_PAGES} or more"),
            );
        }
        Some(pages) => {
            report.ok("limits", format!("fs.fuse.max_pages_limit={pages}: requests of {} KiB", pages * 4))
        }
        None => report.ok("limits", "requests of 1 MiB (this kernel has no fs.fuse.max_pages_limit)"),
    }
    for key in ["default_request_timeout", "max_request_timeout"] {
        match read(&format!("/proc/sys/fs/fuse/{key}")).as_deref() {
            None | Some("0") => {}
            Some(seconds) => report.warn("limits", request_timeout(key, seconds)),
        }
    }
    match read("/proc/sys/fs/nr_open").and_then(|text| text.parse::<u64>().ok()) {
        Some(most) if most < ENOUGH_FILES => {
            report.warn("limits", format!("fs.nr_open={most}: few open files: set {ENOUGH_FILES} or more"));
        }
        Some(most) => report.ok("limits", format!("fs.nr_open={most}")),
        None => {}
    }
}

/// Text for the kernel's request timeout, after which it aborts the connection of a silent FUSE mount.
fn request_timeout(key: &str, seconds: &str) -> String {
    format!(
        "fs.fuse.{key}={seconds}: the kernel ends a pool in which a request takes longer, as on a hung branch: set it to 0"
    )
}

/// Compares the daemon's open descriptors with its limit. The daemon counts them: the registry names the keeper's process where there
/// is one.
pub(super) fn descriptors(of: Descriptors, shown: &str, report: &mut DoctorReport) {
    let limit = of.limit;
    match of.open {
        Some(open) if limit / 10 * 9 < open => report.fail(
            shown,
            format!("{open} of {limit} descriptors are open: raise the limit (LimitNOFILE=, ulimit -n)"),
        ),
        Some(open) if limit < ENOUGH_FILES => report.warn(
            shown,
            format!(
                "may open {limit} descriptors ({open} are open): raise the limit (LimitNOFILE=, ulimit -n)"
            ),
        ),
        Some(open) => report.ok(shown, format!("{open} of {limit} descriptors are open")),
        None => report.warn(shown, format!("its descriptors cannot be counted; their limit is {limit}")),
    }
}

/// Reports a pool that was to outlive its daemon, and will not.
pub(super) fn keeper(restart: &str, shown: &str, report: &mut DoctorReport) {
    if restart == "lost" {
        report.warn(
            shown,
            format!(
                "restart=keep: its keeper has died, so the pool ends with its daemon: umount {shown} and mount it again when no program \
                 uses it"
            ),
        );
    }
}

/// Reports fsstack mounts without a daemon.
pub(super) fn dead_mounts(live: &[Pool], report: &mut DoctorReport) {
    let found = dead::mounts(live, |_| true);
    for mount in &found {
        let shown = mount.shown();
        if mount.has_ended {
            report.fail("leftovers", format!("{shown}: a dead mount, its daemon is gone: umount {shown}"));
        } else {
            report.fail(&shown, mount.reason());
        }
    }
    if !found.iter().any(|mount| mount.has_ended) {
        report.ok("leftovers", "no dead mounts of fsstack");
    }
}

fn read(file: &str) -> Option<String> {
    Some(fs::read_to_string(Path::new(file)).ok()?.trim().to_owned())
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_of_the_kernel_is_reported_with_its_value() {
        let text = request_timeout("max_request_timeout", "30");
        assert!(text.starts_with("fs.fuse.max_request_timeout=30: "), "{text}");
    }

    #[test]
    fn polling_counts_only_where_haltpoll_governs() {
        assert_eq!(polled(Some("haltpoll"), Some("0")), Some("0"));
        assert_eq!(polled(Some("menu"), Some("0")), None);
        assert_eq!(polled(None, None), None);
    }

    #[test]
    fn kernels_are_distinguished() {
        assert_eq!(version("6.18.0-rc3+deb14"), Some((6, 18)));
        assert_eq!(version("5.4"), Some((5, 4)));
        assert_eq!(version("odd"), None);
    }
}
