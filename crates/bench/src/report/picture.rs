//! plot.svg: the first plot as a separate picture.

use super::charts::charts;
use super::page::STYLE;
use crate::record::Results;

/// The first plot that needs no legend; none if nothing was compared.
pub(crate) fn picture(results: &Results) -> Option<String> {
    charts(results).into_iter().find(|chart| chart.legend.is_empty()).map(|chart| alone(&chart.svg))
}

/// Adds the page's colours, light and dark, to a drawing.
fn alone(svg: &str) -> String {
    let drawn: Vec<&str> = STYLE.lines().filter(|line| line.starts_with("svg ")).collect();
    // Up to the first rule for the page.
    let colours = STYLE.split_once("* {").map_or("", |(colours, _)| colours);
    let paper = r#"<rect width="100%" height="100%" style="fill: var(--paper)"/>"#;
    let style = format!("<style>\n{colours}{}\n</style>{paper}", drawn.join("\n"));
    let whole = svg.replacen("<svg ", r#"<svg xmlns="http://www.w3.org/2000/svg" "#, 1);
    whole.replacen("</title>", &format!("</title>{style}"), 1) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_its_colours_and_nothing_of_the_page() {
        let svg = alone(r#"<svg viewBox="0 0 1 1" role="img" aria-label="t"><title>t</title><g/></svg>"#);
        assert!(svg.starts_with(r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox"#), "{svg}");
        for wanted in ["<title>t</title><style>", "--paper: #0d1117", "svg .bar.measured.c0", "<g/></svg>"] {
            assert!(svg.contains(wanted), "{wanted}: {svg}");
        }
        for of_the_page in ["body {", ".legend", "figure"] {
            assert!(!svg.contains(of_the_page), "{of_the_page}: {svg}");
        }
    }
}
