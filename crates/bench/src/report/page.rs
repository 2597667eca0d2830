//! report.html: one self-contained page.

use std::fmt::Write;

use super::charts::{Chart, charts};
use super::{microseconds, quantile, rate};
use crate::plot::escape;
use crate::record::{Results, Summary};
use crate::workload::Bytes;

pub(super) const STYLE: &str = include_str!("page.css");

/// The page.
pub(crate) fn page(results: &Results) -> String {
    let made = &results.made;
    let title = escape(&made.title);
    let mut body = format!("<h1>{title}</h1>\n");
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
    if let Some(why) = &results.ended_early {
        body += &format!("<p class=\"warn\">Partial results: the run ended early ({}).</p>\n", escape(why));
    }
    body += "<h2>What this says</h2>\n<ul>\n";
    for sentence in &results.says {
        body += &format!("<li>{}</li>\n", escape(sentence));
    }
    body += "</ul>\n<h2>Figures</h2>\n<div class=\"charts\">\n";
    charts(results).iter().for_each(|chart| body += &figure(chart));
    body += "</div>\n";
    body += &measured(results);
    body += &published(results);
    body += &conditions(results);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
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
            rate(s.rate.median, &s.unit),
            format!("{} to {}", rate(s.rate.lower_quartile, &s.unit), rate(s.rate.upper_quartile, &s.unit)),
            ratio.map_or(String::new(), |r| format!("{:.2} [{:.2}, {:.2}]", r.value, r.low, r.high)),
            ratio.map_or(String::new(), |r| r.verdict.to_string()),
            microseconds(s.latency_us.p50),
            quantile(s.latency_us.p99),
            quantile(s.latency_us.p999),
            escape(&cpu.join(", ")),
        ]
    };
    format!("<h2>Measured</h2>\n{}", rows(&head, results.summaries.iter().map(row)))
}

fn published(results: &Results) -> String {
    if results.published.is_empty() {
        return String::new();
    }
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
    format!(
        "<h2>Published</h2>\n<p class=\"soft\">By others, on other hardware: compare ratios and shapes.</p>\n{table}"
    )
}

fn conditions(results: &Results) -> String {
    let mut text = String::from("<h2>Conditions</h2>\n");
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
        "<ul><li>Command: <code>{}</code></li><li>Seed {}, baseline {}, {:.0} s, load before it {}.</li>",
        escape(&made.command.join(" ")),
        made.seed,
        escape(&made.baseline),
        made.seconds,
        escape(&results.machine.load)
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
    text += "</details>\n";
    if !results.skipped.is_empty() {
        text += "<h2>Not measured</h2>\n<ul>\n";
        for skipped in &results.skipped {
            let _written = writeln!(text, "<li>{}: {}</li>", escape(&skipped.what), escape(&skipped.why));
        }
        text += "</ul>\n";
    }
    text
}
