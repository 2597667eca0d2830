//! report.html: one self-contained page.

use std::fmt::Write;

use super::answer::{AnswerRow, FirstScreen, answer};
use super::charts::{Chart, charts, colour_of, details};
use super::{quantile, rate, typical};
use crate::bar::Decision;
use crate::plot::{Bar, cell, escape};
use crate::record::{Results, Summary};
use crate::stats::{Ratio, Verdict};
use crate::workload::Bytes;

pub(super) const STYLE: &str = include_str!("page.css");

/// The page.
pub(crate) fn page(results: &Results) -> String {
    let made = &results.made;
    let title = escape(&made.title);
    let mut body = first_screen(results);
    body += "<h2>Figures</h2>\n<div class=\"charts\">\n";
    charts(results).iter().for_each(|chart| body += &figure(chart));
    body += "</div>\n<h2>Details</h2>\n";
    body += &format!(
        "<p class=\"soft\">{} on {} CPUs ({}), {}, {}; fsstack {} at {}; {} rounds, targets in turn within each.</p>\n",
        escape(&made.began),
        results.machine.cpus,
        escape(&results.machine.cpu),
        Bytes(results.machine.memory_bytes),
        escape(&results.machine.kernel),
        escape(&made.version),
        escape(made.commit.get(..12).unwrap_or(&made.commit)),
        made.rounds
    );
    let mut said = String::from("<ul>\n");
    for sentence in &results.says {
        said += &format!("<li>{}</li>\n", escape(sentence));
    }
    body += &folded("What else this says", &(said + "</ul>\n"));
    body += &folded("Measured", &measured(results));
    let mut plots = String::from("<div class=\"charts\">\n");
    details(results).iter().for_each(|chart| plots += &figure(chart));
    body += &folded("Rates, CPU time, latencies", &(plots + "</div>\n"));
    if !results.published.is_empty() {
        body += &folded("Published", &published(results));
    }
    body += &folded("Conditions", &conditions(results));
    body += &not_measured(results);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}

/// A part of the page that a click unfolds.
fn folded(title: &str, content: &str) -> String {
    format!("<details><summary>{title}</summary>\n{content}</details>\n")
}

/// The answer: it fits a screen.
fn first_screen(results: &Results) -> String {
    let answer = answer(results);
    let mut text = format!("<h1>{}</h1>\n<div class=\"answer\">\n", escape(&answer.question));
    text += &format!("<p>{}</p>\n", escape(&answer.sentence));
    if !answer.bars.is_empty() {
        text += "<ul class=\"bars\">\n";
        for (decision, words) in &answer.bars {
            let class = match decision {
                Decision::Met => "met",
                Decision::Missed => "missed",
                Decision::NotDecided => "open",
            };
            text += &format!("<li class=\"{class}\"><b>{decision}</b> {}</li>\n", escape(words));
        }
        text += "</ul>\n";
    }
    text += "</div>\n";
    text += &ratios(results, &answer);
    text + &format!("<p class=\"soft\">{}.</p>\n", escape(&answer.conditions.join("; ")))
}

/// The one table: a forest plot in each cell, all on the same axis.
fn ratios(results: &Results, answer: &FirstScreen) -> String {
    if answer.rows.is_empty() {
        return String::new();
    }
    let all = answer.rows.iter().flat_map(|row| row.ratios.iter().flatten());
    let values: Vec<f64> = all.flat_map(|ratio| [ratio.low, ratio.high]).collect();
    let columns = answer.columns.iter().map(|name| escape(name));
    let head: Vec<String> = ["to the baseline".to_owned()].into_iter().chain(columns).collect();
    let head = head.into_iter().chain(["CPU \u{b5}s/MiB".to_owned(), "published".to_owned()]);
    let head: Vec<String> = head.collect();
    let row = |row: &AnswerRow| {
        let colour = colour_of(results, &row.target);
        let cell = |ratio: &Option<Ratio>| match ratio {
            Some(ratio) => ratio_cell(&row.target, colour, ratio, &values),
            None => "\u{2013}".to_owned(),
        };
        let mut cells = vec![escape(&row.target)];
        cells.extend(row.ratios.iter().map(cell));
        cells.push(row.cpu_us.map_or("\u{2013}".to_owned(), |us| format!("{us:.0}")));
        cells.push(escape(row.published.as_deref().unwrap_or("\u{2013}")));
        cells
    };
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    rows(&head, answer.rows.iter().map(row)).replacen("<table", "<table class=\"forest\"", 1)
}

fn ratio_cell(target: &str, colour: usize, ratio: &Ratio, values: &[f64]) -> String {
    let sign = match ratio.verdict {
        Verdict::Faster => " <b class=\"met\" title=\"faster\">&#9650;</b>",
        Verdict::Slower => " <b class=\"missed\" title=\"slower\">&#9660;</b>",
        Verdict::Same | Verdict::Unclear | Verdict::TooFewRounds => "",
    };
    let Ratio { value, low, high, .. } = *ratio;
    let bar = Bar { name: target.to_owned(), colour, published: false, value, low, high };
    format!("{value:.2}{sign}{}", cell(&bar, values))
}

fn figure(chart: &Chart) -> String {
    let mut legend = String::new();
    for (name, colour, published) in &chart.legend {
        let class = if *published { format!("c{colour} published") } else { format!("c{colour}") };
        // Writing to a String cannot fail, here and below.
        let _written = write!(legend, "<li><i class=\"{class}\"></i>{}</li>", escape(name));
    }
    if !legend.is_empty() {
        legend = format!("<ul class=\"legend\">{legend}</ul>");
    }
    format!(
        "<figure class=\"chart\"><figcaption>{}</figcaption>{}{legend}<p>{}</p></figure>\n",
        escape(&chart.title),
        chart.svg,
        escape(&chart.note)
    )
}

/// Formats rows of cells with the first as head. Cells are escaped already.
fn rows(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = String::from("<div class=\"wide\"><table><thead><tr>");
    head.iter().for_each(|cell| table += &format!("<th>{cell}</th>"));
    table += "</tr></thead><tbody>\n";
    for row in rows {
        let cells: String = row.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        let _written = writeln!(table, "<tr>{cells}</tr>");
    }
    table + "</tbody></table></div>\n"
}

fn measured(results: &Results) -> String {
    let head = [
        "case",
        "target",
        "caches",
        "median",
        "quartiles",
        "to baseline",
        "verdict",
        "p50",
        "p99",
        "p99.9",
        "CPUs busy",
    ];
    let row = |s: &Summary| {
        let ratio = s.ratio.as_ref();
        let cpu: Vec<String> = s.cpu.iter().map(|c| format!("{} {:.2}", c.program, c.cpus)).collect();
        vec![
            escape(&s.case),
            escape(&s.target),
            s.cold.map_or("", |cold| if cold.is_cold() { "cold" } else { "not cold" }).to_owned(),
            rate(s.rate.median, &s.unit),
            format!("{} to {}", rate(s.rate.lower_quartile, &s.unit), rate(s.rate.upper_quartile, &s.unit)),
            ratio.map_or(String::new(), |r| format!("{:.2} [{:.2}, {:.2}]", r.value, r.low, r.high)),
            ratio.map_or(String::new(), |r| r.verdict.to_string()),
            typical(&s.latency_us),
            quantile(s.latency_us.p99),
            quantile(s.latency_us.p999),
            escape(&cpu.join(", ")),
        ]
    };
    rows(&head, results.summaries.iter().map(row))
}

fn published(results: &Results) -> String {
    let row = |p: &crate::published::Published| {
        let unit = results.figures.iter().find(|f| f.name == p.figure).map_or("", |f| f.unit.as_str());
        let shown = |v: f64| if p.relative { format!("{v:.2}") } else { rate(v, unit) };
        let point = |q: &crate::published::Point| {
            let value =
                if q.low < q.high { format!("{} to {}", shown(q.low), shown(q.high)) } else { shown(q.low) };
            format!("{}: {value}", q.x_label)
        };
        let points: Vec<String> = p.points.iter().map(point).collect();
        vec![escape(&p.figure), escape(&p.series), escape(&points.join("; ")), escape(&p.source)]
    };
    let table = rows(&["figure", "series", "values", "from"], results.published.iter().map(row));
    format!("<p class=\"soft\">By others, on other hardware: compare ratios and shapes.</p>\n{table}")
}

fn conditions(results: &Results) -> String {
    let mut text = String::new();
    let target = |t: &crate::record::TargetRecord| {
        vec![
            escape(&t.name),
            escape(&t.dir),
            escape(&t.fs_type),
            escape(&t.source),
            Bytes(t.size_bytes).to_string(),
            Bytes(t.free_bytes).to_string(),
            t.bears.map_or(String::new(), |bricks| bricks.to_string()),
            format!("<code>{}</code>", escape(&t.options)),
            escape(&t.notes.join("; ")),
        ]
    };
    let head =
        ["target", "directory", "type", "source", "size", "free", "bricks it may lose", "options", "notes"];
    text += &rows(&head, results.targets.iter().map(target));
    let made = &results.made;
    let _written = writeln!(
        text,
        "<ul><li>Command: <code>{}</code></li><li>Seed {}, baseline {}, {:.0} s, load {} before and {} after, {} s stolen; clock {}, guest_halt_poll_ns {}.</li>",
        escape(&made.command.join(" ")),
        made.seed,
        escape(&made.baseline),
        made.seconds,
        escape(&results.machine.load),
        escape(results.machine.load_after.as_deref().unwrap_or("-")),
        results.machine.steal_seconds.map_or("-".to_owned(), |s| format!("{s:.1}")),
        escape(results.machine.clock_source.as_deref().unwrap_or("-")),
        results.machine.guest_halt_poll_ns.map_or("-".to_owned(), |ns| ns.to_string())
    );
    for how in &made.caches {
        let _written = writeln!(text, "<li>{}</li>", escape(how));
    }
    text += "</ul>\n<details><summary>Workloads</summary>\n";
    let case = |c: &crate::record::Case| {
        let w = serde_json::to_string(&c.workload).unwrap_or_default();
        vec![escape(&c.name), format!("<code>{}</code>", escape(&w.replace(',', ", ")))]
    };
    text += &rows(&["case", "workload"], results.cases.iter().map(case))
        .replace("<td><code>", "<td class=\"long\"><code>");
    text + "</details>\n"
}

fn not_measured(results: &Results) -> String {
    let mut text = String::new();
    if !results.skipped.is_empty() {
        text += "<h2>Not measured</h2>\n<ul>\n";
        for skipped in &results.skipped {
            let _written = writeln!(text, "<li>{}: {}</li>", escape(&skipped.what), escape(&skipped.why));
        }
        text += "</ul>\n";
    }
    text
}
