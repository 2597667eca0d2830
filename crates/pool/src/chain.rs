//! Chains of policies: `epmfs>mfs>any`.

use std::fmt;
use std::str::FromStr;

use smallvec::{SmallVec, smallvec};

use crate::policy::{Policy, Rank, Scope, UnknownPolicy, by_name};
use crate::size::{Floor, SizeError};

/// Placement of new objects: each policy adds the branches it accepts after those of the policies before it.
///
/// Written with `>` between policies. `mlimit(8G)` gives that policy its limit. A final `any` is the last resort:
/// branches rejected only because they are below their floor are tried too, most free space first. So no caller gets
/// ENOSPC while a branch has space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    policies: SmallVec<[Policy; 4]>,
    limit: Floor,
    last_resort: bool,
}

/// Reason why a text is not a chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// A name is missing at the start, at the end, or between two `>`.
    #[error("a placement policy is missing in `{0}`: write one name, as mfs, or several, as epmfs>mfs")]
    Missing(String),
    /// `any` elsewhere than at the end, after a policy.
    #[error("`any` goes last and after a policy in `{0}`: write for example mfs>any")]
    AnyNotLast(String),
    /// An unknown policy name.
    #[error(transparent)]
    Unknown(#[from] UnknownPolicy),
    /// A malformed limit.
    #[error("mlimit: {0}")]
    Limit(#[from] SizeError),
    /// Two different limits.
    #[error("`{0}` has two limits: write mlimit once")]
    TwoLimits(String),
}

const LAST_RESORT: &str = "any";
const MLIMIT: Policy = Policy { scope: Scope::AnyBranch, rank: Rank::MhddfsLimit };

impl Chain {
    /// Default of a pool: `mspmfs>any`. It keeps related files together, prefers the branch with the most free space,
    /// and places a file as long as any branch can be written to.
    pub fn default_create() -> Self {
        let policy = Policy { scope: Scope::DeepestParent, rank: Rank::MostFree };
        Self { last_resort: true, ..Self::only(policy) }
    }

    /// A single policy without a last resort.
    pub fn only(policy: Policy) -> Self {
        Self { policies: smallvec![policy], limit: Floor::MLIMIT_DEFAULT, last_resort: false }
    }

    /// mhddfs's policy with this limit.
    pub fn mlimit(limit: Floor) -> Self {
        Self { limit, ..Self::only(MLIMIT) }
    }

    /// The policies, in order; at least one.
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// The limit of `mlimit`, where that is among the policies.
    pub fn limit(&self) -> Floor {
        self.limit
    }

    /// Whether branches under their floor are tried at the end.
    pub fn has_last_resort(&self) -> bool {
        self.last_resort
    }

    /// The same policies without a last resort.
    #[must_use]
    pub fn without_last_resort(&self) -> Self {
        Self { last_resort: false, ..self.clone() }
    }

    /// The same ranks, over all branches.
    #[must_use]
    pub fn spread(&self) -> Self {
        self.with_scope(Scope::AnyBranch)
    }

    /// The same ranks, with branches that hold most of the path first.
    #[must_use]
    pub fn together(&self) -> Self {
        self.with_scope(Scope::DeepestParent)
    }

    fn with_scope(&self, scope: Scope) -> Self {
        let policies = self.policies.iter().map(|policy| Policy { scope, ..*policy }).collect();
        Self { policies, ..self.clone() }
    }

    /// True if a candidate's `deepest` is used; finding it may cost system calls.
    pub fn needs_depth(&self) -> bool {
        self.policies.iter().any(|policy| policy.scope == Scope::DeepestParent)
    }

    /// True if a candidate's `holds_parent` is used.
    pub fn needs_parent(&self) -> bool {
        self.policies.iter().any(|policy| policy.scope == Scope::HoldsParent)
    }

    /// True if a candidate's `parent_mtime` is used.
    pub fn needs_mtime(&self) -> bool {
        self.policies.iter().any(|policy| policy.rank == Rank::Newest)
    }
}

/// Returns the limit in `mlimit(8G)`.
fn limit_of(word: &str) -> Option<&str> {
    word.strip_prefix("mlimit(")?.strip_suffix(')')
}

impl FromStr for Chain {
    type Err = ChainError;

    fn from_str(text: &str) -> Result<Self, ChainError> {
        let mut policies = SmallVec::new();
        let mut limit = None;
        let mut last_resort = false;
        for word in text.split('>').map(str::trim) {
            if word.is_empty() {
                return Err(ChainError::Missing(text.to_owned()));
            }
            if last_resort || (word == LAST_RESORT && policies.is_empty()) {
                return Err(ChainError::AnyNotLast(text.to_owned()));
            }
            if word == LAST_RESORT {
                last_resort = true;
                continue;
            }
            let policy = match limit_of(word) {
                Some(_) => MLIMIT,
                None => by_name(word)?,
            };
            if policy == MLIMIT {
                let given = limit_of(word).map_or(Ok(Floor::MLIMIT_DEFAULT), Floor::from_mlimit)?;
                if limit.replace(given).is_some_and(|before| before != given) {
                    return Err(ChainError::TwoLimits(text.to_owned()));
                }
            }
            policies.push(policy);
        }
        Ok(Self { policies, limit: limit.unwrap_or(Floor::MLIMIT_DEFAULT), last_resort })
    }
}

/// Prints the form that the parser reads back as the same value.
impl fmt::Display for Chain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, policy) in self.policies.iter().enumerate() {
            if 0 < at {
                out.write_str(">")?;
            }
            write!(out, "{policy}")?;
            if *policy == MLIMIT && self.limit != Floor::MLIMIT_DEFAULT {
                write!(out, "({})", self.limit)?;
            }
        }
        if self.last_resort { write!(out, ">{LAST_RESORT}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;
    use crate::policy::POLICIES;

    fn check(text: &str, expected: Expect) {
        expected.assert_eq(&text.parse::<Chain>().map_or_else(|e| e.to_string(), |chain| chain.to_string()));
    }

    #[test]
    fn chains() {
        check("mfs", expect!["mfs"]);
        check(" epmfs > mfs ", expect!["epmfs>mfs"]);
        check("epmfs>mfs>any", expect!["epmfs>mfs>any"]);
        check("mlimit", expect!["mlimit"]);
        check("mlimit(4096M)", expect!["mlimit"]);
        check("epff>mlimit(20)>any", expect!["epff>mlimit(20%)>any"]);
        check("mlimit(10M)", expect!["mlimit(50M)"]);
    }

    #[test]
    fn refusals() {
        check(
            "",
            expect!["a placement policy is missing in ``: write one name, as mfs, or several, as epmfs>mfs"],
        );
        check(
            "mfs>",
            expect![
                "a placement policy is missing in `mfs>`: write one name, as mfs, or several, as epmfs>mfs"
            ],
        );
        check(
            "mfs>>ff",
            expect![
                "a placement policy is missing in `mfs>>ff`: write one name, as mfs, or several, as epmfs>mfs"
            ],
        );
        check("any", expect!["`any` goes last and after a policy in `any`: write for example mfs>any"]);
        check(
            "any>mfs",
            expect!["`any` goes last and after a policy in `any>mfs`: write for example mfs>any"],
        );
        check(
            "mfs>any>any",
            expect!["`any` goes last and after a policy in `mfs>any>any`: write for example mfs>any"],
        );
        check("mfs>epfff", expect!["`epfff` is not a placement policy: did you mean `epff`?"]);
        check(
            "mlimit(lots)",
            expect!["mlimit: `lots` is not a floor: write a size, as 50G or 100M, or a percentage, as 5%"],
        );
        check("mlimit(1G)>mlimit(2G)", expect!["`mlimit(1G)>mlimit(2G)` has two limits: write mlimit once"]);
        check("mlimit(1G", expect!["`mlimit(1G` is not a placement policy: did you mean `mlimit`?"]);
    }

    #[test]
    fn the_default_says_what_it_needs() {
        let chain = Chain::default_create();
        assert_eq!(chain.to_string(), "mspmfs>any");
        assert!(chain.needs_depth() && !chain.needs_parent() && !chain.needs_mtime());
    }

    proptest! {
        #[test]
        fn printed_values_are_read_back(
            names in prop::collection::vec(prop::sample::select(POLICIES), 1..6),
            any: bool,
            gib in 1_u64..100,
        ) {
            let words = names.iter().map(|(name, ..)| match *name {
                "mlimit" => format!("mlimit({gib}G)"),
                name => name.to_owned(),
            });
            let text = words.chain(any.then(|| LAST_RESORT.to_owned())).collect::<Vec<_>>().join(">");
            let chain: Chain = text.parse().unwrap();
            prop_assert_eq!(chain.to_string().parse(), Ok(chain));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,20}|[a-z>() ]{0,20}") {
            let _ = text.parse::<Chain>();
        }
    }
}
