//! The files that a balance moves: whole directories where the pool keeps them together, then single files, each to a branch that
//! its placement rule names.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fsstack_pool::{BranchIx, BranchSet, Floor, Ino, Scope};

use super::Jobs;
use super::level::Quotas;
use super::moving_list::MovingList;
use super::rearrange::{FoundFile, SETTLED_FOR};
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
        let (list, planned) = (MovingList::default(), HashMap::new());
        let mut choice = Choice { jobs: self, job, quotas, list, planned, taken: settled };
        let keeps_together = self
            .pool()
            .settings
            .create
            .policies()
            .first()
            .is_some_and(|policy| matches!(policy.scope, Scope::HoldsParent | Scope::DeepestParent));
        if keeps_together {
            self.choose_files(&mut choice, &order.dir, Unit::Directory)?;
        }
        if !keeps_together || choice.quotas.total() > least / ENOUGH {
            self.choose_files(&mut choice, &order.dir, Unit::File)?;
        }
        Ok(choice.list)
    }

    fn choose_files(&self, choice: &mut Choice<'_>, dir: &[u8], unit: Unit) -> Result<(), String> {
        for giver in choice.quotas.givers().to_vec() {
            let job = choice.job;
            let mut collect = Collect { choice, from: giver.branch, unit, dir: None, found: Vec::new() };
            self.walk_dir(job, giver.branch, dir, &mut collect)?;
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

/// Files that are chosen so far.
struct Choice<'a> {
    jobs: &'a Jobs,
    job: &'a Job,
    quotas: Quotas,
    list: MovingList,
    /// Bytes that branches are to take.
    planned: HashMap<BranchIx, u64>,
    /// Files that are chosen, or that stay where they are for now.
    taken: HashSet<Ino>,
}

impl Choice<'_> {
    /// Branches that may take `bytes` of a file or several: those on which none lies against its placement rules, with the floor that
    /// these ask for.
    fn allowed(&self, belongs: Belonging, bytes: u64) -> BranchSet {
        let Belonging { home, floor: Some(floor) } = belongs else { return belongs.home };
        let pool = self.jobs.pool();
        let has_room = |at: BranchIx| {
            let space = pool.branch(at).space().unwrap_or_default();
            let planned = self.planned.get(&at).copied().unwrap_or(0);
            let need = floor.bytes_of(space.total).saturating_add(bytes).saturating_add(planned);
            home.contains(at) && need <= space.available
        };
        pool.branches.iter().map(|branch| branch.ix).filter(|at| has_room(*at)).collect()
    }
}

/// Where a file belongs by its placement rules.
#[derive(Clone, Copy, Debug)]
struct Belonging {
    home: BranchSet,
    /// Floor of the rule that ranks.
    floor: Option<Floor>,
}

/// A walk over a branch that gives files.
struct Collect<'c, 'a> {
    choice: &'c mut Choice<'a>,
    from: BranchIx,
    unit: Unit,
    /// The directory whose files come.
    dir: Option<Arc<Inode>>,
    /// Those that may be chosen.
    found: Vec<(FoundFile, Belonging)>,
}

impl Collect<'_, '_> {
    /// Chooses among the files of the last directory.
    fn flush(&mut self) {
        let found = std::mem::take(&mut self.found);
        match self.unit {
            Unit::Directory => {
                let bytes: u64 = found.iter().map(|(file, _)| file.bytes).sum();
                let each = found.iter().map(|(_, belongs)| *belongs);
                // Only one with further names in other directories may belong elsewhere than the rest.
                let all = each.reduce(|all, one| Belonging {
                    home: all.home.and(one.home),
                    floor: all.floor.or(one.floor),
                });
                if bytes > 0
                    && let Some(to) = all.and_then(|all| self.choose(all, bytes))
                {
                    found.into_iter().for_each(|(file, _)| self.take(file, to));
                }
            }
            Unit::File => {
                for (file, belongs) in found {
                    if let Some(to) = self.choose(belongs, file.bytes) {
                        self.take(file, to);
                    }
                }
            }
        }
    }

    /// The branch that takes `bytes` together, of what belongs there.
    fn choose(&mut self, belongs: Belonging, bytes: u64) -> Option<BranchIx> {
        let allowed = self.choice.allowed(belongs, bytes);
        self.choice.quotas.choose(self.from, bytes, allowed)
    }

    fn take(&mut self, file: FoundFile, to: BranchIx) {
        let Choice { list, planned, taken, .. } = &mut *self.choice;
        taken.insert(file.ino);
        *planned.entry(to).or_default() += file.bytes;
        file.plan(self.from, to, list);
    }

    /// Whether the file may be chosen.
    fn is_free(&self, file: &MetFile<'_>) -> bool {
        let Choice { jobs, taken, .. } = &*self.choice;
        let pool = jobs.pool();
        let is_hidden = |name| jobs.tree.why_not_from(&pool, name, self.from).is_some();
        file.bytes > 0
            && !file.is_frozen
            && !taken.contains(&file.met.inode.id.ino)
            && !file.names.iter().any(is_hidden)
    }
}

impl<'a> Visitor<'a> for Collect<'_, '_> {
    fn files(&mut self, files: Vec<MetFile<'a>>) {
        for file in files {
            let dir = file.names.last().map(|name| name.parent.clone());
            if dir.as_ref().map(|dir| dir.id.ino) != self.dir.as_ref().map(|dir| dir.id.ino) {
                self.flush();
                self.dir = dir;
            }
            if self.is_free(&file) {
                let pool = self.choice.jobs.pool();
                let placement = placement_of(&pool, &file.names);
                let floor = placement.rule().and_then(|rule| rule.rule.floor);
                self.found.push((FoundFile::of(&file), Belonging { home: placement.home(), floor }));
            }
        }
        let counted = self.choice.list.amount();
        self.choice.job.progress.lock().found = counted;
    }

    fn stays(&mut self, _: Vec<u8>, _: &'static str) {}

    fn unknown(&mut self, path: Vec<u8>, why: &'static str) {
        self.choice.job.leaves_out(path, why);
    }

    fn dir(&mut self, _: &Arc<Inode>) {}
}
