//! Results of an interrupted run, kept with the programs they are for, so that a later run can continue.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Row;
use crate::exec;

/// Kept results.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Kept {
    about: String,
    rows: Vec<(String, Row)>,
}

impl Kept {
    /// Loads those of an earlier run with the same programs.
    pub(crate) fn of(about: String) -> Result<Self> {
        let known = fs::read_to_string(path()?).ok().and_then(|text| serde_json::from_str(&text).ok());
        let known = known.filter(|kept: &Self| kept.about == about);
        Ok(known.unwrap_or(Self { about, rows: Vec::new() }))
    }

    /// Starts without earlier results.
    pub(crate) fn none(about: String) -> Self {
        Self { about, rows: Vec::new() }
    }

    /// The row of `fault`.
    pub(crate) fn row(&self, fault: &str) -> Option<&Row> {
        self.rows.iter().find(|(known, _)| known == fault).map(|(_, row)| row)
    }

    /// Stores one more row.
    pub(crate) fn keep(&mut self, fault: &str, row: &Row) -> Result<()> {
        self.rows.push((fault.to_owned(), row.clone()));
        let path = path()?;
        fs::write(&path, serde_json::to_string(self)?).with_context(|| path.display().to_string())
    }
}

fn path() -> Result<PathBuf> {
    Ok(exec::target_dir()?.join("faults.json"))
}
