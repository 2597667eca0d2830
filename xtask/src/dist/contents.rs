//! Crates in the released programs, as cargo resolves them, without build and test dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::exec;

/// A crate in the programs.
#[derive(Clone, Debug)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    /// An SPDX expression, as its authors wrote it.
    pub(super) licence: String,
    /// SHA-256 of the package in the registry; `None` for our own crates.
    pub(super) sum: Option<String>,
    /// Where its sources are.
    pub(super) dir: PathBuf,
    /// The crates that it uses, by cargo's ids.
    pub(super) uses: Vec<String>,
}

impl Crate {
    /// True if it is part of this repository.
    pub(super) fn is_ours(&self) -> bool {
        self.sum.is_none()
    }

    /// Its package URL.
    pub(super) fn purl(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }
}

/// The crates, by cargo's ids.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    pub(super) crates: BTreeMap<String, Crate>,
    /// Crates with the programs, in the requested order.
    pub(super) released: Vec<String>,
}

impl Contents {
    /// Reads the crates in `released` for `target`.
    pub(super) fn read(released: &[&str], target: &str) -> Result<Self> {
        let output = exec::quiet("cargo")
            .args(["metadata", "--format-version=1", "--locked", "--filter-platform", target])
            .run()?
            .stdout;
        let lock = fs::read_to_string(exec::root().join("Cargo.lock")).context("Cargo.lock")?;
        Self::of(&serde_json::from_str(&output)?, &toml::from_str(&lock)?, released)
    }

    fn of(output: &Metadata, lock: &Lock, released: &[&str]) -> Result<Self> {
        let mut sums = BTreeMap::new();
        for locked in &lock.package {
            sums.insert((locked.name.as_str(), locked.version.as_str()), locked.checksum.as_ref());
        }
        let ours = |name: &&str| {
            let package = output.packages.iter().find(|p| p.name == **name && p.source.is_none());
            package.map(|package| package.id.clone()).with_context(|| format!("no package {name}"))
        };
        let released: Vec<String> = released.iter().map(ours).collect::<Result<_>>()?;
        let mut crates = BTreeMap::new();
        let mut open = released.clone();
        while let Some(id) = open.pop() {
            if crates.contains_key(&id) {
                continue;
            }
            let package = output.packages.iter().find(|p| p.id == id).with_context(|| id.clone())?;
            let node = output.resolve.nodes.iter().find(|node| node.id == id).with_context(|| id.clone())?;
            let sum = sums.get(&(package.name.as_str(), package.version.as_str())).copied().flatten();
            let uses: BTreeSet<&String> =
                node.deps.iter().filter(|uses| uses.is_in_the_program()).map(|uses| &uses.pkg).collect();
            let uses: Vec<String> = uses.into_iter().cloned().collect();
            open.extend(uses.iter().cloned());
            let made = Crate {
                name: package.name.clone(),
                version: package.version.clone(),
                licence: package
                    .license
                    .clone()
                    .with_context(|| format!("{} names no licence", package.name))?,
                sum: package.source.as_ref().and(sum).cloned(),
                dir: package.manifest_path.parent().context("the manifest's directory")?.to_owned(),
                uses,
            };
            crates.insert(id, made);
        }
        Ok(Self { crates, released })
    }

    /// Version of the programs.
    pub(super) fn version(&self) -> Result<&str> {
        let first = self.released.first().and_then(|id| self.crates.get(id));
        first.map(|first| first.version.as_str()).context("nothing is released")
    }

    /// Crates of other authors.
    pub(super) fn of_others(&self) -> impl Iterator<Item = &Crate> {
        self.crates.values().filter(|one| !one.is_ours())
    }
}

/// Target of this machine's compiler.
pub(super) fn host() -> Result<String> {
    let output = exec::quiet("rustc").arg("-vV").run()?.stdout;
    let host = output.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not tell its host")
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    manifest_path: PathBuf,
    /// `None` for a path dependency.
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Uses>,
}

#[derive(Debug, Deserialize)]
struct Uses {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

impl Uses {
    fn is_in_the_program(&self) -> bool {
        self.dep_kinds.iter().any(|kind| kind.kind.is_none())
    }
}

#[derive(Debug, Deserialize)]
struct Kind {
    /// `build` or `dev`.
    kind: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Debug, Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

#[cfg(test)]
pub(super) fn sample() -> Contents {
    use serde_json::json;

    let package = |name: &str, licence: &str, source: Option<&str>| {
        json!({"id": format!("{name}-id"), "name": name, "version": "1.2.3", "license": licence,
               "manifest_path": format!("/nowhere/{name}/Cargo.toml"), "source": source})
    };
    let uses =
        |name: &str, kind: Option<&str>| json!({"pkg": format!("{name}-id"), "dep_kinds": [{"kind": kind}]});
    let output = json!({
        "packages": [package("ours", "MIT OR Apache-2.0", None), package("used", "MIT", Some("registry")),
                     package("builds", "GPL-3.0", Some("registry"))],
        "resolve": {"nodes": [
            {"id": "ours-id", "deps": [uses("used", None), uses("builds", Some("build"))]},
            {"id": "used-id", "deps": []}, {"id": "builds-id", "deps": []},
        ]},
    });
    let lock = "[[package]]\nname = \"ours\"\nversion = \"1.2.3\"\n\
                [[package]]\nname = \"used\"\nversion = \"1.2.3\"\nchecksum = \"abc\"\n";
    let output = serde_json::from_value(output).expect("metadata");
    Contents::of(&output, &toml::from_str(lock).expect("a lock file"), &["ours"]).expect("contents")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_dependencies_are_not_in_the_programs() {
        let contents = sample();
        let names: Vec<&str> = contents.crates.values().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["ours", "used"]);
        assert_eq!(contents.version().unwrap(), "1.2.3");
        let others: Vec<String> = contents.of_others().map(Crate::purl).collect();
        assert_eq!(others, ["pkg:cargo/used@1.2.3"]);
    }

    #[test]
    fn the_programs_here_are_resolved() {
        let contents = Contents::read(&super::super::RELEASED, &host().unwrap()).unwrap();
        assert!(contents.of_others().any(|one| one.name == "fuser"));
        assert!(!contents.of_others().any(|one| one.name == "proptest"), "it is for tests");
        assert!(contents.of_others().all(|one| one.sum.as_ref().is_some_and(|sum| sum.len() == 64)));
        super::super::licences::check(&contents).unwrap();
    }
}
