//! Horizontal bars, one group per case and one bar per target with its value as text, so that small screens fit any
//! number.

use super::scale::{Axis, Scale};
use super::{at, drawing, escape, rule, text};

const WIDTH: f64 = 480.0;
const LEFT: f64 = 140.0;
const RIGHT: f64 = 104.0;
const TOP: f64 = 6.0;
const ROW: f64 = 23.0;
const HEAD: f64 = 24.0;
const BOTTOM: f64 = 26.0;

/// One bar.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) name: String,
    /// Index of the page's colour.
    pub(crate) colour: usize,
    pub(crate) published: bool,
    pub(crate) value: f64,
    /// Ends of the interval.
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Groups of bars on one axis from 0.
pub(crate) struct Bars<'a> {
    pub(crate) title: &'a str,
    pub(crate) groups: Vec<(String, Vec<Bar>)>,
    /// Words for a value.
    pub(crate) words: &'a dyn Fn(f64) -> String,
    /// Value with a line across the plot: 1 for ratios.
    pub(crate) mark: Option<f64>,
}

impl Bars<'_> {
    /// The drawing.
    pub(crate) fn svg(&self) -> String {
        let all = self.groups.iter().flat_map(|group| &group.1);
        let ends = all.flat_map(|bar| [bar.value, bar.high]).chain(self.mark);
        let x = Scale::covering(Axis::Linear, ends, LEFT, WIDTH - RIGHT);
        let rows: usize = self.groups.iter().map(|group| group.1.len()).sum();
        let height = TOP + self.groups.len() as f64 * HEAD + rows as f64 * ROW + BOTTOM;
        let mut body = String::new();
        for value in x.ticks(4) {
            let place = x.place(value);
            body += &rule((place, TOP), (place, height - BOTTOM), "grid");
            body += &text(place, height - 8.0, r#"text-anchor="middle" class="soft""#, &(self.words)(value));
        }
        let mut y = TOP;
        for (name, bars) in &self.groups {
            body += &text(4.0, y + HEAD - 7.0, r#"class="strong""#, name);
            y += HEAD;
            for bar in bars {
                body += &self.draw(bar, y, &x);
                y += ROW;
            }
        }
        if let Some(mark) = self.mark {
            body += &rule((x.place(mark), TOP), (x.place(mark), height - BOTTOM), "mark");
        }
        drawing(WIDTH, height, self.title, &body)
    }

    fn draw(&self, bar: &Bar, y: f64, x: &Scale) -> String {
        let (zero, end, middle) = (x.place(0.0), x.place(bar.value), y + ROW / 2.0);
        let class = if bar.published { "published" } else { "measured" };
        // Only the ends of a published range are known.
        let range = bar.published && bar.low < bar.high;
        let (zero, words) = if range {
            (x.place(bar.low), format!("{} to {}", (self.words)(bar.low), (self.words)(bar.high)))
        } else {
            (zero, (self.words)(bar.value))
        };
        let shown = shorten(&bar.name, 17);
        let mut body = text(LEFT - 6.0, middle + 4.5, r#"text-anchor="end""#, &shown);
        body += &format!(
            r#"<rect x="{}" y="{}" width="{}" height="{}" class="bar {class} c{}"><title>{}</title></rect>"#,
            at(zero),
            at(y + 3.0),
            at((end - zero).max(0.5)),
            at(ROW - 6.0),
            bar.colour,
            escape(&format!("{}: {words}", bar.name)),
        );
        let mut right = end;
        if bar.low < bar.high && !range {
            let (low, high) = (x.place(bar.low), x.place(bar.high));
            body += &rule((low, middle), (high, middle), "error");
            body += &rule((low, middle - 4.0), (low, middle + 4.0), "error");
            body += &rule((high, middle - 4.0), (high, middle + 4.0), "error");
            right = right.max(high);
        }
        body + &text(right + 6.0, middle + 4.5, "", &words)
    }
}

/// Shortens a name to fit beside its bar.
pub(super) fn shorten(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    let kept: String = name.chars().take(most - 2).collect();
    format!("{kept}..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bar_is_drawn_with_its_ends_and_its_words() {
        let bar = |name: &str, value, low, high| Bar {
            name: name.into(),
            colour: 0,
            published: name == "others",
            value,
            low,
            high,
        };
        let bars = Bars {
            title: "t",
            groups: vec![("write".into(), vec![bar("pool", 0.9, 0.8, 1.0), bar("others", 0.3, 0.3, 0.3)])],
            words: &|v| format!("{v:.2}"),
            mark: Some(1.0),
        };
        let svg = bars.svg();
        assert_eq!(svg.matches("<rect").count(), 2);
        assert_eq!(svg.matches(r#"class="error""#).count(), 3);
        assert!(svg.contains("bar published") && svg.contains(">0.90<") && svg.contains(r#"class="mark""#));
        assert_eq!(shorten("a-name-that-is-too-long", 15), "a-name-that-i..");
    }
}
