//! Where something new is put: the ranking of the branches, tried in turn.

use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_branch::error::{OpError, Result};
use fsstack_identity::number::mix;
use fsstack_pool::{BranchIx, BranchSet, Candidate, DirPlacement, Ranking, Rejection, Space};
use fsstack_sync::time::Instant;
use fsstack_sys as sys;

use crate::inode::Inode;
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::placement::placement_in;

impl Tree {
    /// Runs `make` on the branches in the order of the ranking for something new in `parent`, until one takes it.
    ///
    /// # Errors
    /// If every branch refused for a reason of its own (full, read-only, out of order, cannot be given the directory), the
    /// most telling of those reasons. Any other error of a branch ends the search and is returned as it is.
    pub(crate) fn place<T>(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        mut make: impl FnMut(BranchIx) -> Result<T>,
    ) -> Result<T> {
        let began = Instant::now();
        let placement = placement_in(pool, parent);
        let rank_now = || self.ranking(pool, parent, &placement, |_, _| true);
        let mut ranking = rank_now();
        if ranking.order.is_empty() {
            // All of them are asked, not just the first that has more than it had.
            let mut gained = false;
            for branch in &pool.branches {
                gained |= branch.recount(began);
            }
            if gained {
                ranking = rank_now();
            }
        }
        // A branch that may hang comes last: its space is out of date, and a thread stuck there tries no other. (Each is
        // checked once: it may begin to hang, or end, while they are put in order.)
        ranking.order.sort_by_cached_key(|at| pool.branch(*at).stalls());
        let mut refused: Vec<(BranchIx, Rejection)> = ranking.refused.to_vec();
        let mut fixed = None;
        for at in &ranking.order {
            let lacked = !parent.is_on(*at);
            match make(*at) {
                Err(error) if error.is_about_the_branch() => {
                    pool.branch(*at).distrust_space();
                    refused.push((*at, rejection(error)));
                }
                // The directory, or one above it, may not be added to (`chattr +i`, `+a`), which branches that have it say
                // for themselves.
                Err(error) if lacked && error.is_unfit() => refused.push((*at, Rejection::Unfit)),
                Err(error) if lacked && error.is_obstructed() => refused.push((*at, Rejection::Obstructed)),
                Err(error) if lacked && error.errno() == sys::Errno::PERM => fixed = Some(error),
                // Its file system has shorter names, no files without a name, or too many subdirectories there.
                Err(error) if error.is_beyond_the_branch() => fixed = Some(error),
                // A branch that is out of order takes nothing new; the next one may. Not where it may have been made,
                // and its answer was lost: there would be two of them.
                Err(error)
                    if error.is_fault()
                        && ranking.order.len() > 1
                        && surely_made_nothing(pool, *at, error) =>
                {
                    tracing::warn!(%error, branch = %pool.branch(*at).path.display(), "create failed on this branch; trying the next");
                    refused.push((*at, Rejection::Unreachable));
                }
                settled => {
                    return settled.inspect(|_| {
                        pool.branch(*at).note_made();
                        if placement.is_against(*at) {
                            self.note_misplaced();
                        }
                    });
                }
            }
        }
        Err(fixed.filter(|_| refused.is_empty()).unwrap_or_else(|| self.refused_creates.log(pool, &refused)))
    }

    /// Order in which `placement` tries the branches for something in `parent`. Branches that `fits` refuses are
    /// left out.
    pub(crate) fn ranking(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        placement: &DirPlacement<'_>,
        fits: impl Fn(&Branch, &Space) -> bool,
    ) -> Ranking {
        placement.rank(&self.candidates(pool, parent, placement, fits), &mut random)
    }

    /// Facts about each branch that `fits` accepts, by which `placement` places something in `parent`.
    pub(crate) fn candidates(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        placement: &DirPlacement<'_>,
        fits: impl Fn(&Branch, &Space) -> bool,
    ) -> Vec<Candidate> {
        let newest = placement.needs_mtime();
        let depth = if placement.needs_depth() { ancestor_branches(parent) } else { Vec::new() };
        let holders = depth.first().copied().unwrap_or_else(|| parent.branches());
        pool.branches
            .iter()
            .filter_map(|branch| {
                let fs = branch.fs_space().ok();
                let space = fs.map(|fs| branch.space_of(&fs)).unwrap_or_default();
                if !fits(branch, &space) {
                    return None;
                }
                let holds_parent = holders.contains(branch.ix);
                Some(Candidate {
                    branch: branch.ix,
                    mode: branch.mode(),
                    mounted_read_only: fs.is_some_and(|fs| fs.read_only),
                    reachable: fs.is_some(),
                    holds_parent,
                    deepest: depth
                        .iter()
                        .position(|holders| holders.contains(branch.ix))
                        .map_or(0, |up| depth.len() - up),
                    parent_mtime: (newest && holds_parent)
                        .then(|| self.mtime_on(pool, parent, branch.ix))
                        .flatten(),
                    space,
                    floor: branch.floor().unwrap_or(pool.settings.floor),
                    min_inodes: branch.min_inodes().unwrap_or(pool.settings.min_inodes),
                })
            })
            .collect()
    }

    fn mtime_on(&self, pool: &Pool, dir: &Arc<Inode>, at: BranchIx) -> Option<(i64, u32)> {
        let fd = self.dirfd(pool, dir, at).ok()?;
        let stat = pool.branch(at).ask(|| sys::at::stat_fd(fd.as_fd())).ok()?;
        Some((stat.mtime.sec, stat.mtime.nsec))
    }
}

/// The directory and its ancestors, up to the root.
pub(crate) fn ancestors(dir: &Arc<Inode>) -> Vec<Arc<Inode>> {
    let mut all = vec![dir.clone()];
    while let Some(name) = all.last().and_then(|last| last.name()) {
        all.push(name.parent);
    }
    all
}

/// Branches that have a copy of the directory, and of each of its ancestors up to the root. Each is locked once: every create
/// in the pool comes by the root.
fn ancestor_branches(dir: &Arc<Inode>) -> Vec<BranchSet> {
    let (mut all, mut above) = (Vec::new(), Some(dir.clone()));
    while let Some(dir) = above {
        let (branches, parent) = dir.branches_and_parent();
        all.push(branches);
        above = parent;
    }
    all
}

/// The reason of a branch that cannot take more.
fn rejection(error: OpError) -> Rejection {
    match error.errno() {
        sys::Errno::ROFS => Rejection::ReadOnly,
        sys::Errno::DQUOT => Rejection::OverQuota,
        _ => Rejection::TooFull,
    }
}

/// Whether the branch `at`, which answered with a fault, has surely made nothing: it was not asked, nobody was there to
/// ask, or it is a disk of this machine, which has no answer to lose.
fn surely_made_nothing(pool: &Pool, at: BranchIx, error: OpError) -> bool {
    let branch = pool.branch(at);
    let unasked = match error {
        // The kernel says so of a FUSE server that is gone; a volume's client of what is under way to its bricks too.
        OpError::Branch { sys, .. } if sys.errno == sys::Errno::NOTCONN => !branch.has_subvolumes(),
        OpError::Branch { sys, .. } => sys.call == sys::Call::Access,
        OpError::Sys(_) | OpError::NoBranch(_) | OpError::Refused(_) => false,
    };
    unasked || !branch.is_remote()
}

/// Enough chance for spreading files: not for secrets.
pub(crate) fn random() -> u64 {
    use std::cell::Cell;
    fsstack_sync::thread_local! {
        static STATE: Cell<u64> = const { Cell::new(0) };
    }
    STATE.with(|state| {
        let mut next = state.get();
        if next == 0 {
            use std::hash::{BuildHasher, RandomState};
            next = RandomState::new().hash_one(fsstack_sync::thread::current().id());
        }
        next = next.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.set(next);
        mix(next)
    })
}
