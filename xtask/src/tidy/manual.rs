//! docs/dev/semantics.md is tested: docs/dev/tested.md has a row for every section, and its tests exist.

use super::Source;

const MANUAL: &str = "docs/dev/semantics.md";
const PROMISES: &str = "docs/dev/tested.md";

/// Complaints about sections that have no row among the tests.
pub(super) fn headings(sources: &[Source]) -> Vec<String> {
    let text = |path: &str| sources.iter().find(|source| source.path == path).map(|source| &source.text);
    let (Some(manual), Some(table)) = (text(MANUAL), text(PROMISES)) else { return Vec::new() };
    let sections = manual.lines().filter_map(|line| line.strip_prefix("## ")).map(str::trim);
    let listed = |section: &&str| {
        let row = format!("| {section} | `");
        table.lines().any(|line| line.starts_with(&row))
    };
    let unlisted = sections.filter(|section| !listed(section));
    unlisted.map(|section| format!("{MANUAL}: `{section}` has no row in {PROMISES}")).collect()
}

/// Complaints about tests that the table of promises names and that do not exist.
pub(super) fn promises(sources: &[Source]) -> Vec<String> {
    let Some(table) = sources.iter().find(|source| source.path == PROMISES) else { return Vec::new() };
    let rows = table.text.lines().filter(|line| line.starts_with('|'));
    let named = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).filter(|name| name.contains("::"));
    let missing = named.filter(|test| !exists(sources, test));
    missing.map(|test| format!("{PROMISES}: names {test}, which does not exist")).collect()
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
        let table = "| Good | `mounted::rename::over` |\n| Wrong | `mounted::rename::gone` |\n";
        let sources = [
            source(MANUAL, "# Semantics\nWords.\n## Good\nText.\n## Silent\nText.\n## Wrong\nText.\n"),
            source(PROMISES, table),
            source("tests/mounted/rename.rs", "//! Rename.\n#[test]\nfn over() {}\n"),
        ];
        let (silent, wrong) = (headings(&sources), promises(&sources));
        assert!(silent.len() == 1 && silent[0].contains("`Silent`"), "{silent:?}");
        assert!(wrong.len() == 1 && wrong[0].contains("rename::gone"), "{wrong:?}");
    }
}
