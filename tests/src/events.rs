//! Results of handles held by a client, by event of the pool and by type of object.

use std::fmt;

/// Types of objects, as in the table.
pub const SORTS: [&str; 3] = ["file", "directory", "hard link"];

/// Index of a type in [`SORTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// A file with one name.
    File,
    /// A directory.
    Dir,
    /// A file with two names.
    HardLink,
}

/// Results for one server.
#[derive(Clone, Debug)]
pub struct Events {
    server: &'static str,
    rows: Vec<Row>,
    wrong: Vec<String>,
}

#[derive(Clone, Debug)]
struct Row {
    event: String,
    /// Number of handles that were tried, by type, and those that failed.
    tried: [usize; 3],
    wrong: [usize; 3],
}

impl Events {
    /// Starts without results, for a client of `server`.
    pub fn of(server: &'static str) -> Self {
        Self { server, rows: Vec::new(), wrong: Vec::new() }
    }

    /// Records that a handle of that type was tried after `event`: it led to its object, or failed.
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

    /// Asserts that no handle was stale or led to another object.
    ///
    /// # Panics
    /// If one was.
    #[track_caller]
    pub fn assert_right(&self) {
        assert!(self.wrong.is_empty(), "{self}\n{}", self.wrong.join("\n"));
    }
}

/// Number of stale or wrong handles, and of those tried.
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
