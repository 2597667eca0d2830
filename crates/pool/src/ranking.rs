//! Orders candidates by a policy.
//!
//! Every rank is a sort key, smallest first; ties keep the pool's order. Random ranks are keys too: each branch draws a
//! time from an exponential distribution whose rate is its weight, and sorting by these times is a weighted shuffle.

use std::cmp::Reverse;

use smallvec::SmallVec;

use crate::candidate::{Candidate, Rejection};
use crate::chain::Chain;
use crate::ids::BranchIx;
use crate::policy::{Policy, Rank, Scope};
use crate::size::Floor;
use crate::space::share;

/// Pools up to this size are ranked without allocating.
const USUAL: usize = 16;

/// All candidates, split into accepted and rejected ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranking {
    /// Branches to try, the best first.
    pub order: SmallVec<[BranchIx; USUAL]>,
    /// The others, in the pool's order, each with its most specific reason.
    pub refused: SmallVec<[(BranchIx, Rejection); USUAL]>,
}

#[derive(Clone, Copy)]
enum Standing {
    Ranked,
    Refused(Rejection),
}

/// Sort key of a candidate: depth of its parent first, then the policy's key, then its position in the pool.
type SortKey = (Reverse<usize>, u128, usize);

/// Ranks `candidates` by `chain`. `random` is called only for random policies.
pub fn rank(chain: &Chain, candidates: &[Candidate], random: &mut dyn FnMut() -> u64) -> Ranking {
    let mut ranking = Ranking::default();
    let mut standings: SmallVec<[Standing; USUAL]> =
        SmallVec::from_elem(Standing::Refused(Rejection::PathMissing), candidates.len());
    for policy in chain.policies() {
        let mut keys: SmallVec<[SortKey; USUAL]> = SmallVec::new();
        for (place, (candidate, standing)) in candidates.iter().zip(&mut standings).enumerate() {
            let Standing::Refused(before) = *standing else { continue };
            *standing = match candidate.admit(*policy) {
                Ok(()) => {
                    keys.push((
                        depth(*policy, candidate),
                        key(policy.rank, chain.limit(), candidate, random),
                        place,
                    ));
                    Standing::Ranked
                }
                Err(why) => Standing::Refused(why.max(before)),
            };
        }
        order_by_key(&mut keys, candidates, &mut ranking);
    }
    if chain.has_last_resort() {
        let mut keys: SmallVec<[SortKey; USUAL]> = SmallVec::new();
        for (place, (candidate, standing)) in candidates.iter().zip(&mut standings).enumerate() {
            if let Standing::Refused(Rejection::TooFull) = *standing {
                keys.push((Reverse(0), most(candidate.space.available), place));
                *standing = Standing::Ranked;
            }
        }
        order_by_key(&mut keys, candidates, &mut ranking);
    }
    for (candidate, standing) in candidates.iter().zip(&standings) {
        if let Standing::Refused(why) = *standing {
            ranking.refused.push((candidate.branch, why));
        }
    }
    ranking
}

fn order_by_key(keys: &mut [SortKey], candidates: &[Candidate], ranking: &mut Ranking) {
    keys.sort_unstable();
    ranking.order.extend(keys.iter().map(|(_, _, place)| candidates[*place].branch));
}

fn depth(policy: Policy, candidate: &Candidate) -> Reverse<usize> {
    match policy.scope {
        Scope::DeepestParent => Reverse(candidate.deepest),
        Scope::AnyBranch | Scope::HoldsParent => Reverse(0),
    }
}

fn key(rank: Rank, limit: Floor, candidate: &Candidate, random: &mut dyn FnMut() -> u64) -> u128 {
    let space = &candidate.space;
    match rank {
        Rank::InOrder | Rank::All | Rank::NoneReadOnly => 0,
        Rank::MostFree => most(space.available),
        Rank::LeastFree => u128::from(space.available),
        Rank::LeastUsed => u128::from(space.taken()),
        Rank::LeastUsedPercent => share(space.taken(), space.total),
        Rank::RandomByFree => lot(space.available, random()),
        Rank::Random => u128::from(random()),
        Rank::Newest => latest(candidate.parent_mtime),
        Rank::MhddfsLimit => limit_key(limit, candidate),
    }
}

fn most(bytes: u64) -> u128 {
    u128::from(u64::MAX - bytes)
}

/// Draws a sort key with `weight`; weight 0 sorts last.
fn lot(weight: u64, random: u64) -> u128 {
    const STEPS: f64 = (1_u64 << 53) as f64;
    let uniform = ((random >> 11) + 1) as f64 / STEPS;
    // Without `abs` the logarithm of 1 would give a negative zero, whose bits sort last.
    let turn = if weight == 0 { f64::INFINITY } else { uniform.ln().abs() / weight as f64 };
    // The bits of floats that are not negative sort as the floats do.
    u128::from(turn.to_bits())
}

fn latest(mtime: Option<(i64, u32)>) -> u128 {
    let Some((seconds, nanoseconds)) = mtime else { return u128::MAX };
    // Flipping the sign bit makes signed seconds sort as unsigned ones.
    let since_the_beginning = seconds.cast_unsigned() ^ (1 << 63);
    u128::MAX - (u128::from(since_the_beginning) << 32 | u128::from(nanoseconds))
}

/// Branches with room for the limit first, as equals; then by free space, or by its fraction if the limit is a
/// percentage.
fn limit_key(limit: Floor, candidate: &Candidate) -> u128 {
    let space = &candidate.space;
    if limit.bytes_of(space.total) <= space.available && space.has_inodes(candidate.min_inodes) {
        return 0;
    }
    match limit {
        Floor::Bytes(_) => 1 + most(space.available),
        Floor::PerMille(_) => (u128::MAX - share(space.available, space.total)).max(1),
    }
}

#[cfg(test)]
mod tests;
