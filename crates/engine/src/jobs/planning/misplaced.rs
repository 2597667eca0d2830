//! Targets of files that lie against their placement rules: what the rule would choose for a new file of that size now, with what was
//! planned before counted as there. Branches that the rule does not name take nothing.

use std::collections::HashMap;

use fsstack_pool::{BranchIx, Candidate, DirPlacement, Ino};

use super::Amount;
use super::list::{ListedFile, MovingList};

/// A directory in which a file has its first name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dir {
    /// Its number.
    pub ino: Ino,
    /// Number of names from the root to it.
    pub depth: usize,
}

/// A plan in the making.
#[derive(Debug, Default)]
pub struct Misplaced {
    list: MovingList,
    /// Bytes that branches are to take.
    planned: HashMap<BranchIx, u64>,
    /// The directory whose files come, and facts about the branches as they will be.
    dir: Option<(Ino, Vec<Candidate>)>,
}

impl Misplaced {
    /// Plans a file on the branch `from`, of a directory of which `facts` tells what the branches are like. False: no branch that its
    /// rule names takes it, with its floor.
    pub fn offer(
        &mut self,
        (file, from): (ListedFile, BranchIx),
        (placement, dir): (&DirPlacement<'_>, Dir),
        facts: impl FnOnce() -> Vec<Candidate>,
        random: &mut dyn FnMut() -> u64,
    ) -> bool {
        let known = self.dir.take().filter(|(known, _)| *known == dir.ino).map(|(_, facts)| facts);
        let mut facts = known.unwrap_or_else(|| self.with_planned(facts()));
        let ranking = placement.rank(&facts, random);
        let takes = |at: &&BranchIx| {
            let facts = facts.iter().find(|facts| facts.branch == **at);
            **at != from
                && !placement.is_against(**at)
                && facts.is_some_and(|facts| placement.fits(facts, file.bytes))
        };
        let to = ranking.order.iter().find(takes).copied();
        if let Some(known) = facts.iter_mut().find(|facts| Some(facts.branch) == to) {
            known.space = known.space.less(file.bytes);
            // The next one may keep it company.
            known.holds_parent = true;
            known.deepest = dir.depth;
            *self.planned.entry(known.branch).or_default() += file.bytes;
        }
        self.dir = Some((dir.ino, facts));
        to.map(|to| self.list.plan(file, from, to)).is_some()
    }

    /// Files of another branch come: what was known of a directory may have changed.
    pub fn begin_branch(&mut self) {
        self.dir = None;
    }

    /// Files and bytes that are planned.
    pub fn amount(&self) -> Amount {
        self.list.amount()
    }

    /// The plan.
    pub fn finish(self) -> MovingList {
        self.list
    }

    fn with_planned(&self, mut facts: Vec<Candidate>) -> Vec<Candidate> {
        for known in &mut facts {
            known.space = known.space.less(self.planned.get(&known.branch).copied().unwrap_or(0));
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fsstack_pool::{BranchMode, Chain, Floor, NamedBranch, PlacementRules, RuleTree, Space, Tiers};
    use proptest::prelude::*;

    use super::super::list::tests::listed;
    use super::*;

    const PATHS: [&str; 4] = ["/a", "/b", "/c", "/d"];
    const FLOOR: u64 = 50;

    fn candidates(available: &[u64]) -> Vec<Candidate> {
        let candidate = |(at, available): (usize, &u64)| Candidate {
            branch: BranchIx::at(at).unwrap(),
            mode: BranchMode::ReadWrite,
            mounted_read_only: false,
            reachable: true,
            holds_parent: at == 0,
            deepest: usize::from(at == 0),
            parent_mtime: None,
            space: Space { total: 1000, available: *available, free: *available, ..Space::default() },
            floor: Floor::Bytes(FLOOR),
            min_inodes: 0,
        };
        available.iter().enumerate().map(candidate).collect()
    }

    fn rules(text: &str, create: &Chain) -> RuleTree {
        let branch = |(at, path): (usize, &&'static str)| NamedBranch {
            branch: BranchIx::at(at).unwrap(),
            path: Path::new(*path),
            class: None,
        };
        let branches: Vec<NamedBranch<'_>> = PATHS.iter().enumerate().map(branch).collect();
        RuleTree::new(&text.parse::<PlacementRules>().unwrap(), create, &Tiers::default(), &branches)
    }

    proptest! {
        #[test]
        fn files_go_to_branches_that_their_rule_names_and_none_passes_its_floor(
            available in prop::collection::vec(0_u64..1000, 4),
            files in prop::collection::vec((0_u64..3, 1_u64..200), 0..60),
            rule in prop::sample::select(vec!["/d=mfs@/b+/c;strict", "/d=ff@/c", "/d=mfs@/d;floor=200;strict"]),
        ) {
            let create: Chain = "mfs".parse().unwrap();
            let tree = rules(rule, &create);
            let placement = DirPlacement::new(&create, tree.find([&b"d"[..]].into_iter()));
            let mut plan = Misplaced::default();
            let mut refused = 0;
            for (n, (dir, bytes)) in files.iter().enumerate() {
                let dir = Dir { ino: Ino(100 + dir), depth: 1 };
                let facts = || candidates(&available);
                let is_planned = plan.offer((listed(n as u64, *bytes), BranchIx(0)), (&placement, dir), facts, &mut || 7);
                refused += usize::from(!is_planned);
            }
            let amount = plan.amount();
            let list = plan.finish();
            prop_assert_eq!(list.moves().len() + refused, files.len());
            prop_assert_eq!(amount, list.amount());
            let floor = if rule.contains("floor") { 200 } else { FLOOR };
            for share in list.shares() {
                prop_assert!(!placement.is_against(share.branch));
                prop_assert!(share.bytes + floor <= available[usize::from(share.branch.0)]);
            }
        }
    }
}
