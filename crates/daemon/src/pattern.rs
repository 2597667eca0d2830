//! Expands a pattern of branches to the directories that match it.
//!
//! A directory that cannot be reached matches as well: a branch is not left out of a pool because its server is down. Only what is
//! certainly no directory is passed over.

use glob::Pattern;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Reason why a pattern has no answer: one line without the branch.
pub(crate) enum PatternError {
    /// It is none.
    Invalid(String),
    /// A directory in which names are to be matched cannot be read.
    Unreadable(PathBuf, io::Error),
}

/// Directories that match, sorted: as the shell expands a pattern, so `*` matches no hidden name and no slash.
///
/// # Errors
/// It is no pattern, or a directory on its way cannot be read.
pub(crate) fn directories(pattern: &str) -> Result<Vec<PathBuf>, PatternError> {
    let mut found = vec![if pattern.starts_with('/') { PathBuf::from("/") } else { PathBuf::new() }];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        found = if part.contains(['*', '?', '[']) {
            let names = Names::parse(part)?;
            let mut below = Vec::new();
            for directory in &found {
                names.add_matches(directory, &mut below)?;
            }
            below
        } else {
            found.into_iter().map(|directory| directory.join(part)).collect()
        };
    }
    found.retain(|path| may_be_directory(path));
    found.sort();
    Ok(found)
}

/// True if `path` is one that the absolute `pattern` matches, whatever is there.
pub(crate) fn is_matched(pattern: &str, path: &Path) -> bool {
    let parts = || pattern.split('/').filter(|part| !part.is_empty());
    let names = || path.components().skip(1).map(Component::as_os_str);
    pattern.starts_with('/')
        && parts().count() == names().count()
        && parts().zip(names()).all(|(part, name)| {
            if part.contains(['*', '?', '[']) {
                Names::parse(part).is_ok_and(|names| names.matches(name))
            } else {
                name == part
            }
        })
}

fn may_be_directory(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(metadata) => metadata.is_dir(),
        Err(error) => !is_absence(&error),
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Names that one part of a pattern matches.
struct Names {
    pattern: Pattern,
    hidden: bool,
}

impl Names {
    fn parse(part: &str) -> Result<Self, PatternError> {
        if part.contains("**") {
            return Err(PatternError::Invalid(
                "\"**\" would search whole trees; write one * a level".to_owned(),
            ));
        }
        let pattern = Pattern::new(part).map_err(|error| PatternError::Invalid(error.msg.to_owned()))?;
        Ok(Self { pattern, hidden: part.starts_with('.') })
    }

    /// Bytes that are no text match `*` and `?`.
    fn matches(&self, name: &OsStr) -> bool {
        (self.hidden || !name.as_bytes().starts_with(b".")) && self.pattern.matches(&name.to_string_lossy())
    }

    fn add_matches(&self, directory: &Path, found: &mut Vec<PathBuf>) -> Result<(), PatternError> {
        let unreadable = |error| PatternError::Unreadable(directory.to_owned(), error);
        let here = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let entries = match fs::read_dir(here) {
            Ok(entries) => entries,
            Err(error) if is_absence(&error) => return Ok(()),
            Err(error) => return Err(unreadable(error)),
        };
        for entry in entries {
            let name = entry.map_err(unreadable)?.file_name();
            if self.matches(&name) {
                found.push(directory.join(name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test whose test bed cannot be made has failed")]
mod tests {
    use super::*;

    fn found(home: &Path, pattern: &str) -> Vec<PathBuf> {
        let Ok(found) = directories(&format!("{}/{pattern}", home.display())) else { panic!("{pattern}") };
        found.into_iter().map(|path| path.strip_prefix(home).unwrap().to_owned()).collect()
    }

    /// The expansion of the `glob` crate panics at such a name.
    #[test]
    fn names_that_are_no_text_match_and_stop_nothing() {
        let home = tempfile::tempdir().unwrap();
        let strange = Path::new(OsStr::from_bytes(b"disk\xff"));
        for name in [Path::new("disk1"), strange, Path::new(".disk2")] {
            fs::create_dir(home.path().join(name)).unwrap();
        }
        fs::write(home.path().join("disk3"), "").unwrap();
        assert_eq!(found(home.path(), "disk*"), [Path::new("disk1"), strange]);
        assert_eq!(found(home.path(), "*"), [Path::new("disk1"), strange]);
        assert_eq!(found(home.path(), ".d*"), [Path::new(".disk2")]);
        assert_eq!(found(home.path(), "nothing*"), [] as [&Path; 0]);
    }

    #[test]
    fn each_level_may_be_a_pattern_and_lacks_count_for_nothing() {
        let home = tempfile::tempdir().unwrap();
        for name in ["a1/data", "a2/data", "a3/other", "b1/data"] {
            fs::create_dir_all(home.path().join(name)).unwrap();
        }
        fs::write(home.path().join("a4"), "").unwrap();
        assert_eq!(found(home.path(), "a*/data"), [Path::new("a1/data"), Path::new("a2/data")]);
        assert_eq!(found(home.path(), "[ab]1/d*"), [Path::new("a1/data"), Path::new("b1/data")]);
        assert!(matches!(directories("/srv/**"), Err(PatternError::Invalid(_))));
    }

    /// A link to itself cannot be looked at: such a branch is refused by name later, not left out.
    #[test]
    fn a_directory_that_cannot_be_looked_at_matches() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("disk1")).unwrap();
        std::os::unix::fs::symlink("disk2", home.path().join("disk2")).unwrap();
        assert_eq!(found(home.path(), "disk*"), [Path::new("disk1"), Path::new("disk2")]);
    }
}
