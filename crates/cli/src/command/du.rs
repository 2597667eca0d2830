//! `fsstack du`: sizes of directories, from the catalogue of a pool.

use super::args::Du;
use super::catalogue::{incomplete, pages};
use super::show::{self, Style};
use super::table::size;
use super::{Failed, branch_word, pool, typed_dir};
use fsstack_control::api::{CatalogueName, CatalogueRequest, CatalogueUsage, DirUsage, bytes_of, exact};
use fsstack_pool::Printable;
use std::collections::BTreeMap;
use std::fmt::Write as _;

pub(crate) fn run(wish: &Du, style: Style) -> Result<(), Failed> {
    let pool = pool::find(&wish.pool)?;
    let dir = wish.dir.as_deref().map(|dir| typed_dir::inside(&pool, dir)).transpose()?;
    let below = dir.as_ref().map(|dir| dir.path().to_vec()).unwrap_or_default();
    let dir = dir.map(|dir| dir.to_string()).unwrap_or_default();
    let branch = wish.branch.as_deref().map(branch_word::path_or_id);
    let request =
        |after| CatalogueRequest::Find { dir: dir.clone(), name: None, branch: branch.clone(), after };
    let mut sums = DirSums::new(&below, wish.depth);
    let branches = pages(&pool.client(), request, |page| {
        page.names.iter().for_each(|name| sums.add(name));
        Ok(())
    })?;
    let usage = CatalogueUsage { directories: sums.directories(), branches };
    show::answer(style, &usage, human)?;
    if style == Style::Human {
        super::tell(&incomplete(&usage.branches));
    }
    Ok(())
}

/// Names and bytes below directories, down to some depth.
struct DirSums {
    below: Vec<Vec<u8>>,
    depth: usize,
    /// By the path's parts, so that a directory comes before what lies in it.
    dirs: BTreeMap<Vec<Vec<u8>>, (u64, u64)>,
}

impl DirSums {
    fn new(below: &[u8], depth: usize) -> Self {
        let below = parts(below);
        let dirs = BTreeMap::from([(below.clone(), (0, 0))]);
        Self { below, depth, dirs }
    }

    /// Counts a name in each directory that it lies in. Each name of a file with several counts.
    fn add(&mut self, name: &CatalogueName) {
        let path = parts(&bytes_of(&name.path, name.path_base64.as_deref()));
        if !path.starts_with(&self.below) {
            return;
        }
        let is_dir = name.kind == "directory";
        let deepest = if is_dir { path.len() } else { path.len().saturating_sub(1) };
        for length in self.below.len()..=deepest.min(self.below.len().saturating_add(self.depth)) {
            let (names, bytes) = self.dirs.entry(path[..length].to_vec()).or_default();
            *names += u64::from(length < path.len());
            *bytes += name.size;
        }
    }

    fn directories(self) -> Vec<DirUsage> {
        let shown = |(parts, (names, bytes)): (Vec<Vec<u8>>, (u64, u64))| {
            let path = parts.join(&b'/');
            DirUsage { path: Printable(&path).to_string(), path_base64: exact(&path), names, bytes }
        };
        self.dirs.into_iter().map(shown).collect()
    }
}

fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).map(<[u8]>::to_vec).collect()
}

fn human(usage: &CatalogueUsage) -> String {
    let mut text = String::new();
    for DirUsage { path, names, bytes, .. } in &usage.directories {
        let _ = writeln!(text, "{:>8} {names:>10}  /{path}", size(Some(*bytes)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(path: &str, kind: &str, size: u64) -> CatalogueName {
        CatalogueName {
            path: path.into(),
            path_base64: None,
            kind: kind.into(),
            mode: "0644".into(),
            uid: 0,
            gid: 0,
            size,
            modified: String::new(),
            modified_ns: 0,
            branches: vec!["/b".into()],
        }
    }

    fn shown(below: &[u8], depth: usize) -> String {
        let names = [
            name("films", "directory", 0),
            name("films/a", "file", 3 << 30),
            name("films/old", "directory", 0),
            name("films/old/b", "file", 1 << 30),
            name("films-2", "directory", 0),
            name("note", "file", 7),
        ];
        let mut sums = DirSums::new(below, depth);
        names.iter().for_each(|name| sums.add(name));
        human(&CatalogueUsage { directories: sums.directories(), branches: Vec::new() })
    }

    #[test]
    fn a_directory_has_what_lies_below_it_and_comes_before_it() {
        let whole = "   4 GiB          6  /\n   4 GiB          3  /films\n     0 B          0  /films-2\n";
        assert_eq!(shown(b"", 1), whole);
        let films = "   4 GiB          3  /films\n   1 GiB          1  /films/old\n";
        assert_eq!(shown(b"films", 9), films);
        assert_eq!(shown(b"", 0).lines().count(), 1);
    }
}
