//! Line charts: measured lines with their spread, published ones dashed.

use super::scale::{Axis, Scale};
use super::{at, drawing, rule, text};

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 86.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 52.0;

/// Source of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Ours.
    Measured,
    /// Published by others.
    Published,
}

/// One line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// Index of the page's colour.
    pub(crate) colour: usize,
    pub(crate) mark: Mark,
    /// x, y, and the ends of y's interval.
    pub(crate) points: Vec<(f64, f64, f64, f64)>,
}

/// A chart of lines.
pub(crate) struct Lines<'a> {
    pub(crate) title: &'a str,
    pub(crate) x_title: &'a str,
    pub(crate) x_axis: Axis,
    pub(crate) y_axis: Axis,
    /// Labelled values on the x axis; too many are thinned out.
    pub(crate) x_marks: Vec<(f64, String)>,
    /// Formats a value of y.
    pub(crate) y_words: &'a dyn Fn(f64) -> String,
    pub(crate) lines: Vec<Line>,
}

impl Lines<'_> {
    /// The drawing.
    pub(crate) fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let xs = points().map(|p| p.0).chain(self.x_marks.iter().map(|m| m.0));
        let x = Scale::covering(self.x_axis, xs, LEFT, WIDTH - RIGHT);
        let y = Scale::covering(self.y_axis, points().flat_map(|p| [p.1, p.2, p.3]), HEIGHT - BOTTOM, TOP);
        let mut body = String::new();
        for value in y.ticks(7) {
            let place = y.place(value);
            body += &rule((LEFT, place), (WIDTH - RIGHT, place), "grid");
            body += &text(LEFT - 6.0, place + 4.5, r#"text-anchor="end""#, &(self.y_words)(value));
        }
        body += &self.x_marks(&x);
        body += &rule((LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM), "axis");
        for line in &self.lines {
            body += &draw(line, &x, &y);
        }
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        body += &text(middle, HEIGHT - 8.0, r#"text-anchor="middle" class="soft""#, self.x_title);
        drawing(WIDTH, HEIGHT, self.title, &body)
    }

    fn x_marks(&self, x: &Scale) -> String {
        let mut body = String::new();
        let mut free_from = f64::NEG_INFINITY;
        for (value, words) in &self.x_marks {
            let place = x.place(*value);
            body += &rule((place, HEIGHT - BOTTOM), (place, HEIGHT - BOTTOM + 4.0), "axis");
            // Labels that would touch the one before are omitted.
            let half = words.chars().count() as f64 * 4.3;
            // The last may extend over the edge.
            let place = place.min(WIDTH - half - 1.0);
            if free_from <= place - half {
                body += &text(place, HEIGHT - BOTTOM + 20.0, r#"text-anchor="middle""#, words);
                free_from = place + half + 7.0;
            }
        }
        body
    }
}

fn draw(line: &Line, x: &Scale, y: &Scale) -> String {
    let (class, colour) = match line.mark {
        Mark::Measured => ("measured", line.colour),
        Mark::Published => ("published", line.colour),
    };
    let places: Vec<String> =
        line.points.iter().map(|p| format!("{},{}", at(x.place(p.0)), at(y.place(p.1)))).collect();
    let mut body = format!(r#"<polyline points="{}" class="line {class} c{colour}"/>"#, places.join(" "));
    for &(px, py, low, high) in &line.points {
        let place = x.place(px);
        if low < high {
            body += &rule((place, y.place(low)), (place, y.place(high)), &format!("whisker c{colour}"));
        }
        if line.mark == Mark::Published || line.points.len() <= 24 {
            let (cx, cy) = (at(place), at(y.place(py)));
            body += &format!(r#"<circle cx="{cx}" cy="{cy}" r="3.2" class="dot {class} c{colour}"/>"#);
        }
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_its_lines_and_escapes_its_words() {
        let chart = Lines {
            title: "a < b",
            x_title: "tasks & files",
            x_axis: Axis::Log,
            y_axis: Axis::Log,
            x_marks: vec![(1.0, "1".into()), (64.0, "64".into())],
            y_words: &|v| format!("{v}"),
            lines: vec![
                Line {
                    colour: 0,
                    mark: Mark::Measured,
                    points: vec![(1.0, 5.0, 4.0, 6.0), (64.0, 50.0, 50.0, 50.0)],
                },
                Line { colour: 1, mark: Mark::Published, points: vec![(1.0, 7.0, 7.0, 7.0)] },
            ],
        };
        let svg = chart.svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert_eq!(svg.matches("whisker").count(), 1);
        assert!(svg.contains("a &lt; b") && svg.contains("tasks &amp; files"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
