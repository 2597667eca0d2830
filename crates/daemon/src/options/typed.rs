//! An option as typed, and parsers for its value.

use fsstack_pool::Printable;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Source of an option; a later one in this order takes precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// In the file that `config=` names.
    Config,
    /// After `-o`.
    CommandLine,
}

/// An option as typed; a parse error says what would be right.
#[derive(Clone, Copy, Debug)]
pub struct Typed<'a> {
    /// The name as spelled.
    pub name: &'a str,
    /// Text after `=`.
    pub value: Option<&'a OsStr>,
    /// Where it came from.
    pub origin: Origin,
}

impl fmt::Display for Typed<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", Printable(self.name.as_bytes()))?;
        self.value.map_or(Ok(()), |value| write!(out, "={}", Printable::os(value)))
    }
}

impl<'a> Typed<'a> {
    pub(crate) fn raw(&self) -> &'a OsStr {
        self.value.unwrap_or_default()
    }

    pub(crate) fn text(&self) -> Result<&'a str, String> {
        self.raw().to_str().ok_or_else(|| "not valid UTF-8".to_owned())
    }

    pub(crate) fn switch(&self) -> Result<bool, String> {
        match self.value.map(OsStr::to_str) {
            None => Ok(true),
            Some(Some("true" | "yes" | "on" | "1")) => Ok(true),
            Some(Some("false" | "no" | "off" | "0")) => Ok(false),
            Some(_) => Err("neither true nor false".to_owned()),
        }
    }

    /// Parses the value into `setting`.
    pub(crate) fn read<T: FromStr<Err: fmt::Display>>(&self, setting: &mut T) -> Result<(), String> {
        self.by(|text| text.parse().map_err(|error: T::Err| error.to_string()), setting)
    }

    /// Parses the value into `setting` with `parse`.
    pub(crate) fn by<T>(
        &self,
        parse: impl FnOnce(&str) -> Result<T, String>,
        setting: &mut T,
    ) -> Result<(), String> {
        *setting = parse(self.text()?)?;
        Ok(())
    }

    /// Parses a switch into `setting`.
    pub(crate) fn by_switch(&self, setting: &mut bool) -> Result<(), String> {
        *setting = self.switch()?;
        Ok(())
    }

    /// Parses seconds into `setting`.
    pub(crate) fn by_seconds(&self, setting: &mut Duration) -> Result<(), String> {
        *setting = self.seconds()?;
        Ok(())
    }

    /// Parses seconds, with an optional fraction; bounded so that adding them to a time cannot overflow.
    pub(crate) fn seconds(&self) -> Result<Duration, String> {
        const LONGEST: f64 = 1e9;
        let wrong = || "not a number of seconds, such as 1 or 0.5".to_owned();
        match self.text()?.parse::<f64>() {
            Ok(seconds) if (0.0..=LONGEST).contains(&seconds) => {
                Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
            }
            _ => Err(wrong()),
        }
    }

    /// Returns an absolute path, because the daemon changes its working directory.
    pub(crate) fn absolute_path(&self) -> Result<PathBuf, String> {
        let path = Path::new(self.raw());
        if path.is_absolute() { Ok(path.to_owned()) } else { Err("not an absolute path".to_owned()) }
    }
}
