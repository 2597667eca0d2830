//! Counts of methods by type, and of public items that no other file names.

use std::collections::{BTreeMap, BTreeSet};

use super::Source;

/// Most methods of the types that have many. They may only be lowered.
const MOST_METHODS: &[(&str, usize)] =
    &[("engine::Union", 160), ("engine::Tree", 100), ("branch::Branch", 95)];
/// Most methods of any other type.
const DEFAULT_METHODS: usize = 40;

/// The type that a line at the margin begins an inherent `impl` of.
fn implements(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        Some(generic) => generic.split_once("> ")?.1,
        None => rest.strip_prefix(' ')?,
    };
    let named = rest.split([' ', '<', '{']).next().filter(|name| !name.is_empty())?;
    (!rest.contains(" for ")).then_some(named)
}

/// The item that a line defines, if it is a public one.
fn public(line: &str) -> Option<&str> {
    let mut words = line.trim_start().strip_prefix("pub ")?.split_whitespace();
    let mut word = words.next()?;
    while matches!(word, "const" | "unsafe" | "async") {
        let next = words.next()?;
        if word == "const" && next != "fn" {
            return next.split(|c: char| !c.is_alphanumeric() && c != '_').next();
        }
        word = next;
    }
    let is_item = matches!(word, "fn" | "struct" | "enum" | "trait" | "type" | "static");
    is_item.then(|| words.next())??.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// The types of the crates with the number of methods of each, most first.
pub(super) fn largest_types(sources: &[Source]) -> Vec<(String, usize)> {
    let mut counts = BTreeMap::<String, usize>::new();
    for source in sources.iter().filter(|source| source.is_rust() && source.path.starts_with("crates/")) {
        let name = source.path.split('/').nth(1).unwrap_or_default();
        let mut inside = None;
        for line in source.text.lines() {
            if !line.starts_with([' ', '}']) && !line.is_empty() {
                inside = implements(line).map(|of| format!("{name}::{of}"));
            }
            let words = line.strip_prefix("    ").unwrap_or_default();
            let is_method = !words.starts_with(' ')
                && words.split('(').next().is_some_and(|head| {
                    head.split('<').next().unwrap_or_default().split_whitespace().any(|word| word == "fn")
                });
            if let Some(of) = inside.as_ref().filter(|_| is_method && !words.starts_with("//")) {
                *counts.entry(of.clone()).or_default() += 1;
            }
        }
    }
    let mut sorted: Vec<_> = counts.into_iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    sorted
}

/// Complaints about a type of the engine that has more methods than before.
pub(super) fn large_types(sources: &[Source]) -> Vec<String> {
    let allowed = |of: &str| {
        MOST_METHODS.iter().find(|(name, _)| *name == of).map_or(DEFAULT_METHODS, |(_, most)| *most)
    };
    let grown = largest_types(sources).into_iter().filter(|(name, methods)| allowed(name) < *methods);
    grown
        .map(|(name, methods)| {
            format!("{name} has {methods} methods, {} at most: a part of it may own them", allowed(&name))
        })
        .collect()
}

/// Public items of the crates that are named in their own file only.
pub(super) fn named_once(sources: &[Source]) -> Vec<String> {
    let mut files = BTreeMap::<&str, BTreeSet<&str>>::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        for word in source.text.split(|c: char| !c.is_alphanumeric() && c != '_') {
            files.entry(word).or_default().insert(&source.path);
        }
    }
    let crates = sources.iter().filter(|source| source.is_rust() && source.path.starts_with("crates/"));
    let items =
        crates.flat_map(|source| source.text.lines().filter_map(public).map(move |item| (source, item)));
    let once = items.filter(|(_, item)| files.get(item).is_some_and(|files| files.len() == 1));
    once.map(|(source, item)| format!("{}: {item}", source.path)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    #[test]
    fn a_type_of_many_methods_is_told() {
        let methods = "    fn f(&self) {}\n".repeat(DEFAULT_METHODS + 1);
        let text = format!("impl Big {{\n{methods}}}\nimpl Small {{\n    fn f(&self) {{}}\n}}\n");
        let told = large_types(&[source("crates/a/src/x.rs", &text)]);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("a::Big has 41 methods"), "{told:?}");
    }

    #[test]
    fn methods_are_counted_by_type_over_all_files() {
        let sources = [
            source(
                "crates/a/src/x.rs",
                "impl<T> Big<T> {\n    pub fn f(&self) {}\n    // fn no\n    const fn g() {}\n}\n",
            ),
            source(
                "crates/a/src/y.rs",
                "impl Big {\n    fn h<F>(f: F) {\n        fn inner() {}\n    }\n}\nimpl Clone for Big {\n    fn clone() {}\n}\n",
            ),
        ];
        assert_eq!(largest_types(&sources), [("a::Big".to_owned(), 3)]);
    }

    #[test]
    fn a_public_item_that_another_file_names_is_used() {
        let sources = [
            source(
                "crates/a/src/x.rs",
                "pub fn used() {}\npub const fn lone() {}\npub const ALONE: u8 = 1;\npub(crate) fn own() {}\n",
            ),
            source("crates/b/src/y.rs", "fn f() { used() }\n"),
        ];
        assert_eq!(named_once(&sources), ["crates/a/src/x.rs: lone", "crates/a/src/x.rs: ALONE"]);
    }
}
