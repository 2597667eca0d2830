//! The pool's figures in the text format of OpenMetrics.

use fsstack_control::api::{BranchStatus, Status};
use std::fmt::Write as _;

/// The whole page, to its end mark.
pub(super) fn page(status: &Status) -> String {
    let mut page = Page(String::new());
    page.info(status);
    page.family("fsstack_uptime_seconds", "gauge", "Seconds since the pool was mounted.");
    page.sample("fsstack_uptime_seconds", &[], status.uptime_seconds);
    page.family("fsstack_open_files", "gauge", "Open files by the way their bytes go.");
    for (way, count) in
        [("passthrough", status.open_files.passthrough), ("stacked", status.open_files.stacked)]
    {
        page.sample("fsstack_open_files", &[("way", way)], count);
    }
    page.family("fsstack_inodes", "gauge", "Inodes that the kernel has not forgotten.");
    page.sample("fsstack_inodes", &[], status.tables.inodes);
    page.of_branches(status, "fsstack_branch_size_bytes", "gauge", "Size of the branch.", |b| b.total);
    page.of_branches(
        status,
        "fsstack_branch_available_bytes",
        "gauge",
        "Bytes that a user may still write.",
        |b| b.available,
    );
    page.of_branches(
        status,
        "fsstack_branch_floor_bytes",
        "gauge",
        "Bytes that new files leave free.",
        |b| Some(b.floor),
    );
    page.of_branches(status, "fsstack_branch_free_inodes", "gauge", "Free inodes.", |b| b.inodes_free);
    page.of_branches(status, "fsstack_branch_open_files", "gauge", "Files open on the branch.", |b| {
        Some(b.open_files)
    });
    page.of_branches(
        status,
        "fsstack_branch_reserved_bytes",
        "gauge",
        "Bytes promised to copies that are under way.",
        |b| Some(b.reserved),
    );
    page.states(status);
    page.0.push_str("# EOF\n");
    page.0
}

struct Page(String);

impl Page {
    fn info(&mut self, status: &Status) {
        self.family("fsstack", "info", "The daemon.");
        let labels = [
            ("version", status.version.as_str()),
            ("mount_point", &status.mount_point),
            ("transport", &status.transport),
            ("write_path", &status.write_path),
            ("create", &status.create),
        ];
        self.sample("fsstack_info", &labels, 1);
    }

    fn states(&mut self, status: &Status) {
        self.family("fsstack_branch_state", "stateset", "The branch's state.");
        for branch in &status.branches {
            for state in ["up", "suspect", "down", "read-only", "leaving"] {
                let labels = [("branch", branch.path.as_str()), ("fsstack_branch_state", state)];
                self.sample("fsstack_branch_state", &labels, u64::from(branch.state == state));
            }
        }
    }

    /// One sample a branch, where there is one to be had.
    fn of_branches(
        &mut self,
        status: &Status,
        name: &str,
        kind: &str,
        help: &str,
        value: impl Fn(&BranchStatus) -> Option<u64>,
    ) {
        self.family(name, kind, help);
        let suffix = if kind == "counter" { "_total" } else { "" };
        for branch in &status.branches {
            if let Some(value) = value(branch) {
                self.sample(&format!("{name}{suffix}"), &[("branch", branch.path.as_str())], value);
            }
        }
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# TYPE {name} {kind}\n# HELP {name} {help}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.0.push_str(name);
        for (place, (label, text)) in labels.iter().enumerate() {
            self.0.push(if place == 0 { '{' } else { ',' });
            let _ = write!(self.0, "{label}=\"{}\"", escaped(text));
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
