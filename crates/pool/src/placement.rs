//! How something new in one directory is placed: by the pool's policy, or by the rule for the directory.
//!
//! A rule is followed in stages, each with a policy, branches and a floor. Targets come first, by the rule's policy and floor;
//! then the branches after `then=`; then, unless the rule is strict, all others by the pool's policy and their own floors, and at last
//! whatever the pool's policy takes, be it a target below the rule's floor. A last `any` of the rule's own policy is followed
//! where it is strict.
//!
//! A file with several hard links obeys the strict rules of all its names: only branches that all of them name take it. Apart from
//! that the rule for its first name ranks.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::branch_set::BranchSet;
use crate::candidate::{Candidate, Rejection};
use crate::chain::Chain;
use crate::ids::BranchIx;
use crate::ranking::{Ranking, rank};
use crate::rule_tree::ResolvedRule;
use crate::size::Floor;
use crate::turn::{Turn, turn};

/// Stage in which a branch is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No rule is for the directory.
    NoRule,
    /// It is a target of the rule.
    Target,
    /// It stands after `then=`, or a tier takes files of the targets there.
    Then,
    /// The rule does not name it, but is not strict.
    Other,
    /// Last resort: the policy's own, or a branch below the rule's floor.
    Last,
}

impl Stage {
    /// The stage in words, empty without a rule.
    pub fn words(self) -> &'static str {
        match self {
            Self::NoRule => "",
            Self::Target => "target of the rule",
            Self::Then => "after then= of the rule, or of its tier",
            Self::Other => "not of the rule",
            Self::Last => "last resort",
        }
    }
}

/// How something new in one directory is placed.
#[derive(Clone, Copy, Debug)]
pub struct DirPlacement<'a> {
    create: &'a Chain,
    rule: Option<(&'a ResolvedRule, usize)>,
    /// In place of every policy.
    policy: Option<&'a Chain>,
    /// Branches that no strict rule forbids.
    only: BranchSet,
}

struct Step<'a> {
    stage: Stage,
    chain: Cow<'a, Chain>,
    branches: BranchSet,
    floor: Option<Floor>,
}

impl Step<'_> {
    fn candidate(&self, candidate: &Candidate) -> Candidate {
        Candidate { floor: self.floor.unwrap_or(candidate.floor), ..*candidate }
    }
}

impl<'a> DirPlacement<'a> {
    /// Placement by the pool's policy `create`, or by a rule and how many names below the rule's directory the directory is.
    pub fn new(create: &'a Chain, rule: Option<(&'a ResolvedRule, usize)>) -> Self {
        let strict = rule.filter(|(rule, _)| rule.rule.strict);
        let only = strict.map_or(BranchSet::ALL, |(rule, _)| rule.home());
        Self { create, rule, policy: None, only }
    }

    /// The same for a file that has another name, placed as in `other`: the strict rule for that holds too.
    #[must_use]
    pub fn also(self, other: &DirPlacement<'_>) -> Self {
        Self { only: self.only.and(other.only), ..self }
    }

    /// The same, with this policy in place of each: for moves, which have one of their own.
    #[must_use]
    pub fn by_policy(self, policy: &'a Chain) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// The rule.
    pub fn rule(&self) -> Option<&'a ResolvedRule> {
        self.rule.map(|(rule, _)| rule)
    }

    /// The policy of the first stage.
    pub fn chain(&self) -> &'a Chain {
        match (self.policy, self.rule) {
            (Some(policy), _) => policy,
            (None, None) => self.create,
            (None, Some((rule, depth))) => match rule.rule.depth {
                None => &rule.as_is,
                Some(spread) if depth < spread as usize => &rule.spread,
                Some(_) => &rule.together,
            },
        }
    }

    /// Branches that objects of the directory belong on: those that the rule names, as far as no strict rule forbids them.
    pub fn home(&self) -> BranchSet {
        let named = self.rule().map_or(BranchSet::ALL, ResolvedRule::home).and(self.only);
        if named.is_empty() { self.only } else { named }
    }

    /// Branches that no strict rule forbids.
    pub fn allowed(&self) -> BranchSet {
        self.only
    }

    /// True if an object of the directory on `branch` lies against a rule.
    pub fn is_against(&self, branch: BranchIx) -> bool {
        !self.home().contains(branch)
    }

    /// True if a strict rule takes nothing on `branch`.
    pub fn forbids(&self, branch: BranchIx) -> bool {
        !self.only.contains(branch)
    }

    /// Floor of `branch` for objects of the directory, where it has `own` for others.
    pub fn floor(&self, branch: BranchIx, own: Floor) -> Floor {
        let rules = self.rule().filter(|rule| rule.home().contains(branch));
        rules.and_then(|rule| rule.rule.floor).unwrap_or(own)
    }

    /// True if `candidate` has room for `bytes` and the floor that it keeps in its stage.
    pub fn fits(&self, candidate: &Candidate, bytes: u64) -> bool {
        let floor = match self.turn(candidate) {
            Ok((Stage::Target | Stage::Then, _)) => self.floor(candidate.branch, candidate.floor),
            Ok((Stage::Last | Stage::Other | Stage::NoRule, _)) | Err(_) => candidate.floor,
        };
        bytes.saturating_add(floor.bytes_of(candidate.space.total)) <= candidate.space.available
    }

    /// True if `branch` is taken below its floor where no other branch is left (`any`).
    pub fn is_last_resort(&self, branch: BranchIx) -> bool {
        self.steps().iter().any(|step| step.chain.has_last_resort() && step.branches.contains(branch))
    }

    /// True if a candidate's `deepest` is used.
    pub fn needs_depth(&self) -> bool {
        self.chains().any(Chain::needs_depth)
    }

    /// True if a candidate's `parent_mtime` is used.
    pub fn needs_mtime(&self) -> bool {
        self.chains().any(Chain::needs_mtime)
    }

    fn chains(&self) -> impl Iterator<Item = &'a Chain> {
        let follows = self.policy.is_none() && self.rule.is_some();
        std::iter::once(self.chain()).chain(follows.then_some(self.create))
    }

    fn steps(&self) -> SmallVec<[Step<'a>; 4]> {
        let mut steps = SmallVec::new();
        let mut add = |stage, chain, branches: BranchSet, floor| {
            steps.push(Step { stage, chain, branches: branches.and(self.only), floor });
        };
        let Some(rule) = self.rule() else {
            add(Stage::NoRule, Cow::Borrowed(self.chain()), BranchSet::ALL, None);
            return steps;
        };
        let floor = rule.rule.floor;
        add(Stage::Target, Cow::Borrowed(self.chain()), rule.targets, floor);
        if !rule.then.is_empty() {
            add(Stage::Then, Cow::Borrowed(self.chain()), rule.then, floor);
        }
        let others = self.policy.unwrap_or(self.create);
        let own = rule.rule.policy.as_ref().filter(|own| own.has_last_resort());
        match (rule.rule.strict, own) {
            (false, _) => {
                if rule.targets != BranchSet::ALL {
                    let plain = Cow::Owned(others.without_last_resort());
                    add(Stage::Other, plain, rule.home().others(), None);
                }
                add(Stage::Last, Cow::Borrowed(others), BranchSet::ALL, None);
            }
            (true, Some(own)) => {
                add(Stage::Last, Cow::Borrowed(self.policy.unwrap_or(own)), rule.home(), floor)
            }
            (true, None) => {}
        }
        steps
    }

    /// Ranks `candidates`. `random` is called only for random policies.
    pub fn rank(&self, candidates: &[Candidate], random: &mut dyn FnMut() -> u64) -> Ranking {
        if self.rule.is_none() && self.only == BranchSet::ALL {
            return rank(self.chain(), candidates, random);
        }
        let mut ranking = Ranking::default();
        let mut reasons: SmallVec<[Rejection; 16]> =
            SmallVec::from_elem(Rejection::PathMissing, candidates.len());
        let mut judged: SmallVec<[bool; 16]> = SmallVec::from_elem(false, candidates.len());
        for step in self.steps() {
            let has_turn = |candidate: &&Candidate| {
                step.branches.contains(candidate.branch) && !ranking.order.contains(&candidate.branch)
            };
            let these: SmallVec<[Candidate; 16]> =
                candidates.iter().filter(has_turn).map(|candidate| step.candidate(candidate)).collect();
            let part = rank(&step.chain, &these, random);
            ranking.order.extend(part.order);
            for (branch, why) in part.refused {
                if let Some(at) = candidates.iter().position(|candidate| candidate.branch == branch) {
                    reasons[at] = reasons[at].max(why);
                    judged[at] = true;
                }
            }
        }
        for (at, candidate) in candidates.iter().enumerate() {
            if !ranking.order.contains(&candidate.branch) {
                let why = if judged[at] { reasons[at] } else { Rejection::Excluded };
                ranking.refused.push((candidate.branch, why));
            }
        }
        ranking
    }

    /// Reason for the rank of `candidate`, by the same checks as [`Self::rank`]: the stage, and the policy's turn.
    ///
    /// # Errors
    /// The most specific reason, if no stage takes it.
    pub fn turn(&self, candidate: &Candidate) -> Result<(Stage, Turn), Rejection> {
        let mut refused = None;
        for step in self.steps() {
            if !step.branches.contains(candidate.branch) {
                continue;
            }
            match turn(&step.chain, &step.candidate(candidate)) {
                Ok(turn) => return Ok((step.stage, turn)),
                Err(why) => refused = Some(refused.map_or(why, |before: Rejection| before.max(why))),
            }
        }
        Err(refused.unwrap_or(Rejection::Excluded))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;
    use crate::branch::BranchMode;
    use crate::placement_rule::PlacementRules;
    use crate::rule_tree::{NamedBranch, RuleTree};
    use crate::space::Space;
    use crate::tier::Tiers;

    const GIB: u64 = 1 << 30;

    fn candidate(branch: u16, gib: u64) -> Candidate {
        Candidate {
            branch: BranchIx(branch),
            mode: BranchMode::ReadWrite,
            mounted_read_only: false,
            reachable: true,
            holds_parent: branch == 3,
            deepest: usize::from(branch == 3),
            parent_mtime: None,
            space: Space { total: 100 * GIB, available: gib * GIB, ..Space::default() },
            floor: Floor::Bytes(4 * GIB),
            min_inodes: 0,
        }
    }

    /// Branches 0 and 1 are fast, 2 and 3 slow, 4 has no class.
    fn tree(rule: &str, create: &Chain) -> RuleTree {
        let (fast, slow) = ("fast".parse().unwrap(), "slow".parse().unwrap());
        let class = |at| {
            if at < 2 {
                Some(&fast)
            } else if at < 4 {
                Some(&slow)
            } else {
                None
            }
        };
        let paths = ["/f0", "/f1", "/s2", "/s3", "/x4"];
        let branches: Vec<NamedBranch<'_>> = (0..5)
            .map(|at| NamedBranch {
                branch: BranchIx(at),
                path: Path::new(paths[usize::from(at)]),
                class: class(at),
            })
            .collect();
        RuleTree::new(&rule.parse::<PlacementRules>().unwrap(), create, &Tiers::default(), &branches)
    }

    /// The order for a directory `depth` names below the rule's.
    fn check(rule: &str, depth: usize, free: [u64; 5], expected: Expect) {
        let create: Chain = "mfs>any".parse().unwrap();
        let tree = tree(rule, &create);
        let names: Vec<&[u8]> = std::iter::once(&b"d"[..]).chain((0..depth).map(|_| &b"x"[..])).collect();
        let placement = DirPlacement::new(&create, tree.find(names.into_iter()));
        let candidates: Vec<Candidate> = (0..).zip(free).map(|(at, gib)| candidate(at, gib)).collect();
        let ranking = placement.rank(&candidates, &mut || 7);
        let shown: Vec<String> = ranking.order.iter().map(ToString::to_string).collect();
        let refused: Vec<String> = ranking.refused.iter().map(|(at, why)| format!("{at} {why:?}")).collect();
        expected.assert_eq(&[shown, refused].concat().join(", "));
        for candidate in &candidates {
            let refusal = ranking.refused.iter().find(|(at, _)| *at == candidate.branch).map(|(_, why)| *why);
            assert_eq!(placement.turn(candidate).err(), refusal, "{candidate:?}");
        }
    }

    #[test]
    fn below_its_floor_only_a_branch_of_a_stage_with_any_is_taken() {
        let create: Chain = "mfs".parse().unwrap();
        for (rule, expected) in [("/d=mfs>any@fast;strict", [0, 1].as_slice()), ("/d=mfs@fast;strict", &[])] {
            let tree = tree(rule, &create);
            let placement = DirPlacement::new(&create, tree.find([&b"d"[..]].into_iter()));
            let taken: Vec<u16> = (0..5).filter(|at| placement.is_last_resort(BranchIx(*at))).collect();
            assert_eq!(taken, expected, "{rule}");
        }
    }

    #[test]
    fn targets_then_the_next_then_all_others() {
        let free = [10, 20, 30, 40, 50];
        check("/d=@fast", 0, free, expect!["1, 0, 4, 3, 2"]);
        check("/d=ff@fast;then=slow", 0, free, expect!["0, 1, 2, 3, 4"]);
        check("/d=ff@fast+/x4;then=slow", 0, free, expect!["0, 1, 4, 2, 3"]);
        check("/d=@fast;then=/s3;strict", 0, free, expect!["1, 0, 3, 2 Excluded, 4 Excluded"]);
        check("/d=ff", 0, free, expect!["0, 1, 2, 3, 4"]);
        check("/other=ff", 0, free, expect!["4, 3, 2, 1, 0"]);
        check(
            "/d=@none;strict",
            0,
            free,
            expect!["0 Excluded, 1 Excluded, 2 Excluded, 3 Excluded, 4 Excluded"],
        );
    }

    #[test]
    fn a_floor_of_the_rule_is_kept_until_nothing_else_is_left() {
        // The first fast one is below the rule's floor: it comes last, but before nothing.
        check("/d=@fast;floor=15G", 0, [10, 20, 30, 40, 50], expect!["1, 4, 3, 2, 0"]);
        check(
            "/d=@fast;floor=15G;strict",
            0,
            [10, 20, 3, 3, 3],
            expect!["1, 0 TooFull, 2 Excluded, 3 Excluded, 4 Excluded"],
        );
        check(
            "/d=mfs>any@fast;floor=15G;strict",
            0,
            [10, 20, 3, 3, 3],
            expect!["1, 0, 2 Excluded, 3 Excluded, 4 Excluded"],
        );
        // The pool's own floor is 4 GiB, and its policy's last resort goes below it.
        check("/d=@fast;floor=1G", 0, [2, 1, 3, 9, 3], expect!["0, 1, 3, 2, 4"]);
    }

    #[test]
    fn directories_are_spread_down_to_the_depth_and_stay_together_below() {
        let free = [10, 20, 30, 25, 50];
        check("/d=mfs@slow;depth=1", 0, free, expect!["2, 3, 4, 1, 0"]);
        check("/d=mfs@slow;depth=1", 1, free, expect!["3, 2, 4, 1, 0"]);
        check("/d=mspmfs@slow;depth=2", 1, free, expect!["2, 3, 4, 1, 0"]);
        // Together, unless there is no room.
        check("/d=mfs@slow;depth=1", 5, [10, 20, 30, 3, 50], expect!["2, 4, 1, 0, 3"]);
    }

    #[test]
    fn the_strict_rules_for_all_names_hold_and_the_first_ranks() {
        let create: Chain = "ff".parse().unwrap();
        let tree = tree("/d=@fast+/s2:/e=@/f1+slow;strict:/g=@fast;strict:/h=@slow;strict", &create);
        let of = |names: &[&str]| {
            let at = |name: &&str| DirPlacement::new(&create, tree.find([name.as_bytes()].into_iter()));
            let placement = names.iter().map(at).reduce(|all, other| all.also(&other)).unwrap();
            let candidates: Vec<Candidate> = (0..5).map(|at| candidate(at, 90)).collect();
            let order = placement.rank(&candidates, &mut || 7).order;
            assert!(order.iter().all(|at| !placement.forbids(*at)));
            let home = (0..5).filter(|at| !placement.is_against(BranchIx(*at))).collect::<Vec<u16>>();
            (order.iter().map(|at| at.0).collect::<Vec<u16>>(), home)
        };
        let all = vec![0, 1, 2, 3, 4];
        assert_eq!(of(&["x", "x"]), (all.clone(), all));
        assert_eq!(of(&["x", "e"]), (vec![1, 2, 3], vec![1, 2, 3]));
        assert_eq!(of(&["d", "e"]), (vec![1, 2, 3], vec![1, 2]));
        assert_eq!(of(&["e", "g"]), (vec![1], vec![1]));
        // The strict rule is followed where the other one names nothing that it allows.
        assert_eq!(of(&["d", "h", "h"]), (vec![2, 3], vec![2]));
        assert_eq!(of(&["g", "h"]), (vec![], vec![]));
    }

    proptest! {
        #[test]
        fn a_branch_comes_once_and_a_strict_rule_names_all_that_come(
            rule in prop::sample::select(vec![
                "/d=@fast", "/d=@fast;strict", "/d=lfs@/s2;then=fast;floor=20G", "/d=pool;floor=30%;strict",
                "/d=pfrd>any@slow+/x4;depth=1;strict", "/d=epmfs@slow", "/d=@none;strict", "/d=@none",
            ]),
            depth in 0_usize..3, free in prop::collection::vec(0_u64..100, 5), seed: u64,
        ) {
            let create = Chain::default_create();
            let tree = tree(rule, &create);
            let names = vec![&b"d"[..]; depth + 1];
            let placement = DirPlacement::new(&create, tree.find(names.into_iter()));
            let candidates: Vec<Candidate> = (0..).zip(free).map(|(at, gib)| candidate(at, gib)).collect();
            let Ranking { order, refused } = placement.rank(&candidates, &mut || seed);
            let mut all: Vec<u16> = order.iter().chain(refused.iter().map(|(at, _)| at)).map(|at| at.0).collect();
            all.sort_unstable();
            prop_assert_eq!(all, [0, 1, 2, 3, 4]);
            prop_assert!(!order.iter().any(|at| placement.forbids(*at)));
            // Those that belong come before those that do not, unless they are below the rule's floor.
            let is_home = |at: &BranchIx| !placement.is_against(*at);
            let first_other = order.iter().position(|at| !is_home(at)).unwrap_or(order.len());
            for at in order.iter().skip(first_other).filter(|at| is_home(at)) {
                let (stage, _) = placement.turn(&candidates[at.index()]).unwrap();
                prop_assert_eq!(stage, Stage::Last);
            }
            // Where a rule is not strict, nothing is refused that the pool alone would take.
            if !rule.ends_with("strict") {
                let plain = rank(&create, &candidates, &mut || seed);
                prop_assert_eq!(order.len(), plain.order.len());
            }
        }
    }
}
