//! The power tier: how many states were judged, and how many of them are wrong.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::report::Row;
use crate::exec;

/// Where the tests write a line for each family of scenarios: its name, scenarios, states, wrong ones.
const TALLY: &str = "FSSTACK_POWER";
/// Makes them take every order and every file system.
const LONG: &str = "FSSTACK_POWER_LONG";

pub(super) fn run(mut row: Row, commands: &[Vec<&'static str>], helper: &PathBuf, long: bool) -> Row {
    let list = match tempfile::NamedTempFile::new() {
        Ok(list) => list,
        Err(error) => return row.failed(error.to_string()),
    };
    for args in commands {
        let run = exec::cargo().args(args).env(TALLY, list.path());
        let run = if long { run.env(LONG, "1") } else { run };
        row = match super::run_counted(run, helper) {
            Ok((tally, skips)) => row.counted(tally, skips),
            Err(e) => row.failed(format!("{e:#}")),
        };
    }
    let told = std::fs::read_to_string(list.path()).map_err(Into::into).and_then(|lines| sum(&lines));
    match told {
        Ok(sum) => row.noted(sum).not_empty(),
        Err(e) => row.failed(format!("{e:#}")),
    }
}

/// What all families came to, in one line.
fn sum(lines: &str) -> Result<String> {
    let mut sums = [0_usize; 3];
    for line in lines.lines() {
        for (sum, count) in sums.iter_mut().zip(line.split('\t').skip(1)) {
            *sum += count.parse::<usize>().with_context(|| format!("a count in {line:?}"))?;
        }
    }
    let [scenarios, states, wrong] = sums;
    Ok(format!(
        "{states} states of {scenarios} scenarios judged, {wrong} wrong (tests/power/known.rs lists them)"
    ))
}

#[cfg(test)]
mod tests {
    #[test]
    fn families_are_added_up() {
        let told = super::sum("pairs\t30\t710\t0\nalone\t12\t90\t2\n").unwrap();
        assert!(told.starts_with("800 states of 42 scenarios judged, 2 wrong"), "{told}");
        assert!(super::sum("pairs\tmany\t1\t0\n").is_err());
    }
}
