//! Licences of the crates in the programs: only those allowed by deny.toml, each with its text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use fsstack_lab::shell::which;
use serde::Deserialize;
use spdx::{Expression, ParseMode};

use super::contents::{Contents, Crate};
use crate::exec;

/// Beginnings of licence files' names, in capitals.
const TEXTS: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];

#[derive(Debug, Deserialize)]
struct Deny {
    licenses: Allowed,
}

#[derive(Debug, Deserialize)]
struct Allowed {
    allow: Vec<String>,
}

/// Runs cargo-deny for the whole workspace, if it is installed.
pub(super) fn deny() -> Result<()> {
    if which("cargo-deny").is_none() {
        println!(
            "cargo-deny is not installed: of deny.toml, only the licences of the programs' libraries are checked"
        );
        return Ok(());
    }
    exec::cargo().args(["deny", "check", "bans", "licenses", "sources"]).run().map(drop)
}

/// Checks all licences; the error names every crate with a disallowed one.
pub(super) fn check(contents: &Contents) -> Result<()> {
    let deny = fs::read_to_string(exec::root().join("deny.toml")).context("deny.toml")?;
    let allowed = toml::from_str::<Deny>(&deny)?.licenses.allow;
    let refused: Vec<String> = contents
        .of_others()
        .filter(|one| !is_allowed(&one.licence, &allowed))
        .map(|one| format!("{} ({})", one.name, one.licence))
        .collect();
    if !refused.is_empty() {
        bail!("deny.toml allows the licence of none of these: {}", refused.join(", "));
    }
    Ok(())
}

fn is_allowed(licence: &str, allowed: &[String]) -> bool {
    // LAX accepts the old form `MIT/Apache-2.0`.
    let expression = Expression::parse_mode(licence, ParseMode::LAX);
    expression.is_ok_and(|read| read.evaluate(|wanted| allowed.contains(&wanted.to_string())))
}

/// The licence in SPDX's present form.
pub(super) fn canonical(licence: &str) -> String {
    Expression::canonicalize(licence).ok().flatten().unwrap_or_else(|| licence.to_owned())
}

/// Makes a page with every third-party crate, its licence, and the texts, without duplicates.
pub(super) fn texts(contents: &Contents) -> Result<String> {
    let mut page = "The programs of fsstack contain these libraries.\n\n".to_owned();
    let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for one in contents.of_others() {
        let name = format!("{} {}", one.name, one.version);
        writeln!(page, "{name}: {}", canonical(&one.licence))?;
        for text in texts_of(one)? {
            users.entry(text).or_default().push(name.clone());
        }
    }
    let mut by_user: Vec<(Vec<String>, String)> = users.into_iter().map(|(text, of)| (of, text)).collect();
    by_user.sort();
    for (of, text) in by_user {
        write!(page, "\n\n{}\nThe text of {}:\n\n{text}\n", "-".repeat(78), of.join(", "))?;
    }
    Ok(page)
}

fn texts_of(one: &Crate) -> Result<Vec<String>> {
    let listed = fs::read_dir(&one.dir).with_context(|| one.dir.display().to_string())?;
    let mut files: Vec<_> = listed.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
    files.retain(|file| file.is_file() && is_text(file));
    files.sort();
    let read = |file| fs::read(&file).map(|text| String::from_utf8_lossy(&text).trim_end().replace('\r', ""));
    files.into_iter().map(|file| Ok(read(file)?)).collect()
}

fn is_text(file: &Path) -> bool {
    let name = file.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default();
    let is_code = Path::new(&name).extension().is_some_and(|ending| ending == "RS");
    !is_code && TEXTS.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_allowed_choice_is_enough_and_all_of_several_are_needed() {
        let allowed = ["MIT", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        for fine in ["MIT", "MIT/GPL-3.0", "GPL-3.0-only OR MIT", "Apache-2.0 WITH LLVM-exception AND MIT"] {
            assert!(is_allowed(fine, &allowed), "{fine}");
        }
        for refused in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "Apache-2.0", "my own", ""] {
            assert!(!is_allowed(refused, &allowed), "{refused}");
        }
        assert_eq!(canonical("MIT/Apache-2.0"), "MIT OR Apache-2.0");
        assert_eq!(canonical("MIT"), "MIT");
    }

    #[test]
    fn a_text_that_two_have_stands_there_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("LICENSE-MIT"), "Do as you please.\r\n").unwrap();
        fs::write(dir.path().join("license.rs"), "//! Code.\n").unwrap();
        let mut contents = super::super::contents::sample();
        let used = contents.crates.values().find(|one| !one.is_ours()).unwrap().clone();
        contents.crates.insert("another-id".into(), Crate { name: "another".into(), ..used });
        for one in contents.crates.values_mut() {
            one.dir = dir.path().to_owned();
        }
        let page = texts(&contents).unwrap();
        assert_eq!(page.matches("Do as you please.").count(), 1, "{page}");
        assert!(page.contains("another 1.2.3, used 1.2.3:") && !page.contains("Code"), "{page}");
    }
}
