//! Placement rules of a pool: which branches the one for a directory names.

use crate::command::Failed;
use fsstack_control::api::Rules;
use fsstack_pool::{RuleDir, escape};

/// The rule for a directory, and for what lies below it unless another rule is for that.
#[derive(Debug)]
pub(super) struct DirRule {
    /// Path from the pool's root, without a leading slash.
    dir: Vec<u8>,
    /// The directory as the rule has it.
    pub(super) shown: String,
    /// Branches that it names.
    branches: Vec<String>,
    strict: bool,
}

impl DirRule {
    /// True if a file on the branch, whose path is shown so, lies against the rule. One that names no branch of the pool is followed
    /// only if it is strict.
    pub(super) fn is_against(&self, branch: &str) -> bool {
        (self.strict || !self.branches.is_empty()) && !self.branches.iter().any(|named| named == branch)
    }
}

/// The rules of a pool.
///
/// # Errors
/// The daemon names a directory that is none.
pub(super) fn of(rules: &Rules) -> Result<Vec<DirRule>, Failed> {
    let rule = |rule: &fsstack_control::api::PlacementRule| {
        let bad = |why: String| Failed::Refused(format!("check: placement rule {}: {why}", rule.dir));
        let symbols = escape::unescape(rule.dir.as_bytes()).map_err(|error| bad(error.to_string()))?;
        let dir = RuleDir::new(&escape::bytes_of(&symbols)).map_err(|error| bad(error.to_string()))?;
        Ok(DirRule {
            dir: dir.path().to_vec(),
            shown: rule.dir.clone(),
            branches: rule.branches.clone(),
            strict: rule.strict,
        })
    };
    rules.rules.iter().map(rule).collect()
}

/// The index of the rule that applies in the directory at `path`, which begins with a slash or is empty: the innermost.
pub(super) fn innermost(rules: &[DirRule], path: &[u8]) -> Option<usize> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let is_in = |rule: &DirRule| {
        let rest = path.strip_prefix(rule.dir.as_slice());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/") || rule.dir.is_empty())
    };
    let holds = rules.iter().enumerate().filter(|(_, rule)| is_in(rule));
    holds.max_by_key(|(_, rule)| rule.dir.len()).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_rule_applies_and_names_are_compared_whole() {
        let rule = |dir: &str| DirRule {
            dir: dir.into(),
            shown: format!("/{dir}"),
            branches: vec!["/b".into()],
            strict: false,
        };
        let rules = [rule("films"), rule("films/new")];
        let found = |path: &str| innermost(&rules, path.as_bytes()).map(|at| rules[at].shown.clone());
        assert_eq!(found(""), None);
        assert_eq!(found("/filmsold"), None);
        assert_eq!(found("/films"), Some("/films".into()));
        assert_eq!(found("/films/newer"), Some("/films".into()));
        assert_eq!(found("/films/new/x"), Some("/films/new".into()));
        assert!(rules[0].is_against("/a") && !rules[0].is_against("/b"));
        assert_eq!(innermost(&[rule("")], b"/any"), Some(0));
        let nowhere = |strict| DirRule { branches: Vec::new(), strict, ..rule("x") };
        assert!(!nowhere(false).is_against("/a") && nowhere(true).is_against("/a"));
    }
}
