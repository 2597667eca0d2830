//! Moving what lies against the placement rules to the branches that the rules name.
//!
//! Each branch is walked for files whose rule names other branches. A file's target is what its rule would choose for a new file
//! of its size now, with what was planned before counted as there; branches that the rule does not name take nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fsstack_pool::{BranchIx, Candidate, DirPlacement, Ino};

use super::Jobs;
use super::moving_list::MovingList;
use super::rearrange::FoundFile;
use super::walk::{MetFile, Visitor};
use super::{BadJob, Job, JobState, JobView, RulesOrder, Work};
use crate::inode::Inode;
use crate::pool::Pool;
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
        let mut walk = Misplaced {
            jobs: self,
            job,
            from: BranchIx(0),
            list: MovingList::default(),
            planned: HashMap::new(),
            dir: None,
        };
        for from in branches {
            (walk.from, walk.dir) = (from, None);
            self.walk_dir(job, from, &order.dir, &mut walk)?;
        }
        Ok(walk.list)
    }
}

/// A walk over a branch that plans moves.
struct Misplaced<'w> {
    jobs: &'w Jobs,
    job: &'w Job,
    from: BranchIx,
    list: MovingList,
    /// Bytes that branches are to take.
    planned: HashMap<BranchIx, u64>,
    /// The directory whose files come, and facts about the branches as they will be.
    dir: Option<(Ino, Vec<Candidate>)>,
}

impl Misplaced<'_> {
    /// The branch that takes a file of `bytes` in `dir`.
    fn target(
        &mut self,
        pool: &Pool,
        placement: &DirPlacement<'_>,
        dir: &Arc<Inode>,
        bytes: u64,
    ) -> Option<BranchIx> {
        let known = self.dir.take().filter(|(known, _)| *known == dir.id.ino).map(|(_, facts)| facts);
        let mut facts = known.unwrap_or_else(|| self.facts(pool, placement, dir));
        let ranking = placement.rank(&facts, &mut random);
        let takes = |at: &&BranchIx| {
            let facts = facts.iter().find(|facts| facts.branch == **at);
            **at != self.from
                && !placement.is_against(**at)
                && facts.is_some_and(|facts| placement.fits(facts, bytes))
        };
        let to = ranking.order.iter().find(takes).copied();
        if let Some(known) = facts.iter_mut().find(|facts| Some(facts.branch) == to) {
            known.space = known.space.less(bytes);
            // The next one may keep it company.
            known.holds_parent = true;
            known.deepest = ancestors(dir).len();
            *self.planned.entry(known.branch).or_default() += bytes;
        }
        self.dir = Some((dir.id.ino, facts));
        to
    }

    fn facts(&self, pool: &Pool, placement: &DirPlacement<'_>, dir: &Arc<Inode>) -> Vec<Candidate> {
        let mut facts = self.jobs.tree.candidates(pool, dir, placement, |_, _| true);
        for known in &mut facts {
            known.space = known.space.less(self.planned.get(&known.branch).copied().unwrap_or(0));
        }
        facts
    }
}

impl<'a> Visitor<'a> for Misplaced<'_> {
    fn files(&mut self, files: Vec<MetFile<'a>>) {
        let pool = self.jobs.pool();
        for file in files {
            let Some(name) = file.names.first() else { continue };
            let dir = name.parent.clone();
            let placement = placement_of(&pool, &file.names);
            if !placement.is_against(self.from) {
                continue;
            }
            let hides = |name| self.jobs.tree.why_not_from(&pool, name, self.from);
            if let Some(why) = file.names.iter().find_map(hides).or(file.why_frozen()) {
                self.job.leaves_out(file.path, why);
                continue;
            }
            match self.target(&pool, &placement, &dir, file.bytes) {
                Some(to) => FoundFile::of(&file).plan(self.from, to, &mut self.list),
                None => self.job.leaves_out(file.path, NO_ROOM),
            }
        }
        let counted = self.list.amount();
        self.job.progress.lock().found = counted;
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
