//! The pool's metrics in OpenMetrics text format.

use fsstack_branch::metrics::{BUCKETS, BranchMetricsSnapshot, CallSnapshot, bucket_limit};
use fsstack_control::api::{BranchStatus, JobStatus, Status, TierStatus};
use fsstack_engine::admin::status::{BranchStatus as KnownBranch, Status as Known};
use std::fmt::Write as _;

/// Formats the page, with its end mark.
pub(super) fn page(status: &Status, known: &Known) -> String {
    let mut page = MetricsPage(String::new());
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
    let tables = [
        ("fsstack_file_handles", "Open file handles.", status.tables.files),
        ("fsstack_directory_handles", "Open directory handles.", status.tables.dirs),
        (
            "fsstack_directory_descriptors",
            "Directories of branches that are held open.",
            status.tables.dir_fds,
        ),
        (
            "fsstack_listing_entries",
            "Names and offsets that open listings keep, of 4194304 at most.",
            status.tables.listing_entries,
        ),
    ];
    for (name, help, count) in tables {
        page.family(name, "gauge", help);
        page.sample(name, &[], count);
    }
    page.bounded_tables(known);
    page.descriptors(status);
    page.jobs(status);
    page.tiers(status);
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
    page.files(status);
    page.queues(status, known);
    page.states(status);
    page.caches(status);
    page.counters(status);
    page.tallies(status, known);
    page.0.push_str("# EOF\n");
    page.0
}

/// Reads one figure of a job.
type JobFigure = fn(&JobStatus) -> u64;

/// Reads one figure of a branch.
type BranchFigure = fn(&KnownBranch) -> usize;

/// Reads one figure of a tier.
type TierFigure = fn(&TierStatus) -> u64;

struct MetricsPage(String);

impl MetricsPage {
    fn files(&mut self, status: &Status) {
        self.of_branches(status, "fsstack_branch_open_files", "gauge", "Files open on the branch.", |b| {
            Some(b.open_files)
        });
        self.of_branches(
            status,
            "fsstack_branch_reserved_bytes",
            "gauge",
            "Bytes promised to copies that are under way.",
            |b| Some(b.reserved),
        );
        self.of_branches(
            status,
            "fsstack_branch_calls_in_flight",
            "gauge",
            "Calls to the branch that have not returned.",
            |b| Some(b.in_flight),
        );
    }

    fn bounded_tables(&mut self, known: &Known) {
        let (name, limit) = ("fsstack_table_entries", "fsstack_table_limit_entries");
        self.family(name, "gauge", "Entries of a bounded table that programs can fill (docs/operate.md).");
        known.bounded.iter().for_each(|table| self.sample(name, &[("table", table.name)], table.entries));
        self.family(limit, "gauge", "The most that there may be.");
        known.bounded.iter().for_each(|table| self.sample(limit, &[("table", table.name)], table.limit));
    }

    fn jobs(&mut self, status: &Status) {
        let figures: [(&str, &str, JobFigure); 5] = [
            ("fsstack_job_files", "Files that a job at work is to move.", |job| job.files),
            ("fsstack_job_bytes", "Their bytes.", |job| job.bytes),
            ("fsstack_job_moved_files", "Files that it has moved.", |job| job.moved_files),
            ("fsstack_job_moved_bytes", "Their bytes.", |job| job.moved_bytes),
            ("fsstack_job_staying", "Objects that it could not move when it saw them last.", |job| {
                job.staying
            }),
        ];
        for (name, help, figure) in figures {
            self.family(name, "gauge", help);
            for job in &status.jobs {
                let id = job.id.to_string();
                let labels = [("job", id.as_str()), ("kind", &job.kind), ("branch", &job.branch)];
                self.sample(name, &labels, figure(job));
            }
        }
    }

    fn tiers(&mut self, status: &Status) {
        let figures: [(&str, &str, TierFigure); 3] = [
            ("fsstack_tier_used_bytes", "Bytes of the faster class that cannot be had any more.", |tier| {
                tier.fast_used
            }),
            ("fsstack_tier_size_bytes", "Size of the faster class.", |tier| tier.fast_total),
            ("fsstack_tier_moving", "1 while a job of the tier moves files.", |tier| {
                u64::from(tier.state == "moving")
            }),
        ];
        for (name, help, figure) in figures {
            self.family(name, "gauge", help);
            for tier in &status.tiers {
                self.sample(name, &[("fast", tier.fast.as_str()), ("slow", &tier.slow)], figure(tier));
            }
        }
    }

    fn descriptors(&mut self, status: &Status) {
        self.family("fsstack_descriptors", "gauge", "File descriptors that the daemon has open.");
        if let Some(open) = status.descriptors.open {
            self.sample("fsstack_descriptors", &[], open);
        }
        self.family(
            "fsstack_descriptors_limit",
            "gauge",
            "File descriptors that it may have open: at it programs get ENFILE.",
        );
        self.sample("fsstack_descriptors_limit", &[], status.descriptors.limit);
    }

    fn counters(&mut self, status: &Status) {
        self.of_branches(status, "fsstack_branch_read_bytes", "counter", "Bytes read by the daemon.", |b| {
            Some(b.read_bytes)
        });
        self.of_branches(
            status,
            "fsstack_branch_written_bytes",
            "counter",
            "Bytes written by the daemon.",
            |b| Some(b.written_bytes),
        );
        self.of_branches(
            status,
            "fsstack_branch_moved_away",
            "counter",
            "Files moved off the branch.",
            |b| Some(b.moved_away),
        );
        self.of_branches(status, "fsstack_branch_moved_here", "counter", "Files moved to the branch.", |b| {
            Some(b.moved_here)
        });
    }

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

    fn caches(&mut self, status: &Status) {
        let tables = &status.tables;
        self.family("fsstack_lookups", "counter", "Lookups, by whether the place of the name was known.");
        for (known, count) in [("yes", tables.lookups_known), ("no", tables.lookups_asked)] {
            self.sample("fsstack_lookups_total", &[("known", known)], count);
        }
        self.family("fsstack_opens", "counter", "Opens by the way that their bytes go.");
        for (way, count) in [("passthrough", tables.opens_passthrough), ("stacked", tables.opens_stacked)] {
            self.sample("fsstack_opens_total", &[("way", way)], count);
        }
    }

    /// Writes what waits for each branch.
    fn queues(&mut self, status: &Status, known: &Known) {
        let figures: [(&str, &str, BranchFigure); 2] = [
            (
                "fsstack_branch_calls_queued",
                "Calls to the branch that wait for a free one of `branch-inflight`.",
                |b| b.queued.calls,
            ),
            (
                "fsstack_branch_files_closing",
                "Files that are queued to be closed there, or being closed.",
                |b| b.queued.closes,
            ),
        ];
        for (name, help, figure) in figures {
            self.family(name, "gauge", help);
            for (branch, known) in status.branches.iter().zip(&known.branches) {
                self.sample(name, &[("branch", &branch.path)], figure(known));
            }
        }
    }

    /// Writes calls, times and faults of each branch.
    fn tallies(&mut self, status: &Status, known: &Known) {
        let branches: Vec<(&str, &BranchMetricsSnapshot)> = status
            .branches
            .iter()
            .map(|b| b.path.as_str())
            .zip(known.branches.iter().map(|b| &b.metrics))
            .collect();
        self.family("fsstack_branch_calls", "counter", "Calls of the daemon to the branch.");
        for (branch, metrics) in &branches {
            for row in &metrics.calls {
                let call = call_name(row);
                self.sample("fsstack_branch_calls_total", &[("branch", branch), ("call", &call)], row.count);
            }
        }
        self.family("fsstack_branch_errors", "counter", "Errors that the branch answered.");
        for (branch, metrics) in &branches {
            for (class, count) in &metrics.errors {
                self.sample(
                    "fsstack_branch_errors_total",
                    &[("branch", branch), ("class", class.name())],
                    *count,
                );
            }
        }
        let name = "fsstack_branch_call_duration_seconds";
        self.family(name, "histogram", "How long calls took; of a local disk, one of eight is timed.");
        for (branch, metrics) in &branches {
            for row in &metrics.calls {
                self.histogram(name, branch, &call_name(row), row);
            }
        }
    }

    /// Writes every second bucket, each four times the one before.
    fn histogram(&mut self, name: &str, branch: &str, call: &str, row: &CallSnapshot) {
        let mut below = 0;
        for (at, count) in row.buckets.iter().enumerate() {
            below += count;
            if at % 2 == 1 && at + 1 < BUCKETS {
                let limit = bucket_limit(at).as_secs_f64().to_string();
                let labels = [("branch", branch), ("call", call), ("le", limit.as_str())];
                self.sample(&format!("{name}_bucket"), &labels, below);
            }
        }
        let labels = [("branch", branch), ("call", call), ("le", "+Inf")];
        self.sample(&format!("{name}_bucket"), &labels, below);
        self.sample(&format!("{name}_count"), &labels[..2], below);
        self.sample(&format!("{name}_sum"), &labels[..2], row.timed.as_secs_f64());
    }

    /// Writes one sample per branch that has a value.
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

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
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

fn call_name(row: &CallSnapshot) -> String {
    format!("{:?}", row.call).to_lowercase()
}
