//! Reports for people and programs.

mod answer;
mod charts;
mod csv;
mod markdown;
mod page;
mod picture;
mod says;
mod table;

use std::path::Path;
use std::{fs, io};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::record::{Latency, Results};

pub(crate) use answer::pair;
pub(crate) use says::says;
pub(crate) use table::table;

/// The first plot as a picture of its own.
const PICTURE: &str = "plot.svg";

/// Checks that reports can be written, before anything is measured: makes the directory and tries a file.
pub(crate) fn prepare(out: &Path) -> Result<()> {
    let place = || format!("--out {}", out.display());
    fs::create_dir_all(out).with_context(place)?;
    tempfile::NamedTempFile::new_in(out).map(drop).with_context(place)
}

/// Writes results.json, results.csv, report.md, report.html and plot.svg, each atomically. A picture of an earlier run goes if this
/// one has none.
pub(crate) fn write(results: &Results, out: &Path) -> Result<()> {
    let files = [
        ("results.json", json(results)?),
        ("results.csv", csv::csv(results)),
        ("report.md", markdown::markdown(results)),
        ("report.html", page::page(results)),
    ];
    let picture = picture::picture(results).map(|svg| (PICTURE, svg));
    if picture.is_none()
        && let Err(e) = fs::remove_file(out.join(PICTURE))
        && e.kind() != io::ErrorKind::NotFound
    {
        return Err(e).with_context(|| out.join(PICTURE).display().to_string());
    }
    for (name, text) in files.into_iter().chain(picture) {
        let path = out.join(name);
        let whole = || -> Result<()> {
            let file = tempfile::NamedTempFile::new_in(out)?;
            fs::write(file.path(), text)?;
            fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
            file.persist(&path)?;
            Ok(())
        };
        whole().with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Formats the results with a line per measurement, so that `diff` is readable.
fn json(results: &Results) -> Result<String> {
    let whole = serde_json::to_value(results)?;
    let parts = whole.as_object().context("results are an object")?.iter().map(|(name, part)| {
        let text = match part.as_array() {
            Some(all) => {
                format!("[\n{}\n]", all.iter().map(Value::to_string).collect::<Vec<_>>().join(",\n"))
            }
            None => part.to_string(),
        };
        format!("\"{name}\": {text}")
    });
    Ok(format!("{{\n{}\n}}\n", parts.collect::<Vec<_>>().join(",\n")))
}

/// Formats a rate in decimal units, as dd and disks do.
pub(crate) fn rate(value: f64, unit: &str) -> String {
    let per = if unit == "B/s" { "B/s" } else { unit };
    if unit == "B/s" {
        return match value {
            v if 1e9 <= v => format!("{} G{per}", three(v / 1e9)),
            v if 1e6 <= v => format!("{} M{per}", three(v / 1e6)),
            v => format!("{} k{per}", three(v / 1e3)),
        };
    }
    match value {
        v if 1e6 <= v => format!("{} M{per}", three(v / 1e6)),
        v if 1e4 <= v => format!("{} k{per}", three(v / 1e3)),
        v => format!("{} {per}", three(v)),
    }
}

/// Three digits.
pub(crate) fn three(value: f64) -> String {
    match value.abs() {
        v if v < 1.0 => format!("{value:.3}"),
        v if v < 9.995 => format!("{value:.2}"),
        v if v < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Formats the median latency; empty where none was observed.
pub(crate) fn typical(latency: &Latency) -> String {
    if latency.max == 0.0 { String::new() } else { microseconds(latency.p50) }
}

/// Formats a quantile in microseconds; empty where too few operations tell it.
pub(crate) fn quantile(value: Option<f64>) -> String {
    value.map_or(String::new(), microseconds)
}

/// Formats microseconds.
pub(crate) fn microseconds(value: f64) -> String {
    match value {
        v if 1e6 <= v => format!("{} s", three(v / 1e6)),
        v if 1e3 <= v => format!("{} ms", three(v / 1e3)),
        v => format!("{} us", three(v)),
    }
}
