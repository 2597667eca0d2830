//! Atomic replacement of files: after a crash or power loss a file has its old or its new content.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Replaces the content of `file` by `text` in one step, durable on return.
///
/// # Errors
///
/// The directory cannot be written.
pub fn replace(file: &Path, text: &str) -> io::Result<()> {
    // A symbolic link is followed: its target is replaced.
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().unwrap_or(Path::new("/"));
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let draft = folder.join(name);
    let held = fs::metadata(&file).ok();
    let mode = held.as_ref().map_or(0o644, |held| held.mode() & 0o7777);
    let written = (|| {
        let mut new = make_new(&draft, mode)?;
        new.set_permissions(fs::Permissions::from_mode(mode))?;
        if let Some(held) = &held {
            std::os::unix::fs::fchown(&new, Some(held.uid()), Some(held.gid()))?;
        }
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(&draft, &file)?;
        fs::File::open(folder)?.sync_all()
    })();
    written.inspect_err(|_| drop(fs::remove_file(&draft)))
}

/// Makes the file anew and opens it for writing. What is at `path` is removed: another user may have put a link there.
///
/// # Errors
///
/// The directory cannot be written, or somebody makes such a file at the same time.
pub fn make_new(path: &Path, mode: u32) -> io::Result<fs::File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user who can write the folder of a config file does not choose which file the daemon writes.
    #[test]
    fn a_link_in_place_of_the_draft_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [file, victim, draft] =
            ["pool.toml", "victim", "pool.toml.new"].map(|name| dir.path().join(name));
        fs::write(&file, "old").unwrap();
        fs::write(&victim, "untouched").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        for text in ["symbolic", "hard"] {
            match text {
                "symbolic" => std::os::unix::fs::symlink(&victim, &draft).unwrap(),
                _ => fs::hard_link(&victim, &draft).unwrap(),
            }
            replace(&file, text).unwrap();
            assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
            let is = fs::symlink_metadata(&file).unwrap();
            assert!(is.is_file() && is.mode() & 0o7777 == 0o600);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        }
        fs::create_dir(&draft).unwrap();
        assert!(replace(&file, "newer").is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "hard");
    }
}
