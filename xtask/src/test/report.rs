//! The final table: a row per check or tier, reasons below, and one summary line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use anyhow::Result;

use super::counts::TestCounts;

/// Result of one check or tier.
#[derive(Clone, Debug)]
pub(crate) struct ReportRow {
    name: &'static str,
    passed: usize,
    failed: usize,
    /// Lines `SKIP <test>: <reason>` or bare reasons.
    skips: Vec<String>,
    failures: Vec<String>,
    notes: Vec<String>,
    took: Duration,
}

impl ReportRow {
    pub(crate) fn new(name: &'static str) -> Self {
        let (skips, failures, notes) = (Vec::new(), Vec::new(), Vec::new());
        Self { name, passed: 0, failed: 0, skips, failures, notes, took: Duration::ZERO }
    }

    /// A check that passes or fails.
    pub(crate) fn of(name: &'static str, outcome: Result<()>) -> Self {
        match outcome {
            Ok(()) => Self::new(name).passed(1),
            Err(e) => {
                // The whole output was shown when it was produced.
                let first = format!("{e:#}").lines().next().unwrap_or_default().to_owned();
                Self::new(name).failed(first)
            }
        }
    }

    pub(crate) fn passed(mut self, count: usize) -> Self {
        self.passed += count;
        self
    }

    pub(crate) fn failed(mut self, why: String) -> Self {
        self.failed += 1;
        self.failures.push(why);
        self
    }

    pub(crate) fn skipped(mut self, reason: String) -> Self {
        self.skips.push(reason);
        self
    }

    /// Adds a line below the table.
    pub(crate) fn noted(mut self, note: String) -> Self {
        self.notes.push(note);
        self
    }

    /// Adds a run's counts; a test that announced a skip does not count as passed.
    pub(crate) fn counted(mut self, counted: TestCounts, skips: Vec<String>) -> Self {
        let names: BTreeSet<&str> =
            skips.iter().map(|line| line.split(": ").next().unwrap_or(line)).collect();
        self.passed += counted.passed.saturating_sub(names.len());
        self.failed += counted.failed;
        self.skips.extend(skips);
        self
    }

    /// Turns a tier without tests into a skip.
    pub(crate) fn not_empty(self) -> Self {
        let empty = self.passed + self.failed + self.skips.len() == 0;
        if empty { self.skipped("holds no test".into()) } else { self }
    }

    pub(crate) fn took(mut self, took: Duration) -> Self {
        self.took = took;
        self
    }
}

/// All rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    rows: Vec<ReportRow>,
}

impl Report {
    pub(crate) fn add(&mut self, row: ReportRow) {
        self.rows.push(row);
    }

    pub(crate) fn failed(&self) -> bool {
        self.rows.iter().any(|row| 0 < row.failed)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:<14} {:>7} {:>7} {:>8} {:>8}", "tier", "passed", "failed", "skipped", "seconds")?;
        for ReportRow { name, passed, failed, skips, took, .. } in &self.rows {
            let seconds = took.as_secs_f64();
            writeln!(f, "{name:<14} {passed:>7} {failed:>7} {:>8} {seconds:>8.1}", skips.len())?;
        }
        for row in &self.rows {
            let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
            for skip in &row.skips {
                *reasons.entry(skip.split_once(": ").map_or(skip.as_str(), |(_, why)| why)).or_default() += 1;
            }
            for (why, count) in reasons {
                writeln!(f, "skipped in {}: {count} x {why}", row.name)?;
            }
            for note in &row.notes {
                writeln!(f, "{}: {note}", row.name)?;
            }
            for why in &row.failures {
                writeln!(f, "failed in {}: {why}", row.name)?;
            }
        }
        let sum = |count: fn(&ReportRow) -> usize| self.rows.iter().map(count).sum::<usize>();
        let skipped = sum(|row| row.skips.len());
        write!(f, "{} passed, {} failed, {skipped} skipped", sum(|row| row.passed), sum(|row| row.failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_not_a_pass() {
        let skips = vec!["SKIP a: needs root".into(), "SKIP b: needs root".into()];
        let row = ReportRow::new("mounted").counted(TestCounts { passed: 5, failed: 0 }, skips);
        let mut report = Report::default();
        report.add(row);
        assert!(!report.failed());
        let text = report.to_string();
        assert!(text.contains("skipped in mounted: 2 x needs root"), "{text}");
        assert!(text.ends_with("3 passed, 0 failed, 2 skipped"), "{text}");
    }

    #[test]
    fn a_tier_without_tests_is_skipped() {
        let mut report = Report::default();
        report.add(ReportRow::new("posix").not_empty());
        assert!(report.to_string().ends_with("0 passed, 0 failed, 1 skipped"));
    }
}
