//! Files that the daemon keeps for itself, outside of all branches.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Makes the folder of `file`, which only its owner may enter, and removes what was there under the file's name.
///
/// # Errors
/// What the system said.
pub fn make_room(file: &Path) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_where_something_was() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a/b/c");
        make_room(&file).unwrap();
        fs::write(&file, "old").unwrap();
        make_room(&file).unwrap();
        assert!(!file.exists() && file.parent().unwrap().is_dir());
    }
}
