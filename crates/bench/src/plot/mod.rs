//! Plots as SVG text: line charts, bars, forest plots, latency curves. Colours and fonts come from the page's style sheet, so that one
//! drawing serves light and dark.

mod bars;
mod forest;
mod lines;
mod scale;

pub(crate) use bars::{Bar, Bars};
pub(crate) use forest::{Forest, cell};
pub(crate) use lines::{Line, Lines, Mark};
pub(crate) use scale::Axis;

/// Escapes text for SVG and HTML, attributes included.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Neither format permits control characters.
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

/// Formats a coordinate to a tenth of a pixel.
fn at(value: f64) -> String {
    format!("{value:.1}")
}

/// A text element; `how` is further attributes.
fn text(x: f64, y: f64, how: &str, words: &str) -> String {
    format!(r#"<text x="{}" y="{}" {how}>{}</text>"#, at(x), at(y), escape(words))
}

/// A straight line of a class.
fn rule(from: (f64, f64), to: (f64, f64), class: &str) -> String {
    let ((x1, y1), (x2, y2)) = (from, to);
    format!(r#"<line x1="{}" y1="{}" x2="{}" y2="{}" class="{class}"/>"#, at(x1), at(y1), at(x2), at(y2))
}

/// A whole drawing.
fn drawing(width: f64, height: f64, title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        r#"<svg viewBox="0 0 {width:.0} {height:.0}" role="img" aria-label="{title}"><title>{title}</title>{body}</svg>"#
    )
}
