//! Fate of the handles that a client held, by the event that happened to the pool and by the sort of the object.

use std::fmt;

/// The sorts of objects, as the table has them.
pub const SORTS: [&str; 3] = ["file", "directory", "hard link"];

/// The place of a sort in [`SORTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// A file with one name.
    File,
    /// A directory.
    Dir,
    /// A file with two names.
    HardLink,
}

/// Findings for one server.
#[derive(Clone, Debug)]
pub struct Events {
    server: &'static str,
    rows: Vec<Row>,
    wrong: Vec<String>,
}

#[derive(Clone, Debug)]
struct Row {
    event: String,
    /// Handles that were tried, and those that led elsewhere or nowhere, by sort.
    tried: [usize; 3],
    wrong: [usize; 3],
}

impl Events {
    /// None yet, of a client of `server`.
    pub fn of(server: &'static str) -> Self {
        Self { server, rows: Vec::new(), wrong: Vec::new() }
    }

    /// A handle of an object of that sort was tried after `event`: it led to its object, or what came instead.
    pub fn tried(&mut self, event: &str, sort: Sort, found: Result<(), String>) {
        let at = self.rows.iter().position(|row| row.event == event).unwrap_or_else(|| {
            self.rows.push(Row { event: event.to_owned(), tried: [0; 3], wrong: [0; 3] });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        row.tried[sort as usize] += 1;
        if let Err(why) = found {
            row.wrong[sort as usize] += 1;
            self.wrong.push(format!("{}: after {event}: {why}", self.server));
        }
    }

    /// No handle was stale or led to another object.
    ///
    /// # Panics
    /// One was.
    #[track_caller]
    pub fn assert_right(&self) {
        assert!(self.wrong.is_empty(), "{self}\n{}", self.wrong.join("\n"));
    }
}

/// Stale or wrong handles, of how many that were tried.
impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| {}: stale or wrong handles after | {} |", self.server, SORTS.join(" | "))?;
        writeln!(f, "|---|---:|---:|---:|")?;
        for row in &self.rows {
            let cells = row.wrong.iter().zip(row.tried).map(|(wrong, tried)| format!("{wrong} of {tried}"));
            writeln!(f, "| {} | {} |", row.event, cells.collect::<Vec<_>>().join(" | "))?;
        }
        Ok(())
    }
}
