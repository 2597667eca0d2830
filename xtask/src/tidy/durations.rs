//! Constants of type `Duration` have a name of their own in their crate. Code of the programs has its durations in them, and
//! `docs/dev/durations.md` lists these.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Source;
use super::names::crate_of;

/// Crates of the two programs.
const PRODUCT: &[&str] = &[
    "crates/branch/src/",
    "crates/catalogue/src/",
    "crates/cli/src/",
    "crates/control/src/",
    "crates/daemon/src/",
    "crates/engine/src/",
    "crates/fuse/src/",
    "crates/identity/src/",
];

/// Ends of paths that only tests and models are compiled from.
const TESTS: &[&str] = &["/tests.rs", "/models.rs", "/kernel_cases.rs"];

const OPENING: &str = "# Durations

Constants of the two programs: how long they wait, how often they look, and what they remember for how long.
Options have durations too ([mount options](../options.md)). `cargo xtask docs --pages` writes this page.

| name | value | file | meaning |
|---|---|---|---|
";

/// A constant of type `Duration`.
struct DurationConst<'s> {
    source: &'s Source,
    line: usize,
    name: &'s str,
    value: String,
    /// First sentence of its doc comment.
    doc: String,
}

fn is_product(source: &Source) -> bool {
    PRODUCT.iter().any(|path| source.path.starts_with(path))
}

/// Lines of a crate's code with their numbers, without those of tests.
fn crate_code(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let is_code = source.is_rust()
        && source.path.starts_with("crates/")
        && source.path.contains("/src/")
        && !source.path.contains("/models/")
        && !TESTS.iter().any(|end| source.path.ends_with(end));
    let code = source.text.split("#[cfg(test)]\nmod tests {").next().filter(|_| is_code);
    code.unwrap_or_default().lines().enumerate().map(|(n, line)| (n + 1, line))
}

/// Name and the rest of a line that begins a constant.
fn constant(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub").map_or(line, |rest| {
        rest.strip_prefix('(')
            .and_then(|rest| rest.split_once(')'))
            .map_or(rest, |(_, rest)| rest)
            .trim_start()
    });
    let rest = line.strip_prefix("const ").or_else(|| line.strip_prefix("static "))?;
    rest.split_once(':')
        .filter(|(name, _)| name.bytes().all(|b| b.is_ascii_uppercase() || b"_0123456789".contains(&b)))
}

/// The argument of `Duration::from_*` or `Duration::new` on a line, and the unit, if the argument is a number.
fn literal(line: &str) -> Option<(&str, &str)> {
    line.split("Duration::").skip(1).find_map(|call| {
        let (function, rest) = call.split_once('(')?;
        let (number, _) = rest.split_once(')')?;
        let is_number = number.starts_with(|c: char| c.is_ascii_digit())
            && number.bytes().all(|b| b.is_ascii_digit() || b" _*.,".contains(&b));
        let unit = function.strip_prefix("from_").or((function == "new").then_some("secs"))?;
        is_number.then_some((number, unit))
    })
}

fn constants(source: &Source) -> Vec<DurationConst<'_>> {
    let mut found = Vec::new();
    let mut doc: Vec<&str> = Vec::new();
    for (line, text) in crate_code(source) {
        if let Some(comment) = text.trim_start().strip_prefix("///") {
            doc.push(comment.trim());
            continue;
        }
        if let Some((name, rest)) = constant(text)
            && rest.trim_start().trim_start_matches("std::time::").starts_with("Duration ")
        {
            let value = match literal(rest) {
                Some((number, "secs")) => format!("{number} s"),
                Some((number, "millis")) => format!("{number} ms"),
                Some((number, unit)) => format!("{number} {unit}"),
                None => {
                    rest.split_once("= ").map_or(rest, |(_, value)| value).trim_end_matches(';').to_owned()
                }
            };
            let doc = doc.join(" ");
            let doc = doc.split_once(". ").map_or(doc.as_str(), |(first, _)| first);
            let doc = doc.trim_end_matches('.').to_owned();
            found.push(DurationConst { source, line, name, value, doc });
        }
        doc.clear();
    }
    found
}

/// Complaints about durations whose name another one of the crate has, and about those of the programs without a doc comment.
pub(super) fn unique_names(sources: &[Source]) -> Vec<String> {
    let mut first = BTreeMap::new();
    let mut complaints = Vec::new();
    for found in sources.iter().flat_map(constants) {
        let here = format!("{}:{}", found.source.path, found.line);
        let name = found.name;
        if found.doc.is_empty() && is_product(found.source) {
            complaints.push(format!("{here}: `{name}` has no doc comment"));
        }
        let before = first.entry((crate_of(&found.source.path), name)).or_insert_with(|| here.clone());
        if *before != here {
            complaints.push(format!("{here}: `{name}` is also at {before}"));
        }
    }
    complaints
}

/// Complaints about numbers of seconds and the like outside of constants.
pub(super) fn are_constants(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources.iter().filter(|source| is_product(source)) {
        let mut is_constant = false;
        for (line, text) in crate_code(source) {
            let code = text.split("//").next().unwrap_or(text);
            is_constant |= constant(code).is_some();
            if !is_constant && literal(code).is_some() {
                complaints.push(format!("{}:{line}: {}", source.path, code.trim()));
            }
            is_constant &= !code.contains(';');
        }
    }
    complaints
}

/// Text of the page.
pub(super) fn page(sources: &[Source]) -> String {
    let mut rows: Vec<_> = sources.iter().filter(|source| is_product(source)).flat_map(constants).collect();
    rows.sort_by_key(|row| (&row.source.path, row.line));
    let mut page = OPENING.to_owned();
    for DurationConst { source, name, value, doc, .. } in rows {
        let path = source.path.trim_start_matches("crates/").replacen("/src/", "/", 1);
        let doc = doc.replace('|', "\\|");
        // Writing to a string does not fail.
        let _ = writeln!(page, "| `{name}` | {value} | `{path}` | {doc} |");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    const FINE: &str = "/// Pause before a retry. Doubled each time.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(24 * 5);
/// First and longest.
const PAUSES: (Duration, Duration) =
    (Duration::from_millis(1), Duration::from_millis(16));
fn f(n: u64) { sleep(Duration::from_secs(n)); } // Duration::from_secs(1)
#[cfg(test)]
mod tests {
    const RETRY_PAUSE: Duration = Duration::from_secs(1);
    fn f() { sleep(Duration::from_secs(1)); }
}
";

    #[test]
    fn a_name_is_refused_the_second_time_in_a_crate() {
        let again = "/// Another.\n    const RETRY_PAUSE: std::time::Duration = OTHER;\n";
        let sources = [
            source("crates/engine/src/a.rs", FINE),
            source("crates/engine/src/b/c.rs", again),
            source("crates/fuse/src/b.rs", FINE),
            source("crates/lab/src/b.rs", "const RETRY_PAUSE: Duration = OTHER;\n"),
            source("crates/lab/tests/b.rs", "const RETRY_PAUSE: Duration = OTHER;\n"),
        ];
        let complaints = unique_names(&sources);
        assert_eq!(
            complaints,
            ["crates/engine/src/b/c.rs:2: `RETRY_PAUSE` is also at crates/engine/src/a.rs:2"]
        );
        let bare = [source("crates/fuse/src/c.rs", "const LIMIT: Duration = Duration::from_secs(1);\n")];
        assert_eq!(unique_names(&bare).len(), 1);
    }

    #[test]
    fn a_number_outside_of_a_constant_is_refused() {
        let bare = "const N: u64 = 1;\nfn f() {\n    sleep(Duration::from_millis(20));\n    let t = Duration::new(1, 5);\n}\n";
        let sources = [
            source("crates/engine/src/a.rs", FINE),
            source("crates/daemon/src/b.rs", bare),
            source("crates/daemon/src/b/tests.rs", bare),
            source("crates/bench/src/b.rs", bare),
        ];
        let complaints = are_constants(&sources);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[0].starts_with("crates/daemon/src/b.rs:3: "), "{complaints:?}");
    }

    #[test]
    fn a_row_has_value_file_and_first_sentence() {
        let page = page(&[source("crates/engine/src/a/b.rs", FINE), source("crates/lab/src/b.rs", FINE)]);
        let row = "| `RETRY_PAUSE` | 24 * 5 ms | `engine/a/b.rs` | Pause before a retry |\n";
        assert_eq!(page, format!("{OPENING}{row}"));
    }
}
