//! Forest plots: ratios with their intervals on a log axis, 1 marked, so that one wide interval does not squeeze the others.

use super::bars::{Bar, shorten};
use super::scale::{Axis, Scale};
use super::{at, drawing, escape, rule, text};

const WIDTH: f64 = 480.0;
const LEFT: f64 = 140.0;
const RIGHT: f64 = 60.0;
const TOP: f64 = 6.0;
const ROW: f64 = 21.0;
const HEAD: f64 = 24.0;
const BOTTOM: f64 = 26.0;

/// Ratios of groups: a group a case, a row a target.
pub(crate) struct Forest<'a> {
    pub(crate) title: &'a str,
    pub(crate) groups: Vec<(String, Vec<Bar>)>,
}

impl Forest<'_> {
    /// The drawing.
    pub(crate) fn svg(&self) -> String {
        let all = self.groups.iter().flat_map(|(_, rows)| rows);
        let values = all.clone().flat_map(|row| [row.value, row.low, row.high]).chain([0.95, 1.05]);
        let x = Scale::covering(Axis::Log, values, LEFT, WIDTH - RIGHT);
        let height = TOP + self.groups.len() as f64 * HEAD + all.count() as f64 * ROW + BOTTOM;
        let mut body = String::new();
        for value in x.ticks(6) {
            let place = x.place(value);
            body += &rule((place, TOP), (place, height - BOTTOM), "grid");
            body += &text(place, height - 8.0, r#"text-anchor="middle" class="soft""#, &short(value));
        }
        body += &rule((x.place(1.0), TOP), (x.place(1.0), height - BOTTOM), "mark");
        let mut y = TOP;
        for (name, rows) in &self.groups {
            body += &text(4.0, y + HEAD - 7.0, r#"class="strong""#, name);
            y += HEAD;
            for row in rows {
                body +=
                    &text(LEFT - 6.0, y + ROW / 2.0 + 4.5, r#"text-anchor="end""#, &shorten(&row.name, 17));
                body += &interval(row, &x, y + ROW / 2.0);
                body += &text(WIDTH - RIGHT + 8.0, y + ROW / 2.0 + 4.5, "", &format!("{:.2}", row.value));
                y += ROW;
            }
        }
        drawing(WIDTH, height, self.title, &body)
    }
}

/// A value without zeros at its end.
fn short(value: f64) -> String {
    format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn interval(row: &Bar, x: &Scale, y: f64) -> String {
    let class = if row.published { "published" } else { "measured" };
    let mut body = String::new();
    if row.low < row.high {
        body += &rule((x.place(row.low), y), (x.place(row.high), y), &format!("whisker c{}", row.colour));
    }
    let words = format!("{}: {:.2} [{:.2}, {:.2}]", row.name, row.value, row.low, row.high);
    body + &format!(
        r#"<circle cx="{}" cy="{}" r="4.2" class="dot {class} c{}"><title>{}</title></circle>"#,
        at(x.place(row.value)),
        at(y),
        row.colour,
        escape(&words)
    )
}

/// A single interval for a table's cell, on a log axis that covers `values`.
pub(crate) fn cell(row: &Bar, values: &[f64]) -> String {
    const CELL: (f64, f64) = (110.0, 18.0);
    let x = Scale::covering(Axis::Log, values.iter().copied().chain([0.9, 1.1]), 4.0, CELL.0 - 4.0);
    let one = rule((x.place(1.0), 1.0), (x.place(1.0), CELL.1 - 1.0), "mark");
    drawing(CELL.0, CELL.1, &row.name, &(one + &interval(row, &x, CELL.1 / 2.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, value: f64, low: f64, high: f64) -> Bar {
        Bar { name: name.into(), colour: 1, published: name == "others", value, low, high }
    }

    #[test]
    fn each_ratio_is_a_dot_with_its_interval_and_one_is_marked() {
        let rows = vec![row("pool", 0.97, 0.85, 1.01), row("others", 0.34, 0.34, 0.34)];
        let svg = Forest { title: "a < b", groups: vec![("write".into(), rows)] }.svg();
        assert_eq!((svg.matches("<circle").count(), svg.matches("whisker").count()), (2, 1));
        assert!(svg.contains(r#"class="mark""#) && svg.contains("dot published") && svg.contains("a &lt; b"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        let cell = cell(&row("pool", 8.0, 0.5, 9.0), &[0.5, 9.0]);
        assert!(cell.contains("<circle") && cell.contains("pool: 8.00 [0.50, 9.00]"), "{cell}");
    }
}
