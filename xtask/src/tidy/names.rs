//! Names of types must be unique in their crate and specific.

use std::collections::BTreeMap;

use super::Source;

/// Names that say too little alone; `IndexEntry` and `SlotState` are specific.
const VAGUE: &[&str] = &["Place", "State", "Way", "Desk", "Held"];

/// A type's definition: where it is, and its name.
struct Definition<'s> {
    source: &'s Source,
    line: usize,
    name: &'s str,
}

/// The crate that a file is compiled into: each target of `tests`, `benches` and `src/bin` is one of its own.
pub(super) fn crate_of(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    let depth = match parts.as_slice() {
        ["crates", _, "tests", _, _, ..] => 4,
        ["crates", _, "src", "bin", ..] => 5,
        ["crates", _, "tests", _] => 4,
        ["tests", "src", "bin", _, _, ..] => 4,
        ["crates" | "tests" | "benches", _, _, ..] => 2,
        _ => 1,
    };
    parts[..depth.min(parts.len())].join("/")
}

/// The types that a file defines. An indented alias may be a trait's, and is left out.
fn definitions(source: &Source) -> impl Iterator<Item = Definition<'_>> {
    let lines = source.text.lines().enumerate().filter(|_| source.is_rust());
    lines.filter_map(move |(n, line)| {
        let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
        let keyword = words.next().filter(|word| *word != "unsafe").or_else(|| words.next())?;
        let defines = match keyword {
            "struct" | "enum" | "union" | "trait" => true,
            "type" => !line.starts_with(' '),
            _ => false,
        };
        let name = words.next().filter(|_| defines)?.split(|c: char| !c.is_alphanumeric()).next()?;
        let is_type = name.starts_with(|c: char| c.is_ascii_uppercase());
        is_type.then_some(Definition { source, line: n + 1, name })
    })
}

/// Complaints about types whose name is defined more than once in their crate.
pub(super) fn unique_types(sources: &[Source]) -> Vec<String> {
    let mut first = BTreeMap::new();
    let doubles = sources.iter().flat_map(definitions).filter_map(|found| {
        let here = format!("{}:{}", found.source.path, found.line);
        let before = first.entry((crate_of(&found.source.path), found.name)).or_insert_with(|| here.clone());
        (*before != here).then(|| format!("{here}: `{}` is also at {before}", found.name))
    });
    doubles.collect()
}

/// Complaints about types with unspecific names.
pub(super) fn telling_types(sources: &[Source]) -> Vec<String> {
    let vague = sources.iter().flat_map(definitions).filter(|found| VAGUE.contains(&found.name));
    vague
        .map(|found| format!("{}:{}: `{}`: name what it is of", found.source.path, found.line, found.name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    #[test]
    fn a_type_name_is_refused_the_second_time_in_a_crate() {
        let twice = [
            source("crates/a/src/b.rs", "pub(crate) struct Slot<T>(T);\n"),
            source("crates/a/src/c/d.rs", "mod e {\n    enum Slot {}\n}\n"),
            source("crates/a/src/f.rs", "pub unsafe trait Slot {}\n"),
            source("crates/a/src/g.rs", "type Slot = u8;\n"),
        ];
        assert_eq!(unique_types(&twice).len(), 3, "{:?}", unique_types(&twice));
    }

    #[test]
    fn other_crates_targets_and_associated_types_may_have_the_name() {
        let fine = [
            source("crates/a/src/b.rs", "struct Slot;\n// struct Slot;\nstruct SlotState;\n"),
            source("crates/b/src/b.rs", "struct Slot;\nimpl Iterator for Slot {\n    type Slot = u8;\n}\n"),
            source("crates/a/src/bin/c/main.rs", "struct Slot;\n"),
            source("crates/a/tests/c.rs", "struct Slot;\n"),
            source("crates/a/tests/d/main.rs", "struct Slot;\n"),
            source("tests/engine/a.rs", "struct Slot;\n"),
            source("tests/model/a.rs", "struct Slot;\n"),
            source("tests/src/bin/guest/a.rs", "struct Slot;\n"),
            source("docs/a.md", "struct Slot;\nstruct Slot;\nstruct Place;\n"),
        ];
        assert_eq!(unique_types(&fine), Vec::<String>::new());
        assert_eq!(telling_types(&fine), Vec::<String>::new());
    }

    #[test]
    fn a_name_that_says_too_little_is_refused_alone() {
        let vague =
            [source("tests/engine/a.rs", "struct Place;\nenum State {}\ntype Way = u8;\nstruct Desk(u8);\n")];
        assert_eq!(telling_types(&vague).len(), 4);
        let held = [source("crates/a/src/b.rs", "pub struct Held<'a> {\n}\npub struct HeldHandle;\n")];
        assert_eq!(telling_types(&held).len(), 1);
    }
}
