//! The directory that a rule is for.
//!
//! A rule is for a place in the tree, by its path, as a line in fstab is: it holds for whatever lies at that path or below it,
//! whether the directory exists when the rule is made or not. A directory that is renamed leaves the rule behind.

use std::fmt;

use crate::escape::Escaped;
use crate::printable::Printable;

/// A directory by its path below the pool's root: without slashes at the ends, `.` and `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleDir(Box<[u8]>);

/// Bytes of the longest path, as the kernel takes one.
const PATH_MAX: usize = 4096;

/// A path that no rule can be for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRuleDir {
    /// It is not a path from the root.
    #[error("`{0}` is no directory of the pool: write its path from the pool's root, without . and ..")]
    NoPath(String),
    /// It is longer than any path.
    #[error("a directory's path of {0} bytes: it can have {PATH_MAX} at most")]
    TooLong(usize),
}

impl RuleDir {
    /// The directory at `path`; superfluous slashes are left out.
    ///
    /// # Errors
    /// The path is empty or longer than 4096 bytes, or has `.`, `..` or a NUL byte in it.
    pub fn new(path: &[u8]) -> Result<Self, BadRuleDir> {
        if path.len() > PATH_MAX {
            return Err(BadRuleDir::TooLong(path.len()));
        }
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        let bad = |name: &&[u8]| matches!(*name, b"." | b"..") || name.contains(&0);
        if path.is_empty() || names.iter().any(bad) {
            return Err(BadRuleDir::NoPath(Printable(path).to_string()));
        }
        Ok(Self(names.join(&b'/').into()))
    }

    /// True for the pool's root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The path, without slashes at the ends.
    pub fn path(&self) -> &[u8] {
        &self.0
    }

    /// The names on the way, from the root.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }
}

/// Prints the path as a part of a list of rules.
impl fmt::Display for RuleDir {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "/{}", Escaped(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superfluous_slashes_go_and_other_paths_are_refused() {
        let dir = RuleDir::new(b"//a//b/").unwrap();
        assert_eq!((dir.path(), dir.to_string().as_str()), (&b"a/b"[..], "/a/b"));
        assert_eq!(dir.names().collect::<Vec<_>>(), [b"a", b"b"]);
        let root = RuleDir::new(b"/").unwrap();
        assert!(root.is_root() && root.names().next().is_none());
        for bad in ["", "a/../b", "./a", "a\0b"] {
            assert!(RuleDir::new(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(RuleDir::new(&[b'a'; PATH_MAX]).is_ok());
        assert_eq!(RuleDir::new(&[b'a'; PATH_MAX + 1]), Err(BadRuleDir::TooLong(PATH_MAX + 1)));
    }
}
