//! A branch as a placement policy sees it, and the reasons for rejecting one.

use std::fmt;
use std::path::Path;

use crate::branch::BranchMode;
use crate::ids::BranchIx;
use crate::policy::{Policy, Rank, Scope};
use crate::printable::Printable;
use crate::size::{Floor, Size};
use crate::space::Space;

/// Facts about a branch that placement needs.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The branch.
    pub branch: BranchIx,
    /// Its mode in the pool.
    pub mode: BranchMode,
    /// Its file system is mounted, or has turned, read-only.
    pub mounted_read_only: bool,
    /// It answers.
    pub reachable: bool,
    /// It holds the parent directory.
    pub holds_parent: bool,
    /// Number of leading components of the parent's path that it holds: all, if it holds the parent.
    pub deepest: usize,
    /// Time of the last change of its parent directory (seconds, nanoseconds), if it has one.
    pub parent_mtime: Option<(i64, u32)>,
    /// Its space.
    pub space: Space,
    /// Space that it keeps free.
    pub floor: Floor,
    /// Number of inodes that it keeps free.
    pub min_inodes: u64,
}

/// Reason for rejecting a branch, least specific first: of several reasons the greatest is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rejection {
    /// It does not hold the parent directory (ENOENT).
    PathMissing,
    /// A strict placement rule does not name it (ENOSPC).
    Excluded,
    /// It has an object of another kind in place of the parent directory, or of one above (ENOTDIR).
    Obstructed,
    /// It cannot hold the parent's ACL, or keep what its inode flags promise (EOPNOTSUPP).
    Unfit,
    /// It does not answer (EIO).
    Unreachable,
    /// It is under its floor (ENOSPC).
    TooFull,
    /// The caller's quota on it is used up (EDQUOT).
    OverQuota,
    /// Nothing may be created on it (EROFS).
    ReadOnly,
}

impl fmt::Display for Rejection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::PathMissing => "does not hold the parent directory",
            Self::Excluded => "not named by the strict placement rule for the directory",
            Self::Obstructed => "has an object of another kind in place of the directory, or of one above",
            Self::Unfit => "cannot hold the ACL or keep the inode flags of the directory",
            Self::Unreachable => "cannot be reached",
            Self::TooFull => "full, or under its floor",
            Self::OverQuota => "the user's quota is used up",
            Self::ReadOnly => "read-only",
        })
    }
}

/// Returns the one reason for a request that no branch can take. Read-only only if all branches are: the user can do
/// something about a branch that can be written to.
pub fn verdict(refused: &[(BranchIx, Rejection)]) -> Rejection {
    let reasons = || refused.iter().map(|(_, why)| *why);
    reasons()
        .filter(|why| *why != Rejection::ReadOnly)
        .max()
        .or(reasons().max())
        .unwrap_or(Rejection::PathMissing)
}

impl Candidate {
    /// Checks whether `policy` accepts the branch, in mergerfs's order of checks.
    pub(crate) fn admit(&self, policy: Policy) -> Result<(), Rejection> {
        if self.mode != BranchMode::ReadWrite || policy.rank == Rank::NoneReadOnly {
            return Err(Rejection::ReadOnly);
        }
        if !self.reachable {
            return Err(Rejection::Unreachable);
        }
        if policy.scope == Scope::HoldsParent && !self.holds_parent {
            return Err(Rejection::PathMissing);
        }
        if self.mounted_read_only {
            return Err(Rejection::ReadOnly);
        }
        let too_full = match policy.rank {
            Rank::MhddfsLimit => self.space.available == 0,
            _ => !self.is_above_floor(),
        };
        if too_full { Err(Rejection::TooFull) } else { Ok(()) }
    }

    fn is_above_floor(&self) -> bool {
        self.floor.bytes_of(self.space.total) <= self.space.available
            && self.space.has_inodes(self.min_inodes)
    }
}

/// One log line: the branch (by its `path`), the reason for rejecting it, and the figures.
pub fn explain<'a>(path: &'a Path, candidate: &'a Candidate, why: Rejection) -> impl fmt::Display + use<'a> {
    fmt::from_fn(move |out| {
        write!(out, "{}: ", Printable::path(path))?;
        match why {
            Rejection::PathMissing
            | Rejection::Excluded
            | Rejection::Obstructed
            | Rejection::Unfit
            | Rejection::Unreachable
            | Rejection::OverQuota => {
                write!(out, "{why}")
            }
            Rejection::TooFull => explain_full(candidate, out),
            Rejection::ReadOnly => explain_read_only(candidate, out),
        }
    })
}

fn explain_full(candidate: &Candidate, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Candidate { space, floor, min_inodes, .. } = candidate;
    let least = floor.bytes_of(space.total);
    let available = Size(space.available).approx();
    if space.available < least {
        write!(out, "{available} available, under its floor of {}", Size(least).approx())?;
        return match floor {
            Floor::Bytes(_) => Ok(()),
            Floor::PerMille(_) => write!(out, " ({floor})"),
        };
    }
    if !space.has_inodes(*min_inodes) {
        return write!(out, "{} inodes free, under its floor of {min_inodes}", space.inodes_free);
    }
    write!(out, "full, with {available} available")
}

fn explain_read_only(candidate: &Candidate, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    out.write_str(match candidate.mode {
        BranchMode::ReadOnly => "read-only (mode RO)",
        BranchMode::NoCreate => "takes nothing new (mode NC)",
        BranchMode::ReadWrite if candidate.mounted_read_only => "its file system is read-only",
        BranchMode::ReadWrite => "read-only",
    })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use Rejection::*;

    fn check(reasons: &[Rejection], expected: Rejection) {
        let refused: Vec<_> = reasons.iter().map(|why| (BranchIx(0), *why)).collect();
        assert_eq!(verdict(&refused), expected, "{reasons:?}");
    }

    #[test]
    fn the_most_telling_reason_is_the_verdict() {
        check(&[], PathMissing);
        check(&[PathMissing, PathMissing], PathMissing);
        check(&[ReadOnly, ReadOnly], ReadOnly);
        check(&[ReadOnly, TooFull, PathMissing], TooFull);
        check(&[PathMissing, Obstructed, ReadOnly], Obstructed);
        check(&[Obstructed, Unfit, ReadOnly], Unfit);
        check(&[Unfit, Unreachable, ReadOnly], Unreachable);
        check(&[Unreachable, TooFull], TooFull);
        check(&[OverQuota, TooFull, ReadOnly], OverQuota);
        check(&[ReadOnly, PathMissing], PathMissing);
    }

    fn check_line(why: Rejection, change: impl FnOnce(&mut Candidate), expected: Expect) {
        let mut candidate = Candidate {
            branch: BranchIx(0),
            mode: BranchMode::ReadWrite,
            mounted_read_only: false,
            reachable: true,
            holds_parent: true,
            deepest: 0,
            parent_mtime: None,
            space: Space {
                total: 100 << 30,
                available: 1_288_490_189,
                inodes_total: 9,
                inodes_free: 9,
                free: 0,
            },
            floor: Floor::Bytes(4 << 30),
            min_inodes: 0,
        };
        change(&mut candidate);
        expected.assert_eq(&explain(Path::new("/b"), &candidate, why).to_string());
    }

    #[test]
    fn each_reason_is_explained_with_its_figures() {
        check_line(TooFull, |_| (), expect!["/b: 1.2 GiB available, under its floor of 4 GiB"]);
        check_line(
            TooFull,
            |c| c.floor = Floor::PerMille(50),
            expect!["/b: 1.2 GiB available, under its floor of 5 GiB (5%)"],
        );
        check_line(
            TooFull,
            |c| (c.floor, c.min_inodes) = (Floor::NONE, 1000),
            expect!["/b: 9 inodes free, under its floor of 1000"],
        );
        check_line(
            TooFull,
            |c| (c.floor, c.space.available) = (Floor::NONE, 0),
            expect!["/b: full, with 0 B available"],
        );
        check_line(PathMissing, |_| (), expect!["/b: does not hold the parent directory"]);
        check_line(Unreachable, |_| (), expect!["/b: cannot be reached"]);
        check_line(ReadOnly, |c| c.mode = BranchMode::ReadOnly, expect!["/b: read-only (mode RO)"]);
        check_line(ReadOnly, |c| c.mode = BranchMode::NoCreate, expect!["/b: takes nothing new (mode NC)"]);
        check_line(ReadOnly, |c| c.mounted_read_only = true, expect!["/b: its file system is read-only"]);
        check_line(ReadOnly, |_| (), expect!["/b: read-only"]);
    }
}
