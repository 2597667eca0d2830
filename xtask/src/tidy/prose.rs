//! Language rules for comments and pages, as far as patterns can check them.

use super::Source;

/// First words of a doc comment that say neither what a thing is nor what it does.
const OPENINGS: &[&str] = &["What", "Who", "Whose", "Whom", "Whoever", "Whatever", "As", "Of"];

/// Words that treat a thread, a branch or a program as a person.
const PERSONS: &[&str] = &["he", "him", "his", "himself", "whoever", "whom", "told"];

/// Maximum length of a Markdown line outside tables.
const WIDEST: usize = 160;

/// A line of a comment: its number, whether it begins a doc comment, and its text.
struct Comment<'s> {
    line: usize,
    opens: bool,
    text: &'s str,
}

/// The comments of a Rust file.
fn comments(source: &Source) -> impl Iterator<Item = Comment<'_>> {
    let mut before = "";
    source.text.lines().enumerate().filter(|_| source.is_rust()).filter_map(move |(n, line)| {
        let line = line.trim_start();
        let mark = ["///", "//!", "//"].into_iter().find(|mark| line.starts_with(mark)).unwrap_or("");
        let opens = mark.len() == 3 && mark != before;
        before = mark;
        (!mark.is_empty()).then(|| Comment { line: n + 1, opens, text: line[mark.len()..].trim() })
    })
}

/// Words outside of backquotes.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let plain = text.split('`').step_by(2);
    plain
        .flat_map(|part| part.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .filter(|word| !word.is_empty())
}

/// Complaints about doc comments that begin with a relative word.
pub(super) fn openings(sources: &[Source]) -> Vec<String> {
    let wrong = |comment: &Comment<'_>| {
        let first = comment.text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("");
        comment.opens && OPENINGS.contains(&first)
    };
    complaints(sources, wrong)
}

/// Complaints about comments that treat a part of the program as a person.
pub(super) fn persons(sources: &[Source]) -> Vec<String> {
    complaints(sources, |comment| {
        words(comment.text).any(|word| PERSONS.contains(&word.to_lowercase().as_str()))
    })
}

/// Complaints about sentences in parentheses: they should be plain sentences, or go.
pub(super) fn parentheses(sources: &[Source]) -> Vec<String> {
    complaints(sources, |comment| {
        comment.text.strip_prefix('(').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    })
}

fn complaints(sources: &[Source], wrong: impl Fn(&Comment<'_>) -> bool) -> Vec<String> {
    let found = sources.iter().flat_map(|source| {
        let wrong = comments(source).filter(|comment| wrong(comment));
        wrong.map(|comment| format!("{}:{}: {}", source.path, comment.line, comment.text)).collect::<Vec<_>>()
    });
    found.collect()
}

/// Complaints about long lines of pages, except in tables, code and the bench's reports.
pub(super) fn wide_lines(sources: &[Source]) -> Vec<String> {
    let pages =
        sources.iter().filter(|page| page.path.ends_with(".md") && !page.path.ends_with("/report.md"));
    let lines = pages.flat_map(|page| {
        let mut code = false;
        let wide = page.text.lines().enumerate().filter(move |(_, line)| {
            let fence = line.trim_start().starts_with("```");
            code ^= fence;
            !code && !fence && !line.trim_start().starts_with('|') && WIDEST < line.chars().count()
        });
        wide.map(|(n, _)| format!("{}:{}: more than {WIDEST} characters", page.path, n + 1))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    #[test]
    fn relative_openings_and_persons_are_refused() {
        let lines = [
            "//! What this is.\n\n/// Of all, the last.\n/// What goes on is fine here.",
            "fn f() {}\n// He is answer.\n/// Returns `answer`, as `his` name.\nfn g() {}\n",
        ];
        let code = lines.join("\n");
        let sources = [source("crates/sys/src/a.rs", &code), source("tests/src/a.rs", &code)];
        assert_eq!(openings(&sources).len(), 4, "{:?}", openings(&sources));
        assert_eq!(persons(&sources).len(), 2, "{:?}", persons(&sources));
    }

    #[test]
    fn sentences_in_parentheses_are_refused() {
        let code = "// (It stays so.)\n/// (target, rate).\n// Goes (`by`\n// (`a.rs`) on.\n";
        assert_eq!(parentheses(&[source("crates/sys/src/a.rs", code)]).len(), 1);
    }

    #[test]
    fn only_wide_prose_is_refused() {
        let wide = "x".repeat(WIDEST + 1);
        let text = format!("{wide}\n| {wide} |\n```\n{wide}\n```\n{}\n", &wide[1..]);
        assert_eq!(
            wide_lines(&[source("docs/a.md", &text), source("docs/figures/b/report.md", &text)]).len(),
            1
        );
    }
}
