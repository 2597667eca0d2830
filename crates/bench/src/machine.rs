//! Conditions of a run: machine, mounts, commit, time.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use fsstack_lab::cgroup::memory_limit;
use rustix::fs::statvfs;
use serde::{Deserialize, Serialize};

use crate::record::TargetRecord;
use crate::target::Target;

/// The commit of this build.
pub(crate) const COMMIT: &str = env!("FSSTACK_COMMIT");

/// The machine of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Machine {
    /// Kernel and its release.
    pub kernel: String,
    /// Model of the processors.
    pub cpu: String,
    /// Processors that may be used.
    pub cpus: usize,
    /// Main memory.
    pub memory_bytes: u64,
    /// Most that control groups allow this run, page cache included.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory_limit_bytes: Option<u64>,
    /// Load averages before the first round, which show other work.
    pub load: String,
    /// Load averages after the last round, our own work included.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub load_after: Option<String>,
    /// Seconds of the run that a hypervisor gave to others, all CPUs together.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub steal_seconds: Option<f64>,
    /// The kernel's clock source.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub clock_source: Option<String>,
    /// Nanoseconds that an idle CPU of a guest polls before it halts; waking one that halted goes through the host.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub guest_halt_poll_ns: Option<u64>,
}

/// The machine that this runs on.
#[must_use]
pub fn machine() -> Machine {
    let answer = rustix::system::uname();
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let line = |text: &str, key: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(key));
        found.map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned()).unwrap_or_default()
    };
    let kib: u64 = line(&text("/proc/meminfo"), "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0);
    Machine {
        kernel: format!("{} {}", answer.sysname().to_string_lossy(), answer.release().to_string_lossy()),
        cpu: line(&text("/proc/cpuinfo"), "model name"),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: kib << 10,
        memory_limit_bytes: memory_limit().filter(|&limit| limit < kib << 10),
        load: load(),
        load_after: None,
        steal_seconds: None,
        clock_source: known("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        guest_halt_poll_ns: known("/sys/module/haltpoll/parameters/guest_halt_poll_ns")
            .and_then(|text| text.parse().ok()),
    }
}

/// The line in a file of the kernel, if there is one.
fn known(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The load averages.
pub(crate) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Seconds since boot that a hypervisor gave to others, all CPUs together.
pub(crate) fn steal_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let ticks: u64 = text.lines().next()?.split_whitespace().nth(8)?.parse().ok()?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64)
}

/// A target with its entry in the mount table.
pub(crate) fn target(target: &Target) -> TargetRecord {
    let room = statvfs(&target.dir).ok();
    let blocks =
        |of: fn(&rustix::fs::StatVfs) -> u64| room.as_ref().map_or(0, |r| of(r).saturating_mul(r.f_frsize));
    let dir = target.dir.canonicalize().unwrap_or_else(|_| target.dir.clone());
    let (fs_type, source, options) = mount_of(&dir).unwrap_or_default();
    TargetRecord {
        name: target.name.clone(),
        dir: dir.display().to_string(),
        fs_type,
        source,
        options,
        size_bytes: blocks(|r| r.f_blocks),
        free_bytes: blocks(|r| r.f_bavail),
        bears: None,
        again: false,
        notes: Vec::new(),
    }
}

/// Type, source and options of the mount of `dir`.
pub(crate) fn mount_of(dir: &Path) -> Option<(String, String, String)> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut best: Option<(usize, (String, String, String))> = None;
    for line in table.lines() {
        let (before, after) = line.split_once(" - ")?;
        let fields: Vec<&str> = before.split(' ').collect();
        let (point, rest) = (unescape(fields.get(4)?), after.split(' ').collect::<Vec<_>>());
        let deeper = best.as_ref().is_none_or(|(len, _)| *len <= point.len());
        if dir.starts_with(&point) && deeper {
            let options = format!("{},{}", fields.get(5)?, rest.get(2).unwrap_or(&""));
            best = Some((point.len(), ((*rest.first()?).to_owned(), unescape(rest.get(1)?), options)));
        }
    }
    best.map(|(_, found)| found)
}

/// mountinfo encodes blanks, tabs, newlines and backslashes in octal.
fn unescape(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(field.to_owned(), |text, (octal, plain)| text.replace(octal, plain))
}

/// Present time in RFC 3339, UTC.
pub(crate) fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    rfc3339(seconds)
}

fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86400, seconds % 86400);
    // In eras of 400 years that begin in March, the leap day comes last.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (d, m) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let y = era * 400 + year + u64::from(m <= 2);
    format!("{y:04}-{m:02}-{d:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_772_323_199), "2026-02-28T23:59:59Z");
        assert_eq!(rfc3339(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn this_machine_and_its_mounts_are_known() {
        let m = machine();
        assert!(m.kernel.starts_with("Linux ") && 0 < m.cpus && 0 < m.memory_bytes, "{m:?}");
        let root = target(&Target { name: "t".into(), dir: "/".into() });
        assert!(!root.fs_type.is_empty() && 0 < root.size_bytes, "{root:?}");
        assert_eq!(unescape("/a\\040b"), "/a b");
    }
}
