//! Moving files down a tier: off the branches of a class that is fuller than the tier's start, the coldest, oldest or largest
//! first, until it is as full as the tier's stop.
//!
//! A file goes only to branches that its placement rule names: a strict rule for the fast class holds it there. The order is that
//! of the times that the branch has; a walk over a branch asks for them and opens no file.

use std::collections::HashSet;
use std::sync::Arc;

use fsstack_pool::{BranchIx, BranchSet, Class, Tier};
use fsstack_sync::time::{SystemTime, UNIX_EPOCH};
use fsstack_sys::Time;

use super::Jobs;
use super::planning::list::{ListedFile, MovingList};
use super::planning::room::Room;
use super::planning::tier::{Fullness, TierFile, TierPlan};
use super::walk::{MetFile, Visitor};
use super::{BadJob, Job, JobState, JobView, TierRun, Work};
use crate::inode::Inode;
use crate::member::Member;
use crate::moves::reasons::is_in_use;
use crate::pool::Pool;
use crate::tree::placement::placement_of;

impl Jobs {
    /// Begins to look which files the tier would move now.
    ///
    /// # Errors
    /// It cannot begin.
    pub(crate) fn plan_tier(self: &Arc<Self>, tier: Tier) -> Result<JobView, BadJob> {
        self.start_tier(TierRun { tier: Arc::new(tier), dry_run: true })
    }

    /// Begins to move files down the tier, or only looks which ones would.
    pub(super) fn start_tier(self: &Arc<Self>, run: TierRun) -> Result<JobView, BadJob> {
        let tier = run.tier.clone();
        let subject = format!("{}>{}", tier.fast, tier.slow);
        let pool = self.pool();
        let both = members(&pool, &tier.fast).chain(members(&pool, &tier.slow));
        let stay = both.filter_map(|branch| branch.acquire().ok()).collect();
        self.begin_job(Work::Tier(run), subject, stay, move |jobs, job| {
            let listed = jobs.list_for_tier(job, &tier);
            let state = jobs.carry_out_list(job, listed, true);
            if job.progress.lock().is_closed { JobState::OutOfWindow } else { state }
        })
    }

    fn list_for_tier(&self, job: &Job, tier: &Tier) -> Result<MovingList, String> {
        let pool = self.pool();
        members(&pool, &tier.fast).for_each(|branch| branch.distrust_space());
        let need = fullness(givers(&pool, &tier.fast)).excess(tier);
        let rooms = self.rooms_below(tier);
        let slow: BranchSet = rooms.iter().map(|room| room.branch).collect();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut walk = GoingDown {
            jobs: self,
            tier,
            slow,
            now: Time { sec: since.as_secs().cast_signed(), nsec: since.subsec_nanos() },
            from: BranchIx(0),
            plan: TierPlan::new(tier.order, need, rooms),
        };
        let from: Vec<BranchIx> = givers(&pool, &tier.fast).map(|branch| branch.ix).collect();
        drop(pool);
        if need > 0 {
            for from in from {
                walk.from = from;
                self.walk_branch(job, from, &mut walk);
            }
        }
        let mut list = MovingList::default();
        for ((file, from), _, to) in walk.plan.finish() {
            list.plan(file, from, to);
        }
        Ok(list)
    }

    /// Room on the branches that take files of the tier, one branch of a file system, none of those that files leave.
    pub(super) fn rooms_below(&self, tier: &Tier) -> Vec<Room> {
        let pool = self.pool();
        let mut seen: HashSet<u64> = members(&pool, &tier.fast).map(|branch| branch.dev()).collect();
        let takers: Vec<BranchIx> = members(&pool, &tier.slow)
            .filter(|branch| branch.takes_moves())
            .filter(|branch| seen.insert(branch.dev()))
            .map(|branch| branch.ix)
            .collect();
        drop(pool);
        self.rooms(&takers)
    }
}

/// Branches of the class.
pub(super) fn members<'p>(pool: &'p Pool, class: &Class) -> impl Iterator<Item = &'p Arc<Member>> {
    pool.branches.iter().filter(move |branch| branch.class.as_ref() == Some(class))
}

/// Branches of the class that files may leave. Others do not count for a tier: it has no influence on how full they are.
pub(super) fn givers<'p>(pool: &'p Pool, class: &Class) -> impl Iterator<Item = &'p Arc<Member>> {
    members(pool, class).filter(|branch| branch.is_thought_writable())
}

/// Space of the branches, each file system once.
pub(super) fn fullness<'p>(branches: impl Iterator<Item = &'p Arc<Member>>) -> Fullness {
    let mut seen = HashSet::new();
    let space = |branch: &Arc<Member>| branch.space().ok().filter(|_| seen.insert(branch.dev()));
    branches.filter_map(space).fold(Fullness::default(), |sum, space| Fullness {
        used: sum.used.saturating_add(space.taken()),
        total: sum.total.saturating_add(space.total),
    })
}

/// A walk over the branches that files leave.
struct GoingDown<'w> {
    jobs: &'w Jobs,
    tier: &'w Tier,
    /// Branches that take files.
    slow: BranchSet,
    now: Time,
    from: BranchIx,
    plan: TierPlan<(ListedFile, BranchIx)>,
}

impl<'a> Visitor<'a> for GoingDown<'_> {
    fn files(&mut self, files: Vec<MetFile<'a>>) {
        let pool = self.jobs.pool();
        let from = self.from;
        for file in files {
            let hides = |name| self.jobs.tree.why_not_from(&pool, name, from).is_some();
            if file.is_frozen || !file.used.is_old(self.tier, self.now) || file.names.iter().any(hides) {
                continue;
            }
            // It would stay, and be named again by the next plan.
            let open = file.met.inode.open_file();
            if open.is_some_and(|open| is_in_use(&open, self.tier.make_way)) {
                continue;
            }
            let to = placement_of(&pool, &file.names).home().and(self.slow);
            let (ino, bytes, used) = (file.met.inode.id.ino, file.bytes, file.used);
            self.plan.offer(TierFile { ino, bytes, used, to }, || (file.listed(), from));
        }
    }

    fn stays(&mut self, _: Vec<u8>, _: &'static str) {}

    fn dir(&mut self, _: &Arc<Inode>) {}
}
