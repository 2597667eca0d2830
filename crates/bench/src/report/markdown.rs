//! report.md: the same in plain text, for a repository or a mail.

use std::fmt::Write;

use super::{microseconds, quantile, rate};
use crate::record::Results;
use crate::workload::Bytes;

/// The report.
pub(crate) fn markdown(results: &Results) -> String {
    let (made, machine) = (&results.made, &results.machine);
    let mut text = format!("# {}\n\n", made.title);
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
    if let Some(why) = &results.ended_early {
        let _written = writeln!(text, "**Partial results: the run ended early ({why}).**\n");
    }
    text += "## What this says\n\n";
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
            microseconds(s.latency_us.p50),
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
