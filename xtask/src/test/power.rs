//! The power tier: number of judged states, and of wrong ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::report::ReportRow;
use crate::exec;

/// File for a line per family of scenarios: name, scenarios, states, wrong ones.
const RECORDS: &str = "FSSTACK_POWER";
/// Page with the promises of each operation, and the marks around the generated table.
const PAGE: &str = "docs/dev/semantics.md";
const BEGIN: &str = "<!-- printed by cargo xtask test --tier power -->\n";
const END: &str = "<!-- end -->\n";
/// Columns of the table.
const COLUMNS: [&str; 4] =
    ["killed after the answer", "power cut after the answer", "power cut after a sync", "branch away"];
/// Minimum number of judged states, unless only some were requested.
const STATES: usize = 2000;
/// Selects some scenarios.
const ONLY: &str = "FSSTACK_POWER_ONLY";
/// Makes them use every order and every file system.
const LONG: &str = "FSSTACK_POWER_LONG";

pub(super) fn run(
    mut row: ReportRow,
    commands: &[Vec<&'static str>],
    helper: &PathBuf,
    long: bool,
) -> ReportRow {
    let list = match tempfile::NamedTempFile::new() {
        Ok(list) => list,
        Err(error) => return row.failed(error.to_string()),
    };
    for args in commands {
        let run = exec::cargo().args(args).env(RECORDS, list.path());
        let run = if long { run.env(LONG, "1") } else { run };
        row = match super::run_counted(run, helper) {
            Ok((counted, skips)) => row.counted(counted, skips),
            Err(e) => row.failed(format!("{e:#}")),
        };
    }
    let lines = std::fs::read_to_string(list.path()).map_err(anyhow::Error::from);
    let judged = lines.and_then(|lines| Ok((sum(&lines)?, lines)));
    let (judged, lines) = match judged {
        Ok(judged) => judged,
        Err(e) => return row.failed(format!("{e:#}")),
    };
    row = row.noted(judged.to_string()).not_empty();
    if long || judged.states == 0 || std::env::var_os(ONLY).is_some() {
        return row;
    }
    if judged.states < STATES {
        row = row.failed(format!("fewer than {STATES} states"));
    }
    match check_page(&table(&lines)) {
        Ok(()) => row,
        Err(e) => row.failed(format!("{e:#}")),
    }
}

/// Sums over all families.
struct Judged {
    scenarios: usize,
    states: usize,
    wrong: usize,
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenarios, states, wrong } = self;
        write!(
            f,
            "{states} states of {scenarios} scenarios judged, {wrong} wrong (tests/power/known.rs lists them)"
        )
    }
}

/// Formats the results of each operation as a table.
fn table(lines: &str) -> String {
    let mut rows: Vec<(&str, BTreeMap<&str, BTreeSet<&str>>)> = Vec::new();
    for line in lines.lines().filter_map(|line| line.strip_prefix("row\t")) {
        let mut words = line.split('\t');
        let (Some(name), Some(column), Some(said)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let at = rows.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
            rows.push((name, BTreeMap::new()));
            rows.len() - 1
        });
        rows[at].1.entry(column).or_default().insert(said);
    }
    // Pairs of operations are only in the tests.
    rows.retain(|(name, _)| !name.contains(';'));
    rows.sort_by_key(|(name, _)| *name);
    let mut table =
        format!("| operation | {} |\n|---|{}\n", COLUMNS.join(" | "), "---|".repeat(COLUMNS.len()));
    for (name, cells) in rows {
        let cell = |column: &&str| cells.get(*column).map_or("", |said| said_of_all(said));
        let cells: Vec<&str> = COLUMNS.iter().map(cell).collect();
        table.push_str(&format!("| {name} | {} |\n", cells.join(" | ")));
    }
    table
}

/// The weakest result of several recordings.
fn said_of_all<'a>(said: &BTreeSet<&'a str>) -> &'a str {
    let has = |word| said.contains(word);
    match () {
        () if said.len() == 1 => said.first().copied().unwrap_or_default(),
        () if has("not always kept") => "not always kept",
        () if has("kept") => "kept",
        () if has("done or not") || has("done") && has("not done") => "done or not",
        () if has("done") => "done",
        () => "not done",
    }
}

/// Checks that the page has this table; with UPDATE_EXPECT writes it.
fn check_page(table: &str) -> Result<()> {
    let page = std::fs::read_to_string(PAGE).context(PAGE)?;
    let (before, rest) = page.split_once(BEGIN).context("where the table begins")?;
    let (was, after) = rest.split_once(END).context("where the table ends")?;
    let table = &with_unsynced(table, was);
    if was == table {
        return Ok(());
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        return Ok(std::fs::write(PAGE, format!("{before}{BEGIN}{table}{END}{after}"))?);
    }
    bail!("{PAGE} says otherwise than what was seen (UPDATE_EXPECT=1 writes it):\n{table}")
}

/// `table`, where changes that were not synced, all of them done in this run, may be lost as in `was`: that depends on the timing of
/// the daemon's threads, and of the file systems' own writes.
fn with_unsynced(table: &str, was: &str) -> String {
    let cells = |line: &str| line.split(" | ").map(str::to_owned).collect::<Vec<_>>();
    let row = |line: &str| {
        let mut seen = cells(line);
        let before = was.lines().map(cells).find(|before| before.first() == seen.first());
        if let Some((seen, before)) = seen.get_mut(2).zip(before.as_ref().and_then(|row| row.get(2)))
            && (seen.as_str(), before.as_str()) == ("done", "done or not")
        {
            seen.clone_from(before);
        }
        seen.join(" | ") + "\n"
    };
    table.lines().map(row).collect()
}

/// Results of all families.
fn sum(lines: &str) -> Result<Judged> {
    let mut sums = [0_usize; 3];
    for line in lines.lines().filter(|line| !line.starts_with("row\t")) {
        for (sum, count) in sums.iter_mut().zip(line.split('\t').skip(1)) {
            *sum += count.parse::<usize>().with_context(|| format!("a count in {line:?}"))?;
        }
    }
    let [scenarios, states, wrong] = sums;
    Ok(Judged { scenarios, states, wrong })
}

#[cfg(test)]
mod tests {
    #[test]
    fn families_are_added_up() {
        let result = super::sum("pairs\t30\t710\t0\nalone\t12\t90\t2\n").unwrap().to_string();
        assert!(result.starts_with("800 states of 42 scenarios judged, 2 wrong"), "{result}");
        assert!(super::sum("pairs\tmany\t1\t0\n").is_err());
    }

    #[test]
    fn a_change_without_a_sync_may_be_on_disk_each_time() {
        let was = "| link | done | done or not | done | kept |\n";
        let seen = "| link | done | done | done | kept |\n";
        assert_eq!(super::with_unsynced(seen, was), was);
        assert_eq!(super::with_unsynced(was, seen), was, "a promise that is not kept is seen");
        let lost = "| link | done | done or not | done or not | kept |\n";
        assert_eq!(super::with_unsynced(lost, was), lost);
    }

    #[test]
    fn several_recordings_make_one_row() {
        let seen = "row\tmove\tbranch away\tkept\nrow\tlink\tpower cut after a sync\tdone\nfew\t1\t2\t0\n\
                    row\tmove\tbranch away\tnot always kept\nrow\ta; b\tpower cut after a sync\tdone\n";
        let table = super::table(seen);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(rows, ["| link |  |  | done |  |", "| move |  |  |  | not always kept |"]);
        assert_eq!(super::sum(seen).unwrap().states, 2);
    }
}
