//! Progress of a lab: a line per step with its time.

use std::io::{Write, stderr, stdout};
use std::time::Instant;

use anyhow::Result;

/// Output of the progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// A line a step on standard output.
    Shown,
    /// A line per step on standard error, where standard output has results.
    Beside,
    /// Nothing.
    Quiet,
}

impl Steps {
    /// Runs one step; prints `what` before it and the seconds after it.
    pub fn step<T>(self, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.say(&format!("{what:<52} "))?;
        let began = Instant::now();
        let done = work();
        let seconds = began.elapsed().as_secs_f64();
        self.say(&match &done {
            Ok(_) => format!("{seconds:6.1} s\n"),
            Err(_) => "failed\n".to_owned(),
        })?;
        done
    }

    /// Prints a line between steps.
    pub fn note(self, line: &str) -> Result<()> {
        self.say(&format!("{line}\n"))
    }

    fn say(self, text: &str) -> Result<()> {
        match self {
            Self::Shown => {
                stdout().write_all(text.as_bytes())?;
                stdout().flush()?;
            }
            Self::Beside => stderr().write_all(text.as_bytes())?,
            Self::Quiet => {}
        }
        Ok(())
    }
}
