//! Imports between the modules of the engine, and the figures that `--print` shows.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, methods};

const ENGINE: &str = "crates/engine/src/";

/// Most files of the engine in one import circle. It may only be lowered.
const LARGEST_CIRCLE: usize = 6;

/// Imports of each node.
type Graph<'s> = BTreeMap<&'s str, BTreeSet<&'s str>>;

/// The module that a file of the engine is: its path below `src`, without its ending.
fn module(source: &Source) -> Option<&str> {
    let path = source.path.strip_prefix(ENGINE)?.strip_suffix(".rs")?;
    Some(path.strip_suffix("/mod").unwrap_or(path))
}

/// The file's code: without comments, and without the tests at its end.
fn code(text: &str) -> String {
    let own = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
    own.lines().map(|line| line.split("//").next().unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

/// The paths after each `crate::`, as far as they name modules: `a::{b, c::D}` is `a/b` and `a/c/D`.
fn named(code: &str) -> Vec<String> {
    let mut all = Vec::new();
    // `fsstack_x::crate::` is not Rust, `$crate::` a macro's own path.
    for rest in code.split("crate::").skip(1) {
        spread("", rest, &mut all);
    }
    all
}

/// Appends the paths that `text` begins with to `all`, each below `above`; returns what follows them.
fn spread<'t>(above: &str, text: &'t str, all: &mut Vec<String>) -> &'t str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = spread(above, rest, all).trim_start();
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => return rest.strip_prefix('}').unwrap_or(rest),
            }
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
    match rest.strip_prefix("::") {
        Some(more) if !name.is_empty() => spread(&path, more, all),
        _ => {
            all.push(path);
            // `x as y`
            rest.strip_prefix(" as ")
                .map_or(rest, |alias| alias.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'))
        }
    }
}

/// The modules of the engine, and which of the others each one imports.
fn files(sources: &[Source]) -> Graph<'_> {
    let modules: BTreeSet<&str> = sources.iter().filter_map(module).collect();
    let imports = |source| {
        let own = module(source)?;
        let others = named(&code(&source.text)).into_iter().filter_map(|path| {
            let mut path = path.as_str();
            while !modules.contains(path) {
                path = path.rsplit_once('/')?.0;
            }
            modules.get(path).copied().filter(|other| *other != own)
        });
        Some((own, others.collect()))
    };
    sources.iter().filter_map(imports).collect()
}

/// The first part of a module's path: its folder, or the file itself.
fn folder(module: &str) -> &str {
    module.split('/').next().unwrap_or(module)
}

/// `files`, with folders in place of the files within them.
fn folders<'s>(files: &Graph<'s>) -> Graph<'s> {
    let mut graph = Graph::new();
    for (from, to) in files {
        let others = to.iter().map(|to| folder(to)).filter(|to| *to != folder(from));
        graph.entry(folder(from)).or_default().extend(others);
    }
    graph
}

/// All that `from` leads to.
fn reached<'s>(graph: &Graph<'s>, from: &'s str) -> BTreeSet<&'s str> {
    let mut all = BTreeSet::new();
    let mut next: Vec<&str> = vec![from];
    while let Some(at) = next.pop() {
        next.extend(graph.get(at).into_iter().flatten().copied().filter(|to| all.insert(*to)));
    }
    all
}

/// The largest set of nodes that all lead to each other.
fn largest_circle<'s>(graph: &Graph<'s>) -> BTreeSet<&'s str> {
    let reached: Graph<'_> = graph.keys().map(|from| (*from, reached(graph, from))).collect();
    let circle = |(from, to): (&&'s str, &BTreeSet<&'s str>)| {
        to.iter().copied().filter(|to| reached.get(to).is_some_and(|back| back.contains(*from))).collect()
    };
    reached.iter().map(circle).max_by_key(BTreeSet::len).unwrap_or_default()
}

/// The imports that are part of a circle.
fn arrows_in_circles<'s>(graph: &Graph<'s>) -> BTreeSet<(&'s str, &'s str)> {
    let arrows = graph.iter().flat_map(|(from, to)| to.iter().map(|to| (*from, *to)));
    arrows.filter(|(from, to)| reached(graph, to).contains(from)).collect()
}

/// Complaints about a larger circle of files in the engine, and about circles between its folders.
pub(super) fn circles(sources: &[Source]) -> Vec<String> {
    let files = files(sources);
    let largest = largest_circle(&files).len();
    let grown = (LARGEST_CIRCLE < largest)
        .then(|| format!("{largest} files of the engine import each other, {LARGEST_CIRCLE} before"));
    let found = arrows_in_circles(&folders(&files));
    let between = found.iter().map(|(from, to)| {
        let mut imports = files.iter().filter(|(file, _)| folder(file) == *from);
        let file = imports.find(|(_, all)| all.iter().any(|at| folder(at) == *to)).map(|(file, _)| *file);
        format!("{ENGINE}{from} imports {to} (in {}), which leads back to it", file.unwrap_or(from))
    });
    grown.into_iter().chain(between).collect()
}

/// Prints lines by crate, the circles of the engine, the largest types, and public items that nothing else names.
pub(super) fn print(sources: &[Source]) {
    let mut lines = BTreeMap::<String, usize>::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let parts: Vec<&str> = source.path.split('/').collect();
        let depth = if parts[0] == "crates" { 2 } else { 1 };
        *lines.entry(parts[..depth.min(parts.len())].join("/")).or_default() += source.text.lines().count();
    }
    for (name, lines) in &lines {
        println!("{lines:7} lines  {name}");
    }
    println!("{:7} lines  in all", lines.values().sum::<usize>());
    let files = files(sources);
    let circle = largest_circle(&files);
    println!("{:7} of {} files of the engine in the largest import circle", circle.len(), files.len());
    let folders = folders(&files);
    let circle = largest_circle(&folders);
    println!("{:7} of {} folders and files at the engine's top: {circle:?}", circle.len(), folders.len());
    println!("{:7} imports between folders in circles", arrows_in_circles(&folders).len());
    for (name, methods) in methods::largest_types(sources).into_iter().take(5) {
        println!("{methods:7} methods  {name}");
    }
    println!("{:7} public items named in no other file", methods::named_once(sources).len());
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn engine() -> Vec<Source> {
        vec![
            source("crates/engine/src/a/mod.rs", "//! A.\nuse crate::b::{X, c::{self, Y}};\n"),
            source("crates/engine/src/b/mod.rs", "//! B.\nuse crate::d::Z as W;\n// use crate::a;\n"),
            source("crates/engine/src/b/c.rs", "//! C.\nfn f() { crate::a::g() }\n"),
            source("crates/engine/src/d.rs", "//! D.\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
        ]
    }

    #[test]
    fn imports_are_found_in_groups_and_in_code_but_not_in_comments_and_tests() {
        let sources = engine();
        let graph = files(&sources);
        assert_eq!(graph["a"], BTreeSet::from(["b", "b/c"]));
        assert_eq!(graph["b"], BTreeSet::from(["d"]));
        assert_eq!(graph["b/c"], BTreeSet::from(["a"]));
        assert_eq!(graph["d"], BTreeSet::new());
    }

    #[test]
    fn a_circle_is_what_leads_back() {
        let sources = engine();
        let graph = files(&sources);
        assert_eq!(largest_circle(&graph), BTreeSet::from(["a", "b/c"]));
        assert_eq!(arrows_in_circles(&folders(&graph)), BTreeSet::from([("a", "b"), ("b", "a")]));
        let complaints = circles(&sources);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints.iter().all(|complaint| complaint.contains("leads back")), "{complaints:?}");
    }
}
