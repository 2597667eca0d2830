//! Progress of a lab: a line a step, with the time that it took.

use std::io::{Write, stderr, stdout};
use std::time::Instant;

use anyhow::Result;

/// Whether anybody watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// A line a step on standard output.
    Shown,
    /// A line a step on standard error, where standard output is for results.
    Beside,
    /// Nothing.
    Quiet,
}

impl Steps {
    /// Does one step; `what` is shown before it, the seconds after it.
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

    /// Says something between the steps.
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
