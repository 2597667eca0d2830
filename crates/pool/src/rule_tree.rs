//! Placement rules of a pool with these branches, found by the names that lead to a directory.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::branch_set::BranchSet;
use crate::chain::Chain;
use crate::class::Class;
use crate::ids::BranchIx;
use crate::placement_rule::{PlacementRule, PlacementRules, Target};
use crate::tier::{Tier, Tiers};

/// A branch as rules name it.
#[derive(Clone, Copy, Debug)]
pub struct NamedBranch<'a> {
    /// Its slot.
    pub branch: BranchIx,
    /// Its path.
    pub path: &'a Path,
    /// Its class.
    pub class: Option<&'a Class>,
}

impl Target {
    /// The branches that it names.
    pub fn branches(&self, all: &[NamedBranch<'_>]) -> BranchSet {
        let is_it = |branch: &&NamedBranch<'_>| match self {
            Self::Class(class) => branch.class == Some(class),
            Self::Branch(path) => branch.path == path,
        };
        all.iter().filter(is_it).map(|branch| branch.branch).collect()
    }
}

/// A rule whose targets are branches.
#[derive(Clone, Debug)]
pub struct ResolvedRule {
    /// The rule.
    pub rule: Arc<PlacementRule>,
    pub(crate) targets: BranchSet,
    pub(crate) then: BranchSet,
    /// Its policy without the last resort: as it is, for directories that are spread, and for those that stay together.
    pub(crate) as_is: Chain,
    pub(crate) spread: Chain,
    pub(crate) together: Chain,
}

impl ResolvedRule {
    fn new(rule: &Arc<PlacementRule>, create: &Chain, tiers: &Tiers, all: &[NamedBranch<'_>]) -> Self {
        let set = |targets: &[Target]| {
            targets.iter().fold(BranchSet::EMPTY, |set, target| set.or(target.branches(all)))
        };
        let as_is = rule.policy.as_ref().unwrap_or(create).without_last_resort();
        let targets = set(&rule.targets);
        let then = match rule.strict || !rule.then.is_empty() {
            true => set(&rule.then),
            // A tier takes its files down: there they lie by the rule, and new ones go there when its targets are full.
            false => below(targets, tiers, all),
        };
        Self {
            targets: if rule.targets.is_empty() { BranchSet::ALL } else { targets },
            then,
            spread: as_is.spread(),
            together: as_is.together(),
            as_is,
            rule: rule.clone(),
        }
    }

    /// Branches that objects of the directory belong on: its targets, and those after `then=` or of the targets' tier.
    pub fn home(&self) -> BranchSet {
        self.targets.or(self.then)
    }
}

/// The branches that tiers take files of `above` to.
fn below(above: BranchSet, tiers: &Tiers, all: &[NamedBranch<'_>]) -> BranchSet {
    let mut reached = above;
    // Each turn comes one tier further.
    for _ in tiers.iter() {
        let leads =
            |tier: &&Arc<Tier>| !Target::Class(tier.fast.clone()).branches(all).and(reached).is_empty();
        let slow = tiers.iter().filter(leads).map(|tier| Target::Class(tier.slow.clone()).branches(all));
        reached = slow.fold(reached, BranchSet::or);
    }
    if reached == above { BranchSet::EMPTY } else { reached.and(above.others()) }
}

/// The rules of a pool, as a tree of names.
#[derive(Clone, Debug, Default)]
pub struct RuleTree {
    rules: Vec<ResolvedRule>,
    /// The first one is the root, unless there is no rule.
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    rule: Option<usize>,
    below: HashMap<Box<[u8]>, usize>,
}

impl RuleTree {
    /// `rules` in a pool of `branches` with the policy `create` and these tiers.
    pub fn new(rules: &PlacementRules, create: &Chain, tiers: &Tiers, branches: &[NamedBranch<'_>]) -> Self {
        let mut tree = Self::default();
        for rule in rules.iter() {
            if tree.nodes.is_empty() {
                tree.nodes.push(Node::default());
            }
            let mut at = 0;
            for name in rule.dir.names() {
                let next = tree.nodes.len();
                at = *tree.nodes[at].below.entry(name.into()).or_insert(next);
                if at == next {
                    tree.nodes.push(Node::default());
                }
            }
            tree.nodes[at].rule = Some(tree.rules.len());
            tree.rules.push(ResolvedRule::new(rule, create, tiers, branches));
        }
        tree
    }

    /// True if there is no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// All rules, by path.
    pub fn rules(&self) -> &[ResolvedRule] {
        &self.rules
    }

    /// The innermost rule for the directory that `names` lead to from the root, and how many names below the rule's directory it is.
    pub fn find<'n>(&self, names: impl ExactSizeIterator<Item = &'n [u8]>) -> Option<(&ResolvedRule, usize)> {
        let all = names.len();
        let mut node = self.nodes.first()?;
        let mut found = node.rule.map(|rule| (rule, all));
        for (above, name) in names.enumerate() {
            let Some(next) = node.below.get(name).and_then(|next| self.nodes.get(*next)) else { break };
            node = next;
            found = node.rule.map(|rule| (rule, all - above - 1)).or(found);
        }
        found.and_then(|(rule, depth)| Some((self.rules.get(rule)?, depth)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rule_dir::RuleDir;

    fn tree(rules: &str) -> RuleTree {
        RuleTree::new(&rules.parse().unwrap(), &Chain::default_create(), &Tiers::default(), &[])
    }

    fn found(tree: &RuleTree, path: &str) -> Option<(String, usize)> {
        let names: Vec<&[u8]> = path.split('/').filter(|name| !name.is_empty()).map(str::as_bytes).collect();
        tree.find(names.into_iter()).map(|(rule, depth)| (rule.rule.dir.to_string(), depth))
    }

    #[test]
    fn the_innermost_rule_is_found_with_the_depth_below_it() {
        let tree = tree("/a=ff:/a/b/c=lfs:/ab=mfs");
        let check = |path: &str, dir: &str, depth| {
            assert_eq!(found(&tree, path), Some((dir.to_owned(), depth)), "{path}")
        };
        check("a", "/a", 0);
        check("a/b", "/a", 1);
        check("a/b/c", "/a/b/c", 0);
        check("a/b/c/d/e", "/a/b/c", 2);
        check("a/x/b/c", "/a", 3);
        check("ab/c", "/ab", 1);
        assert_eq!((found(&tree, "abc"), found(&tree, "")), (None, None));
        assert_eq!(found(&RuleTree::default(), "a"), None);
        assert_eq!(found(&super::tests::tree("/=ff:/a=lfs"), "b/c"), Some(("/".to_owned(), 2)));
    }

    proptest! {
        #[test]
        fn the_tree_finds_what_a_look_at_each_rule_finds(
            dirs in prop::collection::vec("(/[ab]){0,4}", 0..12), path in "(/[abc]){0,6}",
        ) {
            let rule = |dir: &String| format!("{}=ff", if dir.is_empty() { "/" } else { dir });
            let tree = tree(&dirs.iter().map(rule).collect::<Vec<_>>().join(":"));
            let holds = |dir: &&String| path.strip_prefix(dir.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            let innermost = dirs.iter().filter(holds).max_by_key(|dir| dir.len());
            let names = |path: &str| path.matches('/').count();
            let expected = innermost.map(|dir| {
                (RuleDir::new(format!("/{dir}").as_bytes()).unwrap().to_string(), names(&path) - names(dir))
            });
            prop_assert_eq!(found(&tree, &path), expected);
        }
    }
}
