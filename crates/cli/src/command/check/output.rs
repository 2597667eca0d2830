//! Findings are printed as they are made, so that memory does not grow with their number.

use super::super::Failed;
use super::super::show::{self, Style};
use fsstack_control::api::{CheckFinding, CheckKind};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Maximum redraws of the progress line a second.
const FRAMES: u8 = 5;
/// Names between two redraws.
const STEP: u64 = 256;

/// Printer of findings: lines, or one JSON document.
pub(super) struct CheckOutput {
    style: Style,
    found: u64,
    names: u64,
    bar: ProgressBar,
}

impl CheckOutput {
    pub(super) fn begin(style: Style) -> Result<Self, Failed> {
        // Not a terminal: indicatif draws nothing.
        let target = match style {
            Style::Human => ProgressDrawTarget::stderr_with_hz(FRAMES),
            Style::Json => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(None, target);
        let line = ProgressStyle::with_template("{pos} names, {per_sec}; {wide_msg}");
        bar.set_style(line.unwrap_or_else(|_| ProgressStyle::default_bar()));
        if style == Style::Json {
            show::text("{\"findings\":[")?;
        }
        Ok(Self { style, found: 0, names: 0, bar })
    }

    pub(super) fn found(&self) -> u64 {
        self.found
    }

    /// Counts a name of the pool; `path` in printable form is made only where it is shown.
    pub(super) fn passed(&mut self, path: impl FnOnce() -> String) {
        self.names += 1;
        if self.names.is_multiple_of(STEP) && !self.bar.is_hidden() {
            self.bar.set_position(self.names);
            self.bar.set_message(path());
        }
    }

    pub(super) fn add(
        &mut self,
        kind: CheckKind,
        path: &str,
        text: &str,
        remedy: &str,
    ) -> Result<(), Failed> {
        let finding =
            CheckFinding { path: path.to_owned(), kind, text: text.to_owned(), remedy: remedy.to_owned() };
        let line = match self.style {
            Style::Human => format!("{path}: {text}; {remedy}\n"),
            Style::Json => {
                let comma = if self.found == 0 { "\n" } else { ",\n" };
                let json = serde_json::to_string(&finding);
                comma.to_owned() + &json.map_err(|error| Failed::Refused(error.to_string()))?
            }
        };
        self.found += 1;
        self.bar.suspend(|| show::text(&line))
    }

    /// Adds what could not be read: nothing is known of it.
    pub(super) fn not_checked(&mut self, path: &str, reason: &str) -> Result<(), Failed> {
        self.add(
            CheckKind::NotChecked,
            path,
            &format!("not checked: {reason}"),
            "check it again when it can be read",
        )
    }

    /// Ends the output; `next` is where an interrupted check goes on.
    pub(super) fn end(&self, next: Option<&str>) -> Result<(), Failed> {
        self.bar.finish_and_clear();
        if self.style == Style::Human {
            return Ok(());
        }
        let next = serde_json::to_string(&next).map_err(|error| Failed::Refused(error.to_string()))?;
        show::text(&format!("],\n\"names\":{},\"next\":{next}}}\n", self.names))
    }
}
