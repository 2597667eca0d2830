//! Tables and formatted figures.

use fsstack_pool::Size;

/// A table with columns as wide as their widest cell; figures are right-aligned.
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
        let head = self.head.iter().map(|(title, _)| (*title).to_owned()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&head).chain(&self.rows).collect();
        let width = |column: usize| {
            lines
                .iter()
                .filter_map(|line| line.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let mut text = String::new();
        for line in &lines {
            let cells =
                line.iter().zip(&widths).zip(&self.head).map(|((cell, width), (_, side))| match side {
                    Side::Left => format!("{cell:width$}"),
                    Side::Right => format!("{cell:>width$}"),
                });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
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
    fn figures_are_short() {
        assert_eq!(latency(Some(12.4)), "12 us");
        assert_eq!(latency(Some(12_400.0)), "12.4 ms");
        assert_eq!([age(59), age(61), age(3661), age(90_000)], ["59 s", "1 min", "1 h 1 min", "1 d 1 h"]);
    }
}
