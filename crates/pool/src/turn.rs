//! Explains a branch's rank in words.

use std::fmt;

use crate::candidate::{Candidate, Rejection};
use crate::chain::Chain;
use crate::policy::{Policy, Rank, Scope};
use crate::size::Size;

/// Reason of a branch's rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The first policy of the chain accepts it.
    Policy(Policy),
    /// It is below its floor, and the chain ends with `any`.
    LastResort,
}

/// Returns the reason for `candidate`'s rank in `chain`, by the same checks as [`rank`](crate::rank).
///
/// # Errors
///
/// The most specific reason, if all policies reject it.
pub fn turn(chain: &Chain, candidate: &Candidate) -> Result<Turn, Rejection> {
    let mut refused = Rejection::PathMissing;
    for policy in chain.policies() {
        match candidate.admit(*policy) {
            Ok(()) => return Ok(Turn::Policy(*policy)),
            Err(why) => refused = refused.max(why),
        }
    }
    match refused {
        Rejection::TooFull if chain.has_last_resort() => Ok(Turn::LastResort),
        refused => Err(refused),
    }
}

impl Turn {
    /// True for random policies: the next ranking may differ.
    pub fn is_by_lot(self) -> bool {
        matches!(self, Self::Policy(Policy { rank: Rank::Random | Rank::RandomByFree, .. }))
    }

    /// One line: the policy, and the figures by which it ranks this branch.
    pub fn explain<'a>(self, candidate: &'a Candidate) -> impl fmt::Display + use<'a> {
        fmt::from_fn(move |out| match self {
            Self::LastResort => {
                write!(out, "any: under its floor, {} available", Size(candidate.space.available).approx())
            }
            Self::Policy(policy) => {
                write!(out, "{policy}: ")?;
                match policy.scope {
                    Scope::AnyBranch => {}
                    Scope::HoldsParent => out.write_str("holds the parent directory, ")?,
                    Scope::DeepestParent => {
                        write!(out, "holds {} of the directories on the way, ", candidate.deepest)?;
                    }
                }
                explain_rank(policy.rank, candidate, out)
            }
        })
    }
}

fn explain_rank(rank: Rank, candidate: &Candidate, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    let space = &candidate.space;
    let available = Size(space.available).approx();
    match rank {
        Rank::InOrder | Rank::All | Rank::NoneReadOnly => out.write_str("by the order of the branches"),
        Rank::MostFree | Rank::LeastFree | Rank::MhddfsLimit => write!(out, "{available} available"),
        Rank::LeastUsed => write!(out, "{} used", Size(space.taken()).approx()),
        Rank::LeastUsedPercent => {
            let whole = u128::from(space.total.max(1));
            write!(out, "{}% used", u128::from(space.taken()) * 100 / whole)
        }
        Rank::RandomByFree => write!(out, "by lot, weighted by {available} available"),
        Rank::Random => out.write_str("by lot"),
        Rank::Newest => out.write_str("by the last change of the parent directory"),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::branch::BranchMode;
    use crate::ids::BranchIx;
    use crate::size::Floor;
    use crate::space::Space;

    fn check(chain: &str, change: impl FnOnce(&mut Candidate), expected: Expect) {
        let mut candidate = Candidate {
            branch: BranchIx(0),
            mode: BranchMode::ReadWrite,
            mounted_read_only: false,
            reachable: true,
            holds_parent: true,
            deepest: 2,
            parent_mtime: None,
            space: Space { total: 100 << 30, available: 40 << 30, inodes_total: 9, inodes_free: 9, free: 0 },
            floor: Floor::Bytes(4 << 30),
            min_inodes: 0,
        };
        change(&mut candidate);
        let chain: Chain = chain.parse().unwrap();
        let explained = match turn(&chain, &candidate) {
            Ok(turn) => turn.explain(&candidate).to_string(),
            Err(why) => format!("refused: {why:?}"),
        };
        expected.assert_eq(&explained);
        let ranked = !crate::rank(&chain, &[candidate], &mut || 7).order.is_empty();
        assert_eq!(ranked, turn(&chain, &candidate).is_ok(), "rank says otherwise");
    }

    #[test]
    fn a_turn_is_explained_with_its_figures() {
        check("ff", |_| (), expect!["ff: by the order of the branches"]);
        check("mfs", |_| (), expect!["mfs: 40 GiB available"]);
        check("mspmfs", |_| (), expect!["mspmfs: holds 2 of the directories on the way, 40 GiB available"]);
        check("epmfs>mfs", |c| c.holds_parent = false, expect!["mfs: 40 GiB available"]);
        check("lup", |_| (), expect!["lup: 60% used"]);
        check("pfrd", |_| (), expect!["pfrd: by lot, weighted by 40 GiB available"]);
        check("mfs>any", |c| c.space.available = 1 << 30, expect!["any: under its floor, 1 GiB available"]);
        check("mfs", |c| c.space.available = 1 << 30, expect!["refused: TooFull"]);
        check("epmfs", |c| c.holds_parent = false, expect!["refused: PathMissing"]);
        check("mfs>any", |c| c.mode = BranchMode::NoCreate, expect!["refused: ReadOnly"]);
    }
}
