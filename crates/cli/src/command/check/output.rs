//! Findings are printed as they are made, so that memory does not grow with their number.

use super::super::Failed;
use super::super::show::{self, Style};
use fsstack_control::api::{CheckFinding, CheckKind};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Maximum redraws of the progress line a second.
const FRAMES: u8 = 5;
/// The JSON document before the first finding.
const HEAD: &str = "{\"findings\":[\n";

/// Printer of findings: lines, or one JSON document.
pub(super) struct CheckOutput {
    style: Style,
    found: u64,
    /// Those among them that are left by ordinary work and take space only.
    harmless: u64,
    /// Those of the others that were fixed.
    fixed: u64,
    names: u64,
    bar: ProgressBar,
}

impl CheckOutput {
    pub(super) fn new(style: Style) -> Self {
        // Not a terminal: indicatif draws nothing.
        let target = match style {
            Style::Human => ProgressDrawTarget::stderr_with_hz(FRAMES),
            Style::Json => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(None, target);
        let line = ProgressStyle::with_template("{pos} names, {per_sec}; {wide_msg}");
        bar.set_style(line.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { style, found: 0, harmless: 0, fixed: 0, names: 0, bar }
    }

    /// Number of findings that are not harmless, and of those among them that were fixed.
    pub(super) fn found(&self) -> (u64, u64) {
        (self.found - self.harmless, self.fixed)
    }

    /// Counts names of the pool; `path` in printable form is made only where it is shown.
    pub(super) fn passed(&mut self, names: u64, path: impl FnOnce() -> String) {
        self.names += names;
        if names > 0 && !self.bar.is_hidden() {
            self.bar.set_position(self.names);
            self.bar.set_message(path());
        }
    }

    pub(super) fn add(&mut self, finding: &CheckFinding) -> Result<(), Failed> {
        let line = match self.style {
            Style::Human => line(finding),
            Style::Json => {
                let before = if self.found == 0 { HEAD } else { "," };
                let json = serde_json::to_string(finding);
                format!("{before}{}\n", json.map_err(|error| Failed::Refused(error.to_string()))?)
            }
        };
        self.found += 1;
        if finding.kind == CheckKind::StaleRow {
            self.harmless += 1;
        } else {
            self.fixed += u64::from(finding.fixed == Some(true));
        }
        self.bar.suspend(|| show::text(&line))
    }

    /// Adds what could not be read: nothing is known of it.
    pub(super) fn not_checked(&mut self, path: &[u8], reason: &str) -> Result<(), Failed> {
        self.add(&not_checked(path, reason))
    }

    /// Ends the output; `next` is where an interrupted check goes on, `kept` the number of objects that are kept.
    pub(super) fn end(&self, next: Option<&str>, kept: u64) -> Result<(), Failed> {
        self.bar.finish_and_clear();
        if self.style == Style::Human {
            return match kept {
                0 => Ok(()),
                kept => show::text(&format!(
                    "kept of what --fix has replaced: {kept}; --prune lists and removes them\n"
                )),
            };
        }
        let next = serde_json::to_string(&next).map_err(|error| Failed::Refused(error.to_string()))?;
        let names = self.names;
        let before = if self.found == 0 { HEAD } else { "" };
        show::text(&format!("{before}],\"names\":{names},\"kept\":{kept},\"next\":{next}}}\n"))
    }

    /// Ends the output of a check that failed: a document that was begun is whole, and says that it is to be begun anew at `start`.
    pub(super) fn fail(&self, start: &str) {
        self.bar.finish_and_clear();
        if self.style == Style::Json && self.found > 0 {
            // The check's own error is reported.
            let _ = self.end(Some(start), 0);
        }
    }
}

/// A finding for people: what was found, then what `--fix` does or has done, or what is to be done by hand.
fn line(finding: &CheckFinding) -> String {
    let CheckFinding { path, text, remedy, fix, fixed, .. } = finding;
    match (fix, fixed) {
        (Some(fix), None) => format!("{path}: {text}; with --fix: {fix}\n"),
        (Some(fix), Some(true)) => format!("{path}: {text}; fixed: {fix}\n"),
        (_, Some(false)) => format!("{path}: {text}; not fixed: {remedy}\n"),
        (None, _) => format!("{path}: {text}; {remedy}; --fix leaves it\n"),
    }
}

/// A finding about what could not be read.
pub(super) fn not_checked(path: &[u8], reason: &str) -> CheckFinding {
    let remedy = "check it again when it can be read";
    CheckFinding::new(path, CheckKind::NotChecked, format!("not checked: {reason}"), remedy)
}
