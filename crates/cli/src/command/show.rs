//! Output as JSON or as text.

use super::Failed;
use serde::Serialize;
use std::io::{self, Write};

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Tables.
    Human,
    /// One JSON document.
    Json,
}

/// Prints `answer` as JSON, or as formatted by `human`.
pub(crate) fn answer<T: Serialize>(
    style: Style,
    answer: &T,
    human: impl FnOnce(&T) -> String,
) -> Result<(), Failed> {
    match style {
        Style::Human => text(&human(answer)),
        Style::Json => {
            let json = serde_json::to_string_pretty(answer);
            text(&(json.map_err(|error| Failed::Refused(error.to_string()))? + "\n"))
        }
    }
}

/// Prints what goes on; a closed pipe ends it.
pub(crate) fn live(text: &str) -> Result<(), Failed> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failed::Refused(String::new())),
        written => written.map_err(|error| Failed::system("stdout", &error)),
    }
}

/// Prints; a closed pipe (`| head`) is not an error.
pub(crate) fn text(text: &str) -> Result<(), Failed> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failed::system("stdout", &error)),
        _ => Ok(()),
    }
}
