//! Directories whose files have a write path of their own.
//!
//! A rule is for a place in the tree, by its path, as a line in fstab is: it holds for whatever lies at that path or
//! below it when a file is first opened, whether the directory exists when the rule is made or not. A directory that
//! is renamed leaves the rule behind. The longest path wins. A file with several names goes by the one that it was
//! opened by last.

use std::fmt;
use std::sync::Arc;

use fsstack_pool::Printable;
use fsstack_pool::settings::WritePath;

/// The write path of the files in one directory and below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The directory's path below the pool's root, without slashes at the ends.
    pub dir: Box<[u8]>,
    /// How bytes of its files reach the branch.
    pub how: WritePath,
}

impl fmt::Display for Rule {
    /// Printed as `/dir=stacked`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "/{}={}", Printable(&self.dir), self.how)
    }
}

/// All rules of a pool: cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Arc<[Arc<Rule>]>);

/// A path that no rule can be for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no directory below the pool's root: write its path from there, without . and ..")]
pub struct BadRule(String);

impl Rules {
    /// These rules; of two for one directory the later one holds.
    ///
    /// # Errors
    /// A path that is the root's, or has `.` or `..` in it.
    pub fn new<'a>(rules: impl IntoIterator<Item = (&'a [u8], WritePath)>) -> Result<Self, BadRule> {
        rules.into_iter().try_fold(Self::default(), |all, (dir, how)| all.with(dir, Some(how)))
    }

    /// These rules, and for the directory `dir` this one; None: no rule of its own.
    ///
    /// # Errors
    /// A path that is the root's, or has `.` or `..` in it.
    pub fn with(&self, dir: &[u8], how: Option<WritePath>) -> Result<Self, BadRule> {
        let dir = plain(dir).ok_or_else(|| BadRule(Printable(dir).to_string()))?;
        let mut rules: Vec<Arc<Rule>> = self.0.iter().filter(|rule| rule.dir != dir).cloned().collect();
        rules.extend(how.map(|how| Arc::new(Rule { dir, how })));
        // The longest first: the first that holds wins.
        rules.sort_by(|a, b| b.dir.len().cmp(&a.dir.len()).then_with(|| a.dir.cmp(&b.dir)));
        Ok(Self(rules.into()))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, by path.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        let mut rules: Vec<&Rule> = self.0.iter().map(|rule| &**rule).collect();
        rules.sort_by(|a, b| a.dir.cmp(&b.dir));
        rules.into_iter()
    }

    /// The rule for what is at `path`, below the pool's root and without slashes at the ends.
    pub fn find(&self, path: &[u8]) -> Option<&Arc<Rule>> {
        self.0.iter().find(|rule| {
            path.strip_prefix(&*rule.dir).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        })
    }
}

impl fmt::Display for Rules {
    /// Printed as `/dir=stacked:/other=passthrough`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.iter().map(Rule::to_string).collect();
        out.write_str(&shown.join(":"))
    }
}

/// The path without slashes that mean nothing.
fn plain(dir: &[u8]) -> Option<Box<[u8]>> {
    let names: Vec<&[u8]> = dir.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
    let bad = |name: &&[u8]| matches!(*name, b"." | b"..") || name.contains(&0);
    (!names.is_empty() && !names.iter().any(bad)).then(|| names.join(&b'/').into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rules: &Rules, path: &str) -> Option<WritePath> {
        rules.find(path.as_bytes()).map(|rule| rule.how)
    }

    #[test]
    fn the_longest_path_wins() {
        let given = [("/a", WritePath::Stacked), ("a//b/", WritePath::Passthrough), ("/ab", WritePath::Auto)];
        let rules = Rules::new(given.map(|(dir, how)| (dir.as_bytes(), how))).expect("these are paths");
        assert_eq!(rules.to_string(), "/a=stacked:/a/b=passthrough:/ab=auto");
        assert_eq!(found(&rules, "a"), Some(WritePath::Stacked));
        assert_eq!(found(&rules, "a/film"), Some(WritePath::Stacked));
        assert_eq!(found(&rules, "a/b/c/film"), Some(WritePath::Passthrough));
        assert_eq!(found(&rules, "ab/film"), Some(WritePath::Auto));
        assert_eq!(found(&rules, "abc"), None);
        assert_eq!(found(&rules, ""), None);
        let fewer = rules.with(b"a/b", None).expect("a path");
        assert_eq!(found(&fewer, "a/b/c/film"), Some(WritePath::Stacked));
        assert_eq!(fewer.iter().count(), 2);
    }

    #[test]
    fn a_path_that_is_no_directory_below_the_root_is_refused() {
        for bad in ["", "/", "a/../b", "./a", "a\0b"] {
            assert!(Rules::default().with(bad.as_bytes(), Some(WritePath::Auto)).is_err(), "{bad:?}");
        }
    }
}
