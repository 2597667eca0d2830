//! report.md: the same in plain text, for a repository or a mail.

use std::fmt::Write;

use super::answer::answer;
use super::{quantile, rate, typical};
use crate::record::Results;
use crate::stats::{Ratio, Verdict};
use crate::workload::Bytes;

/// The report.
pub(crate) fn markdown(results: &Results) -> String {
    let (made, machine) = (&results.made, &results.machine);
    let mut text = first_screen(results);
    // Writing to a String cannot fail, here and below.
    let _written = writeln!(
        text,
        "{}, {} CPUs ({}), {}, {}; fsstack {} at {}; {} rounds, seed {}, load {}.\n\n    {}\n",
        made.began,
        machine.cpus,
        machine.cpu,
        Bytes(machine.memory_bytes),
        machine.kernel,
        made.version,
        made.commit,
        made.rounds,
        made.seed,
        machine.load,
        made.command.join(" ")
    );
    text += "## What else this says\n\n";
    results.says.iter().for_each(|said| text += &format!("- {said}\n"));
    text += "\n## Measured\n\n| case | target | median | quartiles | to baseline | verdict | p50 | p99 | p99.9 | CPUs busy |\n";
    text += "|---|---|---:|---:|---:|---|---:|---:|---:|---|\n";
    for s in &results.summaries {
        let (ratio, verdict) = match &s.ratio {
            Some(r) => (format!("{:.2} [{:.2}, {:.2}]", r.value, r.low, r.high), r.verdict.to_string()),
            None => (String::new(), String::new()),
        };
        let cpu: Vec<String> = s.cpu.iter().map(|c| format!("{} {:.2}", c.program, c.cpus)).collect();
        let cells = [
            s.case.clone(),
            s.target.clone(),
            rate(s.rate.median, &s.unit),
            format!("{} to {}", rate(s.rate.lower_quartile, &s.unit), rate(s.rate.upper_quartile, &s.unit)),
            ratio,
            verdict,
            typical(&s.latency_us),
            quantile(s.latency_us.p99),
            quantile(s.latency_us.p999),
            cpu.join(", "),
        ];
        let _written = writeln!(text, "| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    published(results, &mut text);
    targets(results, &mut text);
    if !results.skipped.is_empty() {
        text += "\n## Not measured\n\n";
        results.skipped.iter().for_each(|s| text += &format!("- {}: {}\n", s.what, s.why));
    }
    text
}

/// The answer, as the page and the terminal have it.
fn first_screen(results: &Results) -> String {
    let answer = answer(results);
    let mut text = format!("# {}\n\n**{}**\n\n", answer.question, answer.sentence);
    answer.bars.iter().for_each(|(decision, words)| text += &format!("- **{decision}**: {words}\n"));
    if !answer.rows.is_empty() {
        let head: Vec<&str> = answer.columns.iter().map(String::as_str).collect();
        let _written =
            writeln!(text, "\n| to the baseline | {} | CPU us/MiB | published |", head.join(" | "));
        let _written = writeln!(text, "|---|{}---:|---:|", "---:|".repeat(head.len()));
    }
    for row in &answer.rows {
        let cell = |ratio: &Option<Ratio>| ratio.map_or("-".to_owned(), |r| in_a_cell(&r));
        let cells: Vec<String> = row.ratios.iter().map(cell).collect();
        let cpu = row.cpu_us.map_or("-".to_owned(), |us| format!("{us:.0}"));
        let told = row.published.as_deref().unwrap_or("-");
        let _written = writeln!(text, "| {} | {} | {cpu} | {told} |", row.target, cells.join(" | "));
    }
    text + &format!("\n{}.\n\n", answer.conditions.join("; "))
}

fn in_a_cell(ratio: &Ratio) -> String {
    let word = match ratio.verdict {
        Verdict::Faster => " faster",
        Verdict::Slower => " slower",
        Verdict::Same | Verdict::Unclear | Verdict::TooFewRounds => "",
    };
    format!("{:.2} [{:.2}, {:.2}]{word}", ratio.value, ratio.low, ratio.high)
}

fn targets(results: &Results, text: &mut String) {
    *text += "\n## Targets\n\n| target | directory | type | source | size | free | bricks it may lose | options | notes |\n|---|---|---|---|---:|---:|---:|---|---|\n";
    for t in &results.targets {
        let (size, free) = (Bytes(t.size_bytes), Bytes(t.free_bytes));
        let _written = writeln!(
            text,
            "| {} | {} | {} | {} | {size} | {free} | {} | `{}` | {} |",
            t.name,
            t.dir,
            t.fs_type,
            t.source,
            t.bears.map_or(String::new(), |bricks| bricks.to_string()),
            t.options,
            t.notes.join("; ")
        );
    }
}

fn published(results: &Results, text: &mut String) {
    if results.published.is_empty() {
        return;
    }
    *text += "\n## Published by others, on other hardware\n\n| figure | series | at | value | from |\n|---|---|---|---:|---|\n";
    for p in &results.published {
        let unit = results.figures.iter().find(|f| f.name == p.figure).map_or("", |f| f.unit.as_str());
        let shown = |v: f64| if p.relative { format!("{v:.2}") } else { rate(v, unit) };
        for q in &p.points {
            let value =
                if q.low < q.high { format!("{} to {}", shown(q.low), shown(q.high)) } else { shown(q.low) };
            let _written =
                writeln!(text, "| {} | {} | {} | {value} | {} |", p.figure, p.series, q.x_label, p.source);
        }
    }
}
