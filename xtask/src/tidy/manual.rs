//! docs/dev/semantics.md is tested: every section ends with the test that shows it.
//!
//! The last line of a section reads ``Test: `posix::rename::across_branches` ``, several separated by
//! commas. A heading with nothing but further headings below it needs none.

use super::Source;

const MANUAL: &str = "docs/dev/semantics.md";
const PROMISES: &str = "docs/dev/tested.md";

struct Section<'t> {
    heading: &'t str,
    last: Option<&'t str>,
}

/// Complaints about sections without a test, and tests that do not exist.
pub(super) fn headings(sources: &[Source]) -> Vec<String> {
    let Some(manual) = sources.iter().find(|source| source.path == MANUAL) else { return Vec::new() };
    let mut complaints = Vec::new();
    for Section { heading, last } in sections(&manual.text) {
        let Some(last) = last else { continue };
        let Some(tests) = last.strip_prefix("Test: ") else {
            complaints.push(format!("{MANUAL}: `{heading}` does not end with `Test: path::name`"));
            continue;
        };
        let names = tests.split(',').map(|test| test.trim().trim_end_matches('.').trim_matches('`'));
        let missing = names.filter(|test| !exists(sources, test));
        complaints
            .extend(missing.map(|test| format!("{MANUAL}: `{heading}` names {test}, which does not exist")));
    }
    complaints
}

/// Complaints about tests that the table of promises names and that do not exist.
pub(super) fn promises(sources: &[Source]) -> Vec<String> {
    let Some(table) = sources.iter().find(|source| source.path == PROMISES) else { return Vec::new() };
    let rows = table.text.lines().filter(|line| line.starts_with('|'));
    let named = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).filter(|name| name.contains("::"));
    let missing = named.filter(|test| !exists(sources, test));
    missing.map(|test| format!("{PROMISES}: names {test}, which does not exist")).collect()
}

/// Sections below the title, each with its last line that is not blank.
fn sections(text: &str) -> Vec<Section<'_>> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("##") {
            sections.push(Section { heading: line.trim_start_matches('#').trim(), last: None });
        } else if let Some(section) = sections.last_mut().filter(|_| !line.is_empty()) {
            section.last = Some(line);
        }
    }
    sections
}

/// Whether a file on the path of `a::b::name` has `fn name`.
fn exists(sources: &[Source], test: &str) -> bool {
    let mut modules: Vec<&str> = test.split("::").collect();
    let Some(name) = modules.pop() else { return false };
    let function = format!("fn {name}(");
    sources.iter().filter(|source| source.is_rust()).any(|source| {
        let parts: Vec<&str> = source.path.trim_end_matches(".rs").split('/').collect();
        // `mod tests` inside a file has no file of its own.
        let on_path =
            modules.iter().filter(|module| **module != "tests").all(|module| parts.contains(module));
        on_path && source.text.contains(&function)
    })
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    #[test]
    fn sections_name_tests_that_exist() {
        let manual = "# Semantics\nWords.\n## Group\n### Good\nText.\n\nTest: `mounted::rename::over`.\n\
                      ### Silent\nText.\n### Wrong\nText.\nTest: `mounted::rename::gone`\n";
        let sources = [
            source(MANUAL, manual),
            source("tests/mounted/rename.rs", "//! Rename.\n#[test]\nfn over() {}\n"),
        ];
        let told = headings(&sources);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("`Silent`") && told[1].contains("rename::gone"), "{told:?}");
    }
}
