//! Files that the daemon keeps for itself, outside of all branches.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Makes the folder of `file`, which only its owner may enter, and puts what was there under the file's name aside: `.bad` is
/// added to its name.
///
/// # Errors
/// What the system said.
pub fn make_room(file: &Path) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut bad = file.as_os_str().to_owned();
    bad.push(".bad");
    match fs::rename(file, bad) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A file that is read and written, made if there is none.
///
/// # Errors
/// What the system said.
pub fn open(file: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(file)
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
        assert_eq!(fs::read_to_string(file.with_extension("bad")).unwrap(), "old");
    }
}
