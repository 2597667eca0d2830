//! Tables and formatted figures.

use fsstack_pool::Size;
use std::borrow::Cow;

/// Characters of a cell that are shown; of a longer one its beginning and its end.
const WIDEST: usize = 200;
/// Stands for what is left out of a cell.
const LEFT_OUT: &str = "...";

/// A table with columns as wide as their widest cell; figures are right-aligned. Cells of more than [`WIDEST`]
/// characters are clipped.
pub(crate) struct Table {
    head: Vec<(&'static str, Side)>,
    rows: Vec<Vec<String>>,
}

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

impl Table {
    pub(crate) fn new(head: &[(&'static str, Side)]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, one cell per column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn text(&self) -> String {
        let head = self.head.iter().map(|(title, _)| Cow::Borrowed(*title)).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(|cell| clipped(cell)).collect());
        let lines: Vec<Vec<Cow<'_, str>>> = std::iter::once(head).chain(rows).collect();
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(|cell| length(cell)).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let mut text = String::new();
        for line in &lines {
            let cells = line.iter().zip(&widths).zip(&self.head).map(|((cell, width), (_, side))| {
                let blanks = " ".repeat(width.saturating_sub(length(cell)));
                match side {
                    Side::Left => format!("{cell}{blanks}"),
                    Side::Right => format!("{blanks}{cell}"),
                }
            });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

fn length(cell: &str) -> usize {
    cell.chars().count()
}

/// The cell, or its beginning and its end: both tell paths apart.
fn clipped(cell: &str) -> Cow<'_, str> {
    let length = length(cell);
    if length <= WIDEST {
        return Cow::Borrowed(cell);
    }
    let kept = WIDEST - LEFT_OUT.len();
    let begins: String = cell.chars().take(kept / 2).collect();
    let ends: String = cell.chars().skip(length - (kept - kept / 2)).collect();
    Cow::Owned(format!("{begins}{LEFT_OUT}{ends}"))
}

/// Formats a size; `-` if there is none.
pub(crate) fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| Size(bytes).approx().to_string())
}

/// Formats microseconds.
pub(crate) fn latency(micros: Option<f64>) -> String {
    match micros {
        None => "-".to_owned(),
        Some(micros) if micros < 1000.0 => format!("{micros:.0} us"),
        Some(micros) if micros < 1_000_000.0 => format!("{:.1} ms", micros / 1000.0),
        Some(micros) => format!("{:.1} s", micros / 1_000_000.0),
    }
}

/// Formats seconds.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn columns_stand_under_their_titles() {
        let mut table = Table::new(&[("NAME", Side::Left), ("FREE", Side::Right)]);
        table.row(["a".to_owned(), size(Some(3 << 30))]);
        table.row(["longer".to_owned(), size(None)]);
        expect![[r#"
            NAME     FREE
            a       3 GiB
            longer      -
        "#]]
        .assert_eq(&table.text());
    }

    #[test]
    fn a_cell_of_any_length_is_clipped_to_its_beginning_and_end() {
        let mut table = Table::new(&[("DIRECTORY", Side::Left), ("CALLS", Side::Right)]);
        let long = format!("/first{}/last", "\u{e4}".repeat(70_000));
        table.row([long.clone(), long]);
        table.row(["/".to_owned(), "1".to_owned()]);
        let text = table.text();
        for line in text.lines() {
            assert_eq!(line.chars().count(), 2 * WIDEST + 2, "{line}");
        }
        assert_eq!(text.matches("/first\u{e4}").count() + text.matches("\u{e4}/last").count(), 4, "{text}");
        assert!(text.contains("\u{e4}...\u{e4}"), "{text}");
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(latency(Some(12.4)), "12 us");
        assert_eq!(latency(Some(12_400.0)), "12.4 ms");
        assert_eq!([age(59), age(61), age(3661), age(90_000)], ["59 s", "1 min", "1 h 1 min", "1 d 1 h"]);
    }
}
