//! The last lines of the log, in memory, for `fsstack support`: in parts, so that names can be left out.

use fsstack_sync::Mutex;

use super::{LogLine, utc_now};
use fsstack_control::api::{LogField, RecentLine};
use fsstack_pool::Printable;
use std::collections::VecDeque;
use tracing::Metadata;

/// Lines that are kept.
const LINES: usize = 200;
/// Longest text of a line, and of a field, that is kept, in characters.
const LONGEST: usize = 1024;

static RECENT: Mutex<VecDeque<RecentLine>> = Mutex::new(VecDeque::new());

fn kept(text: &str) -> String {
    Printable(text.as_bytes()).to_string().chars().take(LONGEST).collect()
}

/// Keeps a line that is written.
pub(super) fn note(of: &Metadata<'_>, line: &LogLine) {
    let field = |(name, value): &(&str, String)| LogField { name: (*name).to_owned(), value: kept(value) };
    let line = RecentLine {
        time: utc_now(),
        level: of.level().to_string(),
        source: format!("{}:{}", of.module_path().unwrap_or_default(), of.line().unwrap_or_default()),
        message: kept(&line.message),
        fields: line.fields.iter().map(field).collect(),
    };
    let mut recent = RECENT.lock();
    if recent.len() == LINES {
        recent.pop_front();
    }
    recent.push_back(line);
}

/// The last lines, the oldest first.
pub(crate) fn recent() -> Vec<RecentLine> {
    RECENT.lock().iter().cloned().collect()
}
