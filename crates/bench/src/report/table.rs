//! The table at the end of a run.

use std::fmt::Write;

use super::answer::{answer, plain};
use super::{microseconds, quantile, rate, typical};
use crate::record::{Results, Summary};

const HEAD: &[&str] =
    &["case", "target", "median", "spread", "to baseline", "", "p50", "p99", "p99.9", "skew", "CPUs busy"];

/// All summaries as aligned columns, one per line, and the answer.
pub(crate) fn table(results: &Results) -> String {
    let mut rows: Vec<Vec<String>> = vec![HEAD.iter().map(|&head| head.to_owned()).collect()];
    let mut last = "";
    for summary in &results.summaries {
        let again = std::mem::replace(&mut last, &summary.case) == summary.case;
        rows.push(row(summary, if again { "" } else { &summary.case }));
    }
    let columns = HEAD.len();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate();
        let line = cells.map(|(n, (cell, &wide))| match n {
            0 | 1 | 5 | 10 => format!("{cell:<wide$}"),
            _ => format!("{cell:>wide$}"),
        });
        // Writing to a String cannot fail.
        let _written = writeln!(text, "{}", line.collect::<Vec<_>>().join("  ").trim_end());
    }
    for skipped in &results.skipped {
        let _written = writeln!(text, "not measured: {}: {}", skipped.what, skipped.why);
    }
    if let Some(why) = &results.ended_early {
        let _written = writeln!(text, "ended early: {why}");
    }
    text + &plain(&answer(results))
}

fn row(summary: &Summary, case: &str) -> Vec<String> {
    let ratio = summary.ratio.as_ref();
    let cpu: Vec<String> = summary.cpu.iter().map(|c| format!("{} {:.2}", c.program, c.cpus)).collect();
    vec![
        case.to_owned(),
        summary.target.clone(),
        rate(summary.rate.median, &summary.unit),
        format!("{:.0} %", summary.rate.relative() * 100.0),
        ratio.map_or(String::new(), |r| format!("{:.2} [{:.2}, {:.2}]", r.value, r.low, r.high)),
        ratio.map_or(String::new(), |r| r.verdict.to_string()),
        typical(&summary.latency_us),
        quantile(summary.latency_us.p99),
        quantile(summary.latency_us.p999),
        summary.start_skew_us.map_or(String::new(), microseconds),
        cpu.join(", "),
    ]
}
