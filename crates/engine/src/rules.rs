//! Directories whose files have a write path of their own.
//!
//! A rule is for a place in the tree, by its path, as a line in fstab is: it holds for whatever lies at that path or
//! below it when a file is first opened, whether the directory exists when the rule is made or not. A directory that
//! is renamed leaves the rule behind. The longest path wins. A file with several names goes by the one that it was
//! opened by last.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use fsstack_pool::escape::{self, BadEscape};
use fsstack_pool::settings::WritePath;
use fsstack_pool::{BadRuleDir, RuleDir};

/// The write path of the files in one directory and below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The directory.
    pub dir: RuleDir,
    /// How bytes of its files reach the branch.
    pub how: WritePath,
}

impl fmt::Display for Rule {
    /// Printed as `/dir=stacked`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={}", self.dir, self.how)
    }
}

/// All rules of a pool: cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Arc<[Arc<Rule>]>);

/// A text that is no list of rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRules {
    /// A path that no rule can be for.
    #[error(transparent)]
    Dir(#[from] BadRuleDir),
    /// The pool's root.
    #[error("`/` is the whole pool: set write-path= for that")]
    Root,
    /// A wrong escape.
    #[error(transparent)]
    Escape(#[from] BadEscape),
    /// Something else is wrong.
    #[error("not rules as /dir=stacked:/other=passthrough (a `:` in a name is written `\\:`)")]
    Form,
}

impl Rules {
    /// These rules; of two for one directory the later one holds.
    ///
    /// # Errors
    /// A path that is the root's, or has `.` or `..` in it.
    pub fn new<'a>(rules: impl IntoIterator<Item = (&'a [u8], WritePath)>) -> Result<Self, BadRules> {
        rules.into_iter().try_fold(Self::default(), |all, (dir, how)| all.with(dir, Some(how)))
    }

    /// These rules, and for the directory `dir` this one; None: no rule of its own.
    ///
    /// # Errors
    /// A path that is the root's, or has `.` or `..` in it.
    pub fn with(&self, dir: &[u8], how: Option<WritePath>) -> Result<Self, BadRules> {
        let dir = RuleDir::new(dir)?;
        if dir.is_root() {
            return Err(BadRules::Root);
        }
        let mut rules: Vec<Arc<Rule>> = self.0.iter().filter(|rule| rule.dir != dir).cloned().collect();
        rules.extend(how.map(|how| Arc::new(Rule { dir, how })));
        // The longest first: the first that holds wins.
        let length = |rule: &Rule| rule.dir.path().len();
        rules.sort_by(|a, b| length(b).cmp(&length(a)).then_with(|| a.dir.cmp(&b.dir)));
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
            path.strip_prefix(rule.dir.path()).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
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

impl FromStr for Rules {
    type Err = BadRules;

    /// Reads `/dir=stacked:/other=passthrough`.
    fn from_str(text: &str) -> Result<Self, BadRules> {
        let symbols = escape::unescape(text.as_bytes())?;
        let mut rules = escape::split(&symbols, b':').filter(|rule| !rule.is_empty());
        rules.try_fold(Self::default(), |rules, rule| {
            let at = rule.iter().rposition(|symbol| symbol.means(b"=")).ok_or(BadRules::Form)?;
            let how = String::from_utf8(escape::bytes_of(&rule[at + 1..])).map_err(|_| BadRules::Form)?;
            let how = how.parse().map_err(|_| BadRules::Form)?;
            rules.with(&escape::bytes_of(&rule[..at]), Some(how))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
    #[test]
    fn a_text_that_is_no_list_is_refused() {
        let said =
            |text: &str| text.parse::<Rules>().map_or_else(|error| error.to_string(), |_| String::new());
        assert!(said("/a:b=stacked").starts_with("not rules as"), "{}", said("/a:b=stacked"));
        assert!(said("/a=quickly").starts_with("not rules as"));
        assert!(said(r"/a\b=stacked").contains("not an escape"));
        assert!(said("/=stacked").contains("write-path="));
    }

    proptest! {
        #[test]
        fn printed_rules_are_read_back(
            dirs in prop::collection::vec(prop::collection::vec(1_u8..=255, 1..12), 0..5),
            how in prop::sample::select(vec![WritePath::Auto, WritePath::Stacked, WritePath::Passthrough]),
        ) {
            let rules = dirs.iter().fold(Rules::default(), |rules, dir| rules.with(dir, Some(how)).unwrap_or(rules));
            prop_assert_eq!(rules.to_string().parse::<Rules>(), Ok(rules));
        }
    }
}
