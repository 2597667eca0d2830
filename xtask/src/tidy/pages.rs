//! Links in Markdown files lead to existing files and headings, and every warning and error of the daemon is in
//! docs/log-lines.md.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use super::Source;
use crate::exec;

/// Complaints about broken links within the repository.
pub(super) fn links(sources: &[Source]) -> Vec<String> {
    let pages = || sources.iter().filter(|source| source.path.ends_with(".md"));
    let there =
        |path: &str| sources.iter().any(|source| source.path == path) || exec::root().join(path).exists();
    let mut complaints = Vec::new();
    for page in pages() {
        for link in targets(&page.text).into_iter().filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = if file.is_empty() { page.path.clone() } else { beside(&page.path, file) };
            let headed = |to: &Source| heading.is_empty() || headings(&to.text).contains(heading);
            if !there(&path) {
                complaints.push(format!("{}: {link} leads to no file", page.path));
            } else if pages().any(|to| to.path == path && !headed(to)) {
                complaints.push(format!("{}: {link} leads to no heading", page.path));
            }
        }
    }
    complaints
}

/// Complaints about missing source files named in backquotes by pages and comments. `engine/admin/watch.rs` is short for
/// `crates/engine/src/admin/watch.rs`.
pub(super) fn named_files(sources: &[Source]) -> Vec<String> {
    let is_there = |name: &str| {
        let full = name.split_once('/').map(|(first, rest)| format!("crates/{first}/src/{rest}"));
        let names =
            |path: &str| path.strip_suffix(name).is_some_and(|dir| dir.is_empty() || dir.ends_with('/'));
        sources.iter().any(|source| names(&source.path) || full.as_deref() == Some(source.path.as_str()))
    };
    let is_name = |word: &&str| {
        word.ends_with(".rs") && word.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
    };
    let missing = |source: &Source, line: &str| {
        let quoted = line.split('`').skip(1).step_by(2).map(|word| word.split("::").next().unwrap_or(word));
        let missing = quoted.filter(is_name).find(|name| !is_there(name))?;
        Some(format!("{}: `{missing}` is no file", source.path))
    };
    let checked = sources
        .iter()
        .filter(|source| source.is_rust() || source.path.ends_with(".md") && source.path != "CHANGELOG.md");
    let found = checked.flat_map(|source| {
        let lines =
            source.text.lines().filter(|line| !source.is_rust() || line.trim_start().starts_with("//"));
        lines.filter_map(|line| missing(source, line)).collect::<Vec<_>>()
    });
    found.collect()
}

/// Page that names every thread of the daemon.
const THREADS: &str = "docs/dev/threads.md";

/// Complaints about threads of the daemon that have no row on the page.
pub(super) fn threads(sources: &[Source]) -> Vec<String> {
    let Some(page) = sources.iter().find(|source| source.path == THREADS) else { return Vec::new() };
    let daemon = sources.iter().filter(|source| DAEMON.iter().any(|part| source.path.starts_with(part)));
    let names = daemon.flat_map(|source| {
        let named = source.text.split("Builder::new()").skip(1).filter_map(|rest| {
            let name = rest.trim_start().strip_prefix(".name(")?;
            name.strip_prefix("format!(").unwrap_or(name).strip_prefix('"')?.split(['"', '{']).next()
        });
        named.map(move |name| (source, name.trim_end_matches('-')))
    });
    let is_listed =
        |name: &str| [format!("`{name}`"), format!("`{name}-N`")].iter().any(|row| page.text.contains(row));
    names
        .filter(|(_, name)| !is_listed(name))
        .map(|(source, name)| format!("{}: thread {name} is not in {THREADS}", source.path))
        .collect()
}

/// Page on which operators look up log lines.
const LOG_LINES: &str = "docs/log-lines.md";

/// Crates of the daemon.
const DAEMON: [&str; 6] = [
    "crates/branch/src/",
    "crates/identity/src/",
    "crates/engine/src/",
    "crates/fuse/src/",
    "crates/daemon/src/",
    "crates/control/src/",
];

/// Complaints about warnings and errors of the daemon that are missing from the page.
pub(super) fn log_lines(sources: &[Source]) -> Vec<String> {
    let Some(page) = sources.iter().find(|source| source.path == LOG_LINES) else { return Vec::new() };
    let daemon = sources.iter().filter(|source| DAEMON.iter().any(|part| source.path.starts_with(part)));
    let mut complaints = Vec::new();
    for source in daemon.filter(|source| source.is_rust()) {
        for message in messages(&source.text) {
            if !page.text.contains(&message) {
                complaints.push(format!("{}: {LOG_LINES} has no line with \"{message}\"", source.path));
            }
        }
    }
    complaints
}

/// Longest piece without a placeholder of each warning's and error's message.
fn messages(text: &str) -> Vec<String> {
    let calls = ["tracing::warn!(", "tracing::error!("].into_iter().flat_map(|call| text.split(call).skip(1));
    let message = |call: &str| {
        let statement = call.split_once(");").map_or(call, |(statement, _)| statement);
        // The fields before the message contain no string literal.
        let (_, literal) = statement.split_once('"')?;
        let (literal, _) = literal.split_once('"')?;
        let joined: Vec<&str> = literal.split("\\\n").map(str::trim_start).collect();
        let joined = joined.concat();
        let pieces = joined.split('{').map(|piece| piece.split_once('}').map_or(piece, |(_, rest)| rest));
        pieces.max_by_key(|piece| piece.len()).map(|piece| piece.trim().to_owned())
    };
    // A message of placeholders only repeats another line.
    calls.filter_map(message).filter(|piece| piece.contains(' ')).collect()
}

/// Texts between `](` and `)`.
fn targets(text: &str) -> Vec<&str> {
    let behind = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    behind.map(|(target, _)| target).filter(|target| !target.contains(char::is_whitespace)).collect()
}

/// Path from the root of the file that `page` links as `file`.
fn beside(page: &str, file: &str) -> String {
    let mut path = Path::new(page).parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
    path.display().to_string()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn headings(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| -> String {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    lines.map(anchor).collect()
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    #[test]
    fn a_named_file_is_there() {
        let sources = [
            source(
                "crates/engine/src/admin/watch.rs",
                "//! See `watch.rs`, `engine/admin/watch.rs` and `gone.rs`.\nlet x = \"`no.rs`\";\n",
            ),
            source("docs/a.md", "`crates/engine/src/admin/watch.rs::read`, `admin/watch.rs`, `atch.rs`\n"),
        ];
        let expected =
            ["crates/engine/src/admin/watch.rs: `gone.rs` is no file", "docs/a.md: `atch.rs` is no file"];
        assert_eq!(named_files(&sources), expected);
    }

    #[test]
    fn a_thread_has_a_row() {
        let code = "let a = Builder::new().name(\"known\".into());\nlet b = Builder::new()\n    .name(format!(\"many-{n}\"));\n\
                    let c = Builder::new().name(\"lost\".into());\n";
        let sources = [
            source("crates/engine/src/a.rs", code),
            source(THREADS, "| `known` | |\n| `many-N`, `lost-N` | |\n"),
        ];
        assert_eq!(threads(&sources), Vec::<String>::new());
        let sources = [source("crates/engine/src/a.rs", code), source(THREADS, "| `known`, `many-N` | |\n")];
        assert_eq!(threads(&sources), ["crates/engine/src/a.rs: thread lost is not in docs/dev/threads.md"]);
    }

    #[test]
    fn warnings_can_be_looked_up() {
        let code = "//! Log.\nfn f() {\n    tracing::warn!(%error, path = %p.display(), \"{}: the disk is gone: {why}\");\n\
                    tracing::error!(\n        \"not in the page\"\n    );\n    tracing::warn!(\"{notice}\");\n}\n";
        let sources = [
            source("crates/engine/src/a.rs", code),
            source(LOG_LINES, "| A | `PATH: the disk is gone: REASON` | |\n"),
        ];
        let answer = log_lines(&sources);
        assert!(answer.len() == 1 && answer[0].contains("not in the page"), "{answer:?}");
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let sources = [
            source("docs/a.md", "# A\n[1](dev/b.md#the-pool-s) [2](dev/b.md#gone) [3](c.md) [4](#a)\n"),
            source("docs/dev/b.md", "# B\n## The `pool`: s\n[1](../a.md) [2](https://example.org/x)\n"),
        ];
        let answer = links(&sources);
        assert_eq!(answer.len(), 2, "{answer:?}");
        assert!(answer[0].contains("#gone") && answer[1].contains("c.md"), "{answer:?}");
    }
}
