//! A directory of a pool, as it is typed.
//!
//! It need not exist: of its path, as much as exists is resolved, with symbolic links, and the rest is appended. An absolute path that does
//! not lead below the mount point so is one from the pool's root.

use super::{Failed, pool};
use fsstack_pool::{Printable, RuleDir};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directory. A relative path is taken from the working directory.
///
/// # Errors
/// A relative path that leads out of the pool, or one with `..` behind what exists.
pub(super) fn inside(pool: &pool::Pool, dir: &Path) -> Result<RuleDir, Failed> {
    let usage = |why: String| Failed::Usage(why);
    let full =
        std::path::absolute(dir).map_err(|error| usage(format!("{}: {error}", Printable::path(dir))))?;
    let below =
        resolved(&full).and_then(|real| Some(real.strip_prefix(pool.entry.mount_point()).ok()?.to_owned()));
    let from_root = match below {
        Some(below) => Path::new("/").join(below),
        None if dir.is_absolute() => dir.to_owned(),
        None => {
            return Err(usage(format!(
                "{}: not below {}: a relative path is taken from the working directory: write the path from the pool's root, with / \
                 before it",
                Printable::path(dir),
                pool.shown()
            )));
        }
    };
    RuleDir::new(from_root.as_os_str().as_bytes()).map_err(|error| usage(error.to_string()))
}

/// Like [`inside`], but a relative path that does not lead into the pool is taken from the pool's root.
///
/// # Errors
/// As [`inside`].
pub(super) fn or_from_root(pool: &pool::Pool, dir: &Path) -> Result<RuleDir, Failed> {
    inside(pool, dir).or_else(|failed| match dir.is_relative() {
        true => inside(pool, &Path::new("/").join(dir)),
        false => Err(failed),
    })
}

/// The absolute path with all of it resolved that exists; none if `..` follows on that.
fn resolved(path: &Path) -> Option<PathBuf> {
    let (mut at, mut rest) = (path, Vec::new());
    loop {
        if let Ok(real) = std::fs::canonicalize(at) {
            return Some(rest.iter().rev().fold(real, |path, name| path.join(name)));
        }
        rest.push(at.file_name()?);
        at = at.parent()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_as_exists_is_resolved() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        std::fs::create_dir(home.join("real")).unwrap();
        std::os::unix::fs::symlink("real", home.join("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", home.join("dangling")).unwrap();
        let of = |path: &str| resolved(&home.join(path));
        assert_eq!(of("link"), Some(home.join("real")));
        assert_eq!(of("link/new/er"), Some(home.join("real/new/er")));
        assert_eq!(of("link/../new"), Some(home.join("new")));
        assert_eq!(of("dangling/new"), Some(home.join("dangling/new")));
        assert_eq!(of("link/new/../er"), None);
    }
}
