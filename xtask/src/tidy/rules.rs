//! Rules about single files, and about which crate may use what.

use super::Source;

const MOST_LINES: usize = 500;

/// Paths where `unsafe` is permitted.
const MAY_BE_UNSAFE: &[&str] =
    &["crates/sys/", "crates/fuse/src/transport", "crates/bench/src/engine/ring.rs"];

/// Paths whose threads, locks, atomics and clocks are those of `crates/sync`, so that models can run the code.
const BY_SYNC: &[&str] = &[
    "crates/branch/",
    "crates/catalogue/",
    "crates/cli/src/",
    "crates/control/src/",
    "crates/daemon/src/",
    "crates/database/",
    "crates/engine/src/",
    "crates/fuse/src/",
    "crates/identity/",
    "crates/pool/",
];

/// Parts of std and others that `crates/sync` has in their place.
const IN_SYNC: &[&str] = &[
    "std::sync::atomic",
    "std::sync::mpsc",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::sync::Condvar",
    "std::sync::Barrier",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "parking_lot",
];

fn rust(sources: &[Source]) -> impl Iterator<Item = &Source> {
    sources.iter().filter(|source| source.is_rust())
}

/// Code lines with their numbers, without comments and this directory's own words.
fn code(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let own = source.path.starts_with("xtask/src/tidy/");
    let lines = source.text.lines().enumerate().filter(move |_| !own);
    lines.map(|(n, line)| (n + 1, line.split("//").next().unwrap_or(line)))
}

fn where_code(source: &Source, breaks: impl Fn(&str) -> bool) -> Vec<String> {
    code(source)
        .filter(|(_, line)| breaks(line))
        .map(|(n, line)| format!("{}:{n}: {}", source.path, line.trim()))
        .collect()
}

pub(super) fn short_files(sources: &[Source]) -> Vec<String> {
    let lines = |source: &Source| source.text.lines().count();
    let long = rust(sources).filter(|source| MOST_LINES < lines(source));
    long.map(|source| format!("{} has {} lines", source.path, lines(source))).collect()
}

pub(super) fn opening_line(sources: &[Source]) -> Vec<String> {
    let silent = rust(sources).filter(|source| !source.text.starts_with("//! "));
    silent.map(|source| format!("{} does not begin with `//! `", source.path)).collect()
}

pub(super) fn ascii(sources: &[Source]) -> Vec<String> {
    let ours =
        |path: &str| [".rs", ".toml", ".sh"].iter().any(|end| path.ends_with(end)) || path == ".ci/run";
    let lines = sources.iter().filter(|source| ours(&source.path)).flat_map(|source| {
        let odd = source.text.lines().enumerate().filter(|(_, line)| !line.is_ascii());
        odd.map(|(n, line)| format!("{}:{}: {}", source.path, n + 1, line.trim()))
    });
    lines.collect()
}

pub(super) fn fuser_in_one_crate(sources: &[Source]) -> Vec<String> {
    let outside = |source: &&Source| !source.path.starts_with("crates/fuse/") && source.path != "Cargo.toml";
    let names = |line: &str| line.contains("fuser::") || line.contains("use fuser");
    let used = rust(sources).filter(outside).flat_map(|source| where_code(source, names));
    used.chain(depends(sources, &|path| !path.starts_with("crates/fuse/"), "fuser")).collect()
}

pub(super) fn engine_dependencies(sources: &[Source]) -> Vec<String> {
    let engine = |path: &str| {
        ["crates/branch/", "crates/identity/", "crates/engine/"].iter().any(|own| path.starts_with(own))
    };
    ["fsstack-fuse", "fsstack-wire", "clap", "fuser"]
        .iter()
        .flat_map(|name| depends(sources, &engine, name))
        .collect()
}

/// The crates' manifests that depend on `name`.
fn depends(sources: &[Source], of: &dyn Fn(&str) -> bool, name: &str) -> Vec<String> {
    let manifests = sources.iter().filter(|s| s.path.ends_with("/Cargo.toml") && of(&s.path));
    let names = |line: &str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '.', '=']))
            || line == format!("[dependencies.{name}]")
    };
    manifests.filter(|s| s.text.lines().any(names)).map(|s| format!("{} depends on {name}", s.path)).collect()
}

/// Complaints about code that sets a thread's identity directly, instead of by `Branch::ask_as`.
pub(super) fn one_identity(sources: &[Source]) -> Vec<String> {
    let outside = |source: &&Source| {
        source.path.starts_with("crates/")
            && !["crates/sys/", "crates/branch/"].iter().any(|own| source.path.starts_with(own))
    };
    let becomes =
        |line: &str| ["identity::acting_as", "become_daemon("].iter().any(|call| line.contains(call));
    rust(sources).filter(outside).flat_map(|source| where_code(source, becomes)).collect()
}

/// Complaints about threads, locks, atomics and clocks that are not those of `crates/sync`, where all have been moved over.
pub(super) fn by_sync(sources: &[Source]) -> Vec<String> {
    let own = |source: &&Source| BY_SYNC.iter().any(|path| source.path.starts_with(path));
    let in_braces = |line: &str, root: &str, words: &[&str]| {
        let rest = line.split_once(root).map(|(_, rest)| rest.split([',', '{', '}', ';', ' ']));
        rest.is_some_and(|mut all| all.any(|one| words.contains(&one.split("::").next().unwrap_or(one))))
    };
    let named = |line: &str| {
        IN_SYNC.iter().any(|name| line.contains(name))
            || in_braces(
                line,
                "use std::sync::{",
                &["atomic", "mpsc", "Mutex", "RwLock", "Condvar", "Barrier"],
            )
            || in_braces(line, "use std::time::{", &["Instant", "SystemTime"])
            || in_braces(line, "use std::{", &["thread"])
            || line.trim_start().starts_with("thread_local!")
    };
    rust(sources).filter(own).flat_map(|source| where_code(source, named)).collect()
}

pub(super) fn unsafe_where_it_may_be(sources: &[Source]) -> Vec<String> {
    let outside = |source: &&Source| !MAY_BE_UNSAFE.iter().any(|path| source.path.starts_with(path));
    let word = |line: &str| {
        let keyword =
            |rest: &str| ["{", "fn ", "impl ", "extern ", "trait "].iter().any(|k| rest.starts_with(k));
        line.split("unsafe ").skip(1).any(keyword)
    };
    rust(sources).filter(outside).flat_map(|source| where_code(source, word)).collect()
}

pub(super) fn one_shell(sources: &[Source]) -> Vec<String> {
    // The daemon starts few programs (fusermount3, mkfs) and the command one (exportfs); crates below the lab are
    // tested without the lab's shell. A server of the lab outlives the call, which the shell's commands do not.
    let transports = ["crates/lab/src/shell.rs", "crates/lab/src/ganesha.rs", "crates/fuse/src/unmount.rs"];
    let outside = |source: &&Source| {
        !transports.contains(&source.path.as_str())
            && !source.path.starts_with("crates/sys/")
            && !source.path.starts_with("crates/daemon/tests/")
    };
    // clap has a type `Command` too, so the path counts.
    let named = |line: &str| line.split_once("process::").is_some_and(|(_, rest)| rest.contains("Command"));
    rust(sources).filter(outside).flat_map(|source| where_code(source, named)).collect()
}

pub(super) fn one_exit(sources: &[Source]) -> Vec<String> {
    let outside = |source: &&Source| !source.path.ends_with("/main.rs") && !source.path.contains("/src/bin/");
    rust(sources)
        .filter(outside)
        .flat_map(|source| where_code(source, |line| line.contains("process::exit(")))
        .collect()
}

pub(super) fn no_drawers(sources: &[Source]) -> Vec<String> {
    let drawers = ["util", "utils", "common", "helper", "helpers", "misc"];
    let is_drawer =
        |path: &str| path.split('/').any(|part| drawers.contains(&part.strip_suffix(".rs").unwrap_or(part)));
    rust(sources)
        .filter(|s| is_drawer(&s.path))
        .map(|s| format!("{} says nothing by its name", s.path))
        .collect()
}

pub(super) fn op_tests(sources: &[Source]) -> Vec<String> {
    let ops = sources.iter().filter_map(|s| s.path.strip_prefix("crates/engine/src/ops/"));
    let untested = |op: &&str| {
        let test = format!("tests/engine/{op}");
        *op != "mod.rs" && !op.contains('/') && !sources.iter().any(|source| source.path == test)
    };
    ops.filter(untested).map(|op| format!("crates/engine/src/ops/{op} has no tests/engine/{op}")).collect()
}

pub(super) fn no_registries(sources: &[Source]) -> Vec<String> {
    let index = "registry+https://github.com/rust-lang/crates.io-index";
    let elsewhere = |path: &str, line: &str| match path {
        "Cargo.lock" => line.starts_with("source = ") && !line.contains(index),
        path if path.starts_with(".cargo/") => line.contains("registry") || line.starts_with("[source"),
        path if path.ends_with("Cargo.toml") => {
            line.contains("registry =") || line.contains("registry-index")
        }
        _ => line.contains("--index-url") || line.contains("deb http") || line.contains("--registry"),
    };
    let own = |source: &&Source| !source.path.starts_with("xtask/src/tidy/");
    let found = sources.iter().filter(own).flat_map(|source| {
        let odd = source.text.lines().enumerate().filter(|(_, line)| elsewhere(&source.path, line));
        odd.map(|(n, line)| format!("{}:{}: {}", source.path, n + 1, line.trim()))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    #[test]
    fn each_rule_finds_what_breaks_it() {
        let broken = [
            source(
                "crates/a/src/util.rs",
                "// no purpose\nuse fuser::Session;\nlet x = unsafe { y() };\nidentity::acting_as(z);\n",
            ),
            source(
                "crates/a/src/b.rs",
                "//! Umlaut: \u{e4}.\nuse std::process::{Command, Stdio};\nprocess::exit(1);\n",
            ),
            source(
                "crates/branch/src/c.rs",
                "//! Line.\nuse std::sync::{Arc, Mutex};\nuse std::sync::{Arc, Weak};\n",
            ),
            source("crates/a/Cargo.toml", "[dependencies]\nfuser.workspace = true\n"),
            source("crates/engine/Cargo.toml", "[dependencies]\nclap = \"4\"\n"),
            source("crates/engine/src/ops/link.rs", &"//! Line.\n".repeat(501)),
            source("Cargo.lock", "source = \"git+https://example.org\"\n"),
        ];
        type Check = fn(&[Source]) -> Vec<String>;
        let checks: [Check; 13] = [
            short_files,
            opening_line,
            ascii,
            engine_dependencies,
            one_identity,
            by_sync,
            unsafe_where_it_may_be,
            one_shell,
            one_exit,
            no_drawers,
            op_tests,
            no_registries,
            |sources| fuser_in_one_crate(sources).into_iter().skip(1).collect(),
        ];
        for (n, check) in checks.into_iter().enumerate() {
            assert_eq!(check(&broken).len(), 1, "rule {n}: {:?}", check(&broken));
        }
    }

    #[test]
    fn comments_and_other_words_are_not_code() {
        let fine = [source(
            "crates/a/src/b.rs",
            "//! Is unsafe { so to speak }.\n#![deny(unsafe_code)]\nlet fuser_like = 1;\n",
        )];
        assert_eq!(unsafe_where_it_may_be(&fine), Vec::<String>::new());
        assert_eq!(fuser_in_one_crate(&fine), Vec::<String>::new());
    }
}
