//! Tables of samples: printed as Markdown with medians and ratios, stored as JSON with every sample.

use std::fmt::Write as _;

use fsstack_bench::stats::{self, FEWEST_ROUNDS, Spread, paired_ratio, unpaired_ratio};
use serde_json::{Value, json};

/// Direction of improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sense {
    MoreIsBetter,
    LessIsBetter,
}

/// Samples by operation (row) and contender (column).
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) notes: Vec<String>,
    /// Ratios of one column to the better of others, as further columns.
    pub(crate) ratios: Vec<Ratio>,
    /// Names of further rows, each with the mean of the ratios of some rows.
    pub(crate) means: Vec<(&'static str, Vec<&'static str>)>,
    sense: Sense,
    columns: Vec<String>,
    rows: Vec<(String, Vec<Samples>)>,
}

/// A column compared with others.
#[derive(Clone, Debug)]
pub(crate) struct Ratio {
    pub(crate) of: &'static str,
    pub(crate) to: Vec<&'static str>,
    pub(crate) heading: &'static str,
}

type Samples = Vec<f64>;

/// Seed of the resamples that an interval of unpaired samples comes from.
const SEED: u64 = 1;

impl Table {
    pub(crate) fn new(title: &str, sense: Sense) -> Self {
        let (title, notes, ratios, means) = (title.to_owned(), Vec::new(), Vec::new(), Vec::new());
        Self { title, notes, ratios, means, sense, columns: Vec::new(), rows: Vec::new() }
    }

    /// Adds a comparison.
    pub(crate) fn compare(&mut self, of: &'static str, to: &[&'static str], heading: &'static str) {
        self.ratios.push(Ratio { of, to: to.to_vec(), heading });
    }

    /// Adds a sample.
    pub(crate) fn put(&mut self, row: &str, column: &str, sample: f64) {
        let at = position(&mut self.columns, column);
        let found = self.rows.iter().position(|(label, _)| label == row);
        let row_at = found.unwrap_or_else(|| {
            self.rows.push((row.to_owned(), Vec::new()));
            self.rows.len() - 1
        });
        let cells = &mut self.rows[row_at].1;
        cells.resize(cells.len().max(at + 1), Samples::new());
        cells[at].push(sample);
    }

    /// Median of a cell.
    pub(crate) fn median_of(&self, row: &str, column: &str) -> Option<f64> {
        self.median(&self.rows.iter().find(|(label, _)| label == row)?.1, column)
    }

    fn samples<'a>(&self, cells: &'a [Samples], column: &str) -> Option<&'a Samples> {
        let at = self.columns.iter().position(|name| name == column)?;
        cells.get(at).filter(|samples| !samples.is_empty())
    }

    fn median(&self, cells: &[Samples], column: &str) -> Option<f64> {
        median(self.samples(cells, column)?)
    }

    /// Ratio of the column to the one of the others with the better median, above 1 if the column is better.
    fn ratio(&self, ratio: &Ratio, cells: &[Samples]) -> Option<stats::Ratio> {
        let own = self.samples(cells, ratio.of)?;
        let others = ratio.to.iter().filter_map(|column| self.samples(cells, column));
        let by_median =
            |one: &&Samples, other: &&Samples| stats::median(one).total_cmp(&stats::median(other));
        match self.sense {
            Sense::MoreIsBetter => others.max_by(by_median).and_then(|other| between(own, other)),
            Sense::LessIsBetter => others.min_by(by_median).and_then(|other| between(other, own)),
        }
    }

    pub(crate) fn markdown(&self) -> String {
        let mut out = format!("### {}\n\n", self.title);
        let headings = self.columns.iter().map(String::as_str).chain(self.ratios.iter().map(|r| r.heading));
        let headings: Vec<&str> = headings.collect();
        push_row(&mut out, "", &headings.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>());
        out += &format!("|---|{}\n", "---:|".repeat(headings.len()));
        for (label, cells) in &self.rows {
            let medians = self.columns.iter().map(|c| self.median(cells, c).map_or("-".into(), figure));
            let rounds = cells.iter().map(Vec::len).max().unwrap_or(0);
            let ratios =
                self.ratios.iter().map(|r| self.ratio(r, cells).map_or("-".into(), |r| times(rounds, &r)));
            push_row(&mut out, label, &medians.chain(ratios).collect::<Vec<_>>());
        }
        if !self.ratios.is_empty() && self.rows.len() > 1 {
            self.push_mean(&mut out, "geometric mean", |_| true);
            for (title, rows) in &self.means {
                self.push_mean(&mut out, title, |label| rows.contains(&label));
            }
        }
        let worst = self.rows.iter().flat_map(|(_, cells)| cells.iter().filter_map(|s| spread(s)));
        if let Some(worst) = worst.reduce(f64::max) {
            let _infallible = write!(
                out,
                "\nHalf of each cell's samples lie within {:.0} % of its median, or closer.",
                worst * 100.0
            );
            out += if self.ratios.is_empty() { "\n" } else { " In brackets: intervals of 95 %.\n" };
        }
        for note in &self.notes {
            let _infallible = write!(out, "\n- {note}");
        }
        out + "\n"
    }

    /// Adds a row with the geometric means of the ratios of the rows that are `wanted`.
    fn push_mean(&self, out: &mut String, title: &str, wanted: impl Fn(&str) -> bool) {
        let blank = self.columns.iter().map(|_| String::new());
        let means = self.ratios.iter().map(|ratio| {
            let rows = self.rows.iter().filter(|(label, _)| wanted(label));
            let each: Vec<f64> =
                rows.filter_map(|(_, cells)| Some(self.ratio(ratio, cells)?.value)).collect();
            geometric_mean(&each).map_or("-".into(), |mean| format!("**{mean:.2}**"))
        });
        push_row(out, title, &blank.chain(means).collect::<Vec<_>>());
    }

    pub(crate) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|(label, cells)| {
            let by = self.columns.iter().zip(cells).map(|(column, samples)| {
                let cell = json!({ "median": median(samples), "spread": spread(samples), "samples": samples });
                (column.clone(), cell)
            });
            let ratios = self.ratios.iter().map(|r| (r.heading.to_owned(), json!(self.ratio(r, cells))));
            json!({ "what": label, "by": by.collect::<serde_json::Map<_, _>>(), "ratios": ratios.collect::<serde_json::Map<_, _>>() })
        });
        json!({ "title": self.title, "notes": self.notes, "rows": rows.collect::<Vec<_>>() })
    }
}

fn position(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|known| known == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    })
}

fn push_row(out: &mut String, label: &str, cells: &[String]) {
    *out += &format!("| {label} | {} |\n", cells.join(" | "));
}

/// The median, if there are samples.
pub(crate) fn median(samples: &[f64]) -> Option<f64> {
    Spread::of(samples).map(|spread| spread.median)
}

/// Half the interquartile range as a fraction of the median.
fn spread(samples: &[f64]) -> Option<f64> {
    Spread::of(samples)
        .filter(|spread| 2 < spread.rounds && 0.0 < spread.median)
        .map(|spread| spread.relative())
}

/// Ratio of samples, by rounds where both have as many.
fn between(theirs: &[f64], baseline: &[f64]) -> Option<stats::Ratio> {
    if theirs.len() != baseline.len() {
        return unpaired_ratio(theirs, baseline, SEED);
    }
    paired_ratio(&theirs.iter().copied().zip(baseline.iter().copied()).collect::<Vec<_>>())
}

fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let count = f64::from(u32::try_from(ratios.len()).ok().filter(|&count| count > 0)?);
    Some((ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / count).exp())
}

fn figure(value: f64) -> String {
    let digits = match value {
        v if v < 10.0 => 2,
        v if v < 100.0 => 1,
        _ => 0,
    };
    let plain = format!("{value:.digits$}");
    let (whole, rest) = plain.split_once('.').map_or((plain.as_str(), None), |(w, r)| (w, Some(r)));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    rest.map_or(grouped.clone(), |rest| format!("{grouped}.{rest}"))
}

/// The ratio, with its interval if enough rounds allow one.
fn times(samples: usize, ratio: &stats::Ratio) -> String {
    let stats::Ratio { value, low, high, .. } = ratio;
    if samples < FEWEST_ROUNDS { format!("{value:.2}") } else { format!("{value:.2} [{low:.2}, {high:.2}]") }
}
