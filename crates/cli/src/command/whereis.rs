//! `fsstack where`: the branch of each path, from extended attributes, which any user may read.

use super::show::{self, Style};
use super::{Failed, pool};
use fsstack_control::api::{FileLocation, FileLocations};
use fsstack_pool::Printable;
use rustix::fs::lgetxattr;
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) fn run(paths: &[PathBuf], style: Style) -> Result<(), Failed> {
    let places = paths.iter().map(|path| location(path)).collect::<Result<Vec<_>, _>>()?;
    show::answer(style, &FileLocations { places }, human)
}

fn location(path: &Path) -> Result<FileLocation, Failed> {
    let shown = Printable::path(path).to_string();
    let failed = |errno: Errno| Failed::system(&shown, &io::Error::from(errno));
    match attribute(path, "user.fsstack.branch") {
        Ok(branch) => Ok(FileLocation {
            branch: Printable(&branch).to_string(),
            at: Printable(&attribute(path, "user.fsstack.path").map_err(failed)?).to_string(),
            copies: attribute(path, "user.fsstack.copies")
                .map_err(failed)?
                .split(|byte| *byte == 0)
                .map(|copy| Printable(copy).to_string())
                .collect(),
            path: shown,
        }),
        // No such attribute: the path is outside any pool, or of a type that cannot have attributes.
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => {
            let (pool, inside) = pool::holding(path)?;
            let explained = pool.client().explain(&inside)?;
            let at = explained.copies.first().cloned().unwrap_or_default();
            Ok(FileLocation { path: shown, branch: explained.branch, at, copies: explained.copies })
        }
        Err(errno) => Err(failed(errno)),
    }
}

fn attribute(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0_u8; 1 << 16];
    let length = lgetxattr(path, name, &mut value)?;
    value.truncate(length);
    Ok(value)
}

fn human(places: &FileLocations) -> String {
    let line = |location: &FileLocation| {
        let others: String = location
            .copies
            .iter()
            .filter(|copy| **copy != location.at)
            .map(|copy| format!("  also at {copy}\n"))
            .collect();
        if places.places.len() == 1 {
            format!("{}\n{others}", location.at)
        } else {
            format!("{}: {}\n{others}", location.path, location.at)
        }
    };
    places.places.iter().map(line).collect()
}
