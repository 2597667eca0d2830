//! `compare-runs`: ratios of two results with intervals, and whether anything got worse.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::record::{FORMAT, Results, Summary};
use crate::report::rate;
use crate::stats::{FEWEST_ROUNDS, Ratio, unpaired_ratio};

/// One case on one target, before and after.
struct ComparedLine {
    what: String,
    rates: String,
    ratio: Ratio,
    word: &'static str,
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing got worse.
    Fine,
    /// Something did.
    Worse,
}

/// Compares and prints what both results have. Reports whether anything is worse by more than `tolerance`.
pub(crate) fn compare(before: &Path, after: &Path, tolerance: f64) -> Result<Outcome> {
    ensure!(
        tolerance.is_finite() && (0.0..1.0).contains(&tolerance),
        "--tolerance is a part: 0.05 stands for 5 %"
    );
    let (before, after) = (read(before)?, read(after)?);
    let lines: Vec<ComparedLine> =
        after.summaries.iter().filter_map(|now| line(&before, &after, now, tolerance)).collect();
    if lines.is_empty() {
        bail!("the two results have no case on the same target, with the same workload, in common");
    }
    let wide = lines.iter().map(|line| line.what.len()).max().unwrap_or(0);
    for ComparedLine { what, rates, ratio, word } in &lines {
        println!(
            "{what:<wide$}  {rates:>24}  {:.2} [{:.2}, {:.2}]  {word}",
            ratio.value, ratio.low, ratio.high
        );
    }
    let mut gone = 0;
    for was in &before.summaries {
        if after.summary(&was.case, &was.target).is_none() {
            gone += 1;
            println!("{}: only in the first: it was not measured again", name(was));
        } else if !lines.iter().any(|line| line.what == name(was)) {
            println!(
                "{}: not compared: another workload under the same name, or too little of it",
                name(was)
            );
        }
    }
    if before.machine != after.machine && before.machine.kernel != after.machine.kernel {
        println!(
            "taken on {} and on {}: the machine is compared too",
            before.machine.kernel, after.machine.kernel
        );
    }
    let worse = lines.iter().filter(|line| line.word == WORSE).count();
    println!(
        "{worse} of {} got worse by more than {:.0} %, {gone} were not measured again",
        lines.len(),
        tolerance * 100.0
    );
    // A case that stopped working counts as worse.
    Ok(if worse + gone == 0 { Outcome::Fine } else { Outcome::Worse })
}

const WORSE: &str = "worse";

fn line(before: &Results, after: &Results, now: &Summary, tolerance: f64) -> Option<ComparedLine> {
    let was = before.summary(&now.case, &now.target)?;
    let same = before.case(&now.case)?.workload == after.case(&now.case)?.workload;
    if !same {
        return None;
    }
    let rates = |results: &Results| -> Vec<f64> {
        let of = results.measurements.iter().filter(|m| m.case == now.case && m.target == now.target);
        of.map(|m| m.rate).collect()
    };
    let ratio = unpaired_ratio(&rates(after), &rates(before), after.made.seed)?;
    let few = now.rate.rounds.min(was.rate.rounds) < FEWEST_ROUNDS;
    let word = match () {
        () if few => "too few rounds to say",
        () if ratio.high < 1.0 - tolerance => WORSE,
        () if 1.0 + tolerance < ratio.low => "better",
        () if 1.0 - tolerance <= ratio.low => "not worse",
        () => "unknown",
    };
    let rates = format!("{} -> {}", rate(was.rate.median, &was.unit), rate(now.rate.median, &now.unit));
    Some(ComparedLine { what: name(now), rates, ratio, word })
}

fn name(of: &Summary) -> String {
    format!("{} on {}", of.case, of.target)
}

/// Reads results from a file or its directory.
fn read(path: &Path) -> Result<Results> {
    let file = if path.is_dir() { path.join("results.json") } else { path.to_owned() };
    let text = fs::read_to_string(&file).with_context(|| {
        format!("{}: name a results.json, or the directory that --out gave", file.display())
    })?;
    let results: Results = serde_json::from_str(&text)
        .with_context(|| format!("{} is no result of fsstack-bench", file.display()))?;
    ensure!(
        results.format == FORMAT,
        "{} has format {}, this program reads {FORMAT}",
        file.display(),
        results.format
    );
    Ok(results)
}
