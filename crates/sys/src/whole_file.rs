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
        let mut new =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&draft)?;
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
