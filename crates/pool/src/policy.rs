//! Placement policies: which branches qualify, and in which order they are tried.
//!
//! A policy is a scope and a rank; the known names are rows of one table. Names mean what they mean in mergerfs, except
//! that mergerfs picks one branch and a policy here returns an order of attempts.

use std::fmt;

use crate::nearest::nearest;

/// Branches that qualify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All branches.
    AnyBranch,
    /// Branches that hold the parent directory already.
    HoldsParent,
    /// Branches that hold the parent first, then those that hold its parent, and so on to the root.
    DeepestParent,
}

/// Order in which qualifying branches are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rank {
    /// The order of the pool's branches.
    InOrder,
    /// Most bytes available first.
    MostFree,
    /// Fewest bytes available first.
    LeastFree,
    /// Fewest bytes used first.
    LeastUsed,
    /// Smallest used fraction first.
    LeastUsedPercent,
    /// Random, weighted by available bytes.
    RandomByFree,
    /// Random, all equal.
    Random,
    /// Latest change of the parent directory first.
    Newest,
    /// Like [`Rank::InOrder`]: mergerfs's `all` acts on every branch, but a new object is created once.
    All,
    /// No branch: each is rejected as read-only.
    NoneReadOnly,
    /// mhddfs's order: the first branch with room for its limit, then by free space. The limit replaces the floors.
    MhddfsLimit,
}

/// A scope and a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Which branches qualify.
    pub scope: Scope,
    /// In which order they are tried.
    pub rank: Rank,
}

const fn policy(scope: Scope, rank: Rank) -> Policy {
    Policy { scope, rank }
}

/// All named policies: mergerfs's 21, and mhddfs's.
#[rustfmt::skip]
pub const POLICIES: &[(&str, Policy, &str)] = {
    use Rank::*;
    use Scope::*;
    &[
        ("all",      policy(AnyBranch,     All),              "The first branch in order; as ff."),
        ("epall",    policy(HoldsParent,   All),              "The first that holds the parent; as epff."),
        ("epff",     policy(HoldsParent,   InOrder),          "The first that holds the parent."),
        ("eplfs",    policy(HoldsParent,   LeastFree),        "Of those that hold the parent, least space available."),
        ("eplus",    policy(HoldsParent,   LeastUsed),        "Of those that hold the parent, least space used."),
        ("epmfs",    policy(HoldsParent,   MostFree),         "Of those that hold the parent, most space available."),
        ("eppfrd",   policy(HoldsParent,   RandomByFree),     "Of those that hold the parent, by lot weighted by space available."),
        ("eprand",   policy(HoldsParent,   Random),           "Of those that hold the parent, by lot."),
        ("erofs",    policy(AnyBranch,     NoneReadOnly),     "None: answers that the file system is read-only."),
        ("ff",       policy(AnyBranch,     InOrder),          "The first branch in order."),
        ("lfs",      policy(AnyBranch,     LeastFree),        "Least space available, but above its floor."),
        ("lup",      policy(AnyBranch,     LeastUsedPercent), "Least space used, as part of the whole."),
        ("lus",      policy(AnyBranch,     LeastUsed),        "Least space used."),
        ("mfs",      policy(AnyBranch,     MostFree),         "Most space available."),
        ("mlimit",   policy(AnyBranch,     MhddfsLimit),      "The first with at least the limit available, else the roomiest (mhddfs)."),
        ("msplfs",   policy(DeepestParent, LeastFree),        "Holding most of the path, then least space available."),
        ("msplus",   policy(DeepestParent, LeastUsed),        "Holding most of the path, then least space used."),
        ("mspmfs",   policy(DeepestParent, MostFree),         "Holding most of the path, then most space available."),
        ("msppfrd",  policy(DeepestParent, RandomByFree),     "Holding most of the path, then by lot weighted by space available."),
        ("newest",   policy(HoldsParent,   Newest),           "Where the parent directory changed last."),
        ("pfrd",     policy(AnyBranch,     RandomByFree),     "By lot, weighted by space available."),
        ("rand",     policy(AnyBranch,     Random),           "By lot."),
    ]
};

/// A word that is no policy's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a placement policy{}", suggestion(*.nearest))]
pub struct UnknownPolicy {
    /// The word.
    pub name: String,
    /// The most similar policy name.
    pub nearest: Option<&'static str>,
}

fn suggestion(nearest: Option<&'static str>) -> String {
    match nearest {
        Some(name) => format!(": did you mean `{name}`?"),
        None => {
            let names: Vec<&str> = POLICIES.iter().map(|(name, ..)| *name).collect();
            format!(": write one of {}", names.join(", "))
        }
    }
}

/// Returns the policy called `name`.
pub fn by_name(name: &str) -> Result<Policy, UnknownPolicy> {
    match POLICIES.iter().find(|(known, ..)| *known == name) {
        Some((_, policy, _)) => Ok(*policy),
        None => {
            let nearest = nearest(name, POLICIES.iter().map(|(known, ..)| *known));
            Err(UnknownPolicy { name: name.to_owned(), nearest })
        }
    }
}

impl Policy {
    /// Name in the table, if it has one.
    pub fn name(self) -> Option<&'static str> {
        POLICIES.iter().find(|(_, policy, _)| *policy == self).map(|(name, ..)| *name)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => out.write_str(name),
            None => write!(out, "{:?} by {:?}", self.scope, self.rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn each_name_is_its_own_policy_and_the_table_is_sorted() {
        assert!(POLICIES.is_sorted_by(|(a, ..), (b, ..)| a < b));
        for (name, policy, doc) in POLICIES {
            assert_eq!(by_name(name), Ok(*policy));
            assert_eq!(policy.name(), Some(*name));
            assert!(doc.ends_with('.'));
        }
    }

    #[test]
    fn every_name_of_mergerfs_is_there() {
        let names = "all epall epff eplfs eplus epmfs eppfrd eprand erofs ff lfs lup lus mfs \
                     msplfs msplus mspmfs msppfrd newest pfrd rand";
        assert_eq!(names.split_whitespace().filter(|name| by_name(name).is_ok()).count(), 21);
    }

    #[test]
    fn a_mistyped_name_is_suggested() {
        expect!["`epmsf` is not a placement policy: did you mean `epmfs`?"]
            .assert_eq(&by_name("epmsf").unwrap_err().to_string());
        expect!["`fastest` is not a placement policy: write one of all, epall, epff, eplfs, eplus, epmfs, eppfrd, eprand, erofs, ff, lfs, lup, lus, mfs, mlimit, msplfs, msplus, mspmfs, msppfrd, newest, pfrd, rand"].assert_eq(&by_name("fastest").unwrap_err().to_string());
    }

    #[test]
    fn a_policy_without_a_name_says_what_it_does() {
        let unnamed = Policy { scope: Scope::DeepestParent, rank: Rank::Newest };
        assert_eq!(unnamed.to_string(), "DeepestParent by Newest");
    }
}
