//! `fsstack where`: the branch of each path, from extended attributes, which any user may read, or from the pool's catalogue.

use super::show::{self, Style};
use super::{Failed, pool};
use fsstack_control::api::{CatalogueRequest, FileLocation, FileLocations, exact};
use fsstack_pool::{Printable, RuleDir};
use rustix::fs::lgetxattr;
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// `fsstack where`.
pub(crate) fn run(paths: &[PathBuf], style: Style) -> Result<(), Failed> {
    each(paths, location, style)
}

/// `fsstack where --catalogue`.
pub(crate) fn from_catalogue(paths: &[PathBuf], style: Style) -> Result<(), Failed> {
    each(paths, catalogued, style)
}

fn each(
    paths: &[PathBuf],
    find: fn(&Path) -> Result<FileLocation, Failed>,
    style: Style,
) -> Result<(), Failed> {
    let (mut places, mut failures) = (Vec::new(), Vec::new());
    for path in paths {
        match find(path) {
            Ok(place) => places.push(place),
            Err(failed) => failures.push(failed),
        }
    }
    if !places.is_empty() || style == Style::Json {
        show::answer(style, &FileLocations { places }, |found| human(found, paths.len()))?;
    }
    // The first is the command's own; the caller prints it.
    let mut failures = failures.into_iter();
    let Some(first) = failures.next() else { return Ok(()) };
    failures.for_each(|failed| super::tell(&format!("fsstack: {failed}\n")));
    Err(first)
}

fn location(path: &Path) -> Result<FileLocation, Failed> {
    let shown = Printable::path(path).to_string();
    let failed = |errno: Errno| Failed::system(&shown, &io::Error::from(errno));
    match attribute(path, "user.fsstack.branch") {
        Ok(branch) => {
            let at = attribute(path, "user.fsstack.path").map_err(failed)?;
            Ok(FileLocation {
                branch: Printable(&branch).to_string(),
                at: Printable(&at).to_string(),
                at_base64: exact(&at),
                copies: attribute(path, "user.fsstack.copies")
                    .map_err(failed)?
                    .split(|byte| *byte == 0)
                    .map(|copy| Printable(copy).to_string())
                    .collect(),
                path: shown,
            })
        }
        // No such attribute: the path is outside any pool, or of a type that cannot have attributes. Or its pool's daemon is dead.
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::NOTCONN) => {
            let (pool, inside) = pool::holding(path)?;
            let explained = pool.client().explain(&inside)?;
            let at = explained.copies.first().cloned().unwrap_or_default();
            // A dead daemon's paths are those that it shows.
            Ok(FileLocation {
                path: shown,
                branch: explained.branch,
                at,
                at_base64: None,
                copies: explained.copies,
            })
        }
        Err(errno) => Err(failed(errno)),
    }
}

/// The location as the catalogue has it. No branch is asked, so the path is taken as it is written.
fn catalogued(path: &Path) -> Result<FileLocation, Failed> {
    let shown = Printable::path(path).to_string();
    let (pool, inside) = pool::holding_by_name(path)?;
    let from_root = RuleDir::new(&[b"/", inside.as_slice()].concat());
    let from_root = from_root.map_err(|error| Failed::Usage(format!("{shown}: {error}")))?;
    let page = pool.client().catalogue(&CatalogueRequest::Where { path: from_root.to_string() })?;
    let Some(name) = page.names.first() else {
        let is_complete = page.branches.iter().all(|branch| branch.complete);
        let hint = if is_complete { "" } else { ", which is not complete" };
        return Err(Failed::Missing(format!("{shown}: not in the pool's catalogue{hint}")));
    };
    let copies: Vec<String> = name.branches.iter().map(|branch| format!("{branch}/{}", name.path)).collect();
    let branch = name.branches.first().cloned().unwrap_or_default();
    let at = copies.first().cloned().unwrap_or_default();
    // A branch whose path is no plain text is shown only.
    let at_base64 = exact(&[branch.as_bytes(), b"/", &inside].concat()).filter(|_| !branch.contains('\\'));
    Ok(FileLocation { path: shown, branch, at, at_base64, copies })
}

fn attribute(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0_u8; 1 << 16];
    let length = lgetxattr(path, name, &mut value)?;
    value.truncate(length);
    Ok(value)
}

/// Formats the places of those of `asked` paths that have one.
fn human(places: &FileLocations, asked: usize) -> String {
    let line = |location: &FileLocation| {
        let others: String = location
            .copies
            .iter()
            .filter(|copy| **copy != location.at)
            .map(|copy| format!("  also at {copy}\n"))
            .collect();
        if asked == 1 {
            format!("{}\n{others}", location.at)
        } else {
            format!("{}: {}\n{others}", location.path, location.at)
        }
    };
    places.places.iter().map(line).collect()
}
