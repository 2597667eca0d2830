//! Walks for a balance: over whole directories where the pool keeps them together, then over single files.

use std::collections::HashSet;
use std::sync::Arc;

use fsstack_pool::{BranchIx, Ino, Scope};

use super::Jobs;
use super::planning::balance::{Balance, Belonging};
use super::planning::level::Quotas;
use super::planning::list::{ListedFile, MovingList};
use super::rearrange::SETTLED_FOR;
use super::walk::{MetFile, Visitor};
use super::{BalanceOrder, Job};
use crate::inode::Inode;
use crate::tree::placement::placement_of;

/// Whole directories are enough if they bring this share of what is to move.
const ENOUGH: u64 = 20;

impl Jobs {
    pub(super) fn list_for_balance(&self, job: &Job, order: &BalanceOrder) -> Result<MovingList, String> {
        let quotas = Quotas::new(&self.loads(), order.by, order.tolerance);
        let least = quotas.total();
        let settled = {
            let mut jobs = self.list.state.lock();
            jobs.settled.retain(|_, moved| moved.elapsed() < SETTLED_FOR);
            jobs.settled.keys().copied().collect::<HashSet<Ino>>()
        };
        let pool = self.pool();
        let spaces =
            pool.branches.iter().map(|branch| (branch.ix, branch.space().unwrap_or_default())).collect();
        let keeps_together = pool
            .settings
            .create
            .policies()
            .first()
            .is_some_and(|policy| matches!(policy.scope, Scope::HoldsParent | Scope::DeepestParent));
        drop(pool);
        let mut plan = Balance::new(quotas, spaces, settled);
        if keeps_together {
            self.choose_files(job, &mut plan, &order.dir, Unit::Directory)?;
        }
        if !keeps_together || plan.left() > least / ENOUGH {
            self.choose_files(job, &mut plan, &order.dir, Unit::File)?;
        }
        Ok(plan.finish())
    }

    fn choose_files(&self, job: &Job, plan: &mut Balance, dir: &[u8], unit: Unit) -> Result<(), String> {
        for giver in plan.givers().to_vec() {
            let from = giver.branch;
            let mut collect = Collect { jobs: self, job, plan, from, unit, dir: None, found: Vec::new() };
            self.walk_dir(job, from, dir, &mut collect)?;
            collect.flush();
        }
        Ok(())
    }
}

/// Unit in which files are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// All files of a directory that are on the branch, or none.
    Directory,
    File,
}

/// A walk over a branch that gives files.
struct Collect<'c> {
    jobs: &'c Jobs,
    job: &'c Job,
    plan: &'c mut Balance,
    from: BranchIx,
    unit: Unit,
    /// The directory whose files come.
    dir: Option<Arc<Inode>>,
    /// Those that may be chosen.
    found: Vec<(ListedFile, Belonging)>,
}

impl Collect<'_> {
    /// Offers the files of the last directory.
    fn flush(&mut self) {
        let found = std::mem::take(&mut self.found);
        match self.unit {
            Unit::Directory => self.plan.offer_together(self.from, found),
            Unit::File => self.plan.offer(self.from, found),
        }
    }

    /// Whether the file may be chosen.
    fn is_free(&self, file: &MetFile<'_>) -> bool {
        let pool = self.jobs.pool();
        let is_hidden = |name| self.jobs.tree.why_not_from(&pool, name, self.from).is_some();
        file.bytes > 0
            && !file.is_frozen
            && !self.plan.is_taken(file.met.inode.id.ino)
            && !file.names.iter().any(is_hidden)
    }
}

impl<'a> Visitor<'a> for Collect<'_> {
    fn files(&mut self, files: Vec<MetFile<'a>>) {
        for file in files {
            let dir = file.names.last().map(|name| name.parent.clone());
            if dir.as_ref().map(|dir| dir.id.ino) != self.dir.as_ref().map(|dir| dir.id.ino) {
                self.flush();
                self.dir = dir;
            }
            if self.is_free(&file) {
                let pool = self.jobs.pool();
                let placement = placement_of(&pool, &file.names);
                let floor = placement.rule().and_then(|rule| rule.rule.floor);
                self.found.push((file.listed(), Belonging { home: placement.home(), floor }));
            }
        }
        self.job.progress.lock().found = self.plan.amount();
    }

    fn stays(&mut self, _: Vec<u8>, _: &'static str) {}

    fn unknown(&mut self, path: Vec<u8>, why: &'static str) {
        self.job.leaves_out(path, why);
    }

    fn dir(&mut self, _: &Arc<Inode>) {}
}
