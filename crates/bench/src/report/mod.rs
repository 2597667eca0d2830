//! Results shown to people and programs.

mod table;

pub(crate) use table::table;

/// A rate as people read it: decimal units, as dd and disks have them.
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
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Microseconds as people read them.
pub(crate) fn microseconds(value: f64) -> String {
    match value {
        v if 1e6 <= v => format!("{} s", three(v / 1e6)),
        v if 1e3 <= v => format!("{} ms", three(v / 1e3)),
        v => format!("{} us", three(v)),
    }
}
