//! Moving what lies against the placement rules to the branches that the rules name.
//!
//! Each branch is walked for files whose rule names other branches.

use std::sync::Arc;

use fsstack_pool::BranchIx;
use fsstack_sync::atomic::Ordering::Relaxed;

use super::Jobs;
use super::planning::list::MovingList;
use super::planning::misplaced::{Dir, Misplaced};
use super::walk::{MetFile, Visitor};
use super::{BadJob, Job, JobState, JobView, RulesOrder, Work};
use crate::inode::Inode;
use crate::tree::place::{ancestors, random};
use crate::tree::placement::{placement_at, placement_of};

const NO_ROOM: &str = "no branch that its placement rule names takes it, with its floor";

impl Jobs {
    /// Begins to move what lies against the placement rules.
    ///
    /// # Errors
    /// It cannot begin.
    pub(crate) fn start_rules(self: &Arc<Self>, order: RulesOrder) -> Result<JobView, BadJob> {
        if self.pool().rules.is_empty() {
            return Err(BadJob::NoRules);
        }
        let (subject, stay) = (self.subject(&order.dir)?, self.all_stay());
        let mine = order.clone();
        self.begin_job(Work::Rules(order), subject, stay, move |jobs, job| {
            let listed = jobs.list_for_rules(job, &mine);
            let state = jobs.carry_out_list(job, listed, true);
            // All of them were met, unless it was called off.
            if mine.dir.is_empty()
                && matches!(state, JobState::Planned | JobState::Done | JobState::Incomplete)
            {
                let progress = job.progress.lock();
                let planned = if state == JobState::Planned { progress.found.files } else { 0 };
                jobs.tree.misplaced.store(planned + progress.staying, Relaxed);
            }
            state
        })
    }

    fn list_for_rules(&self, job: &Job, order: &RulesOrder) -> Result<MovingList, String> {
        let branches: Vec<BranchIx> = self.pool().branches.iter().map(|branch| branch.ix).collect();
        let mut walk = FindMisplaced { jobs: self, job, from: BranchIx(0), plan: Misplaced::default() };
        for from in branches {
            walk.from = from;
            walk.plan.begin_branch();
            self.walk_dir(job, from, &order.dir, &mut walk)?;
        }
        Ok(walk.plan.finish())
    }
}

/// A walk over a branch for files that lie against their rules.
struct FindMisplaced<'w> {
    jobs: &'w Jobs,
    job: &'w Job,
    from: BranchIx,
    plan: Misplaced,
}

impl<'a> Visitor<'a> for FindMisplaced<'_> {
    fn files(&mut self, files: Vec<MetFile<'a>>) {
        let (jobs, pool) = (self.jobs, self.jobs.pool());
        for file in files {
            let Some(name) = file.names.first() else { continue };
            let placement = placement_of(&pool, &file.names);
            if !placement.is_against(self.from) {
                continue;
            }
            let hides = |name| jobs.tree.why_not_from(&pool, name, self.from);
            if let Some(why) = file.names.iter().find_map(hides).or(file.why_frozen()) {
                self.job.leaves_out(file.path, why);
                continue;
            }
            let dir = Dir { ino: name.parent.id.ino, depth: ancestors(&name.parent).len() };
            let facts = || jobs.tree.candidates(&pool, &name.parent, &placement, |_, _| true);
            if !self.plan.offer((file.listed(), self.from), (&placement, dir), facts, &mut random) {
                self.job.leaves_out(file.path, NO_ROOM);
            }
        }
        self.job.progress.lock().found = self.plan.amount();
    }

    fn stays(&mut self, path: Vec<u8>, why: &'static str) {
        let pool = self.jobs.pool();
        let dir = path.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |slash| &path[..slash]);
        if placement_at(&pool, std::iter::once(dir)).is_against(self.from) {
            self.job.leaves_out(path, why);
        }
    }

    /// There may be some below it.
    fn unknown(&mut self, path: Vec<u8>, why: &'static str) {
        self.job.leaves_out(path, why);
    }

    fn dir(&mut self, _: &Arc<Inode>) {}
}
