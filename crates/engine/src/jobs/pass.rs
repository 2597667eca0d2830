//! A pass over files that a job moves: a batch of them is held open, requests that began before have ended, and then each
//! moves, or stays for a reason.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use fsstack_pool::BranchIx;

use super::Jobs;
use super::walk::{CONTROL, HIDDEN, MOUNTED, Met, MetFile};
use super::{Job, NAMED, Staying, awaited};
use crate::files::{MAPPED, WRITTEN_PAST};
use crate::moves::batch;
use crate::moves::directories;
use crate::moves::job_move::{self, HeldFile};
use crate::moves::reasons::{FROZEN, HIDES, LINKED, LOCKED, RULED, UNFIT};

pub(super) const CHANGED_NOW: &str = "it was just used or changed";
const BUSY: &str = "earlier requests to the pool have not ended";

/// Whether a reason to stay may pass, and what is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Hope {
    /// When the file is closed or unlocked.
    Waits,
    /// When the job goes on: nothing was tried, as it paused.
    Paused,
    /// At another try.
    Tries,
    /// At another walk, if it was just changed.
    Once,
    Never,
}

fn hope(why: &str) -> Hope {
    match why {
        WRITTEN_PAST | MAPPED | LOCKED => Hope::Waits,
        LINKED => Hope::Once,
        FROZEN | HIDES | RULED | UNFIT | HIDDEN | CONTROL | MOUNTED | directories::DIFFERS => Hope::Never,
        _ => Hope::Tries,
    }
}

/// A file that is to leave a branch.
pub(super) struct Leaving<'a> {
    pub(super) file: MetFile<'a>,
    pub(super) from: BranchIx,
    /// Branches that may take it.
    pub(super) targets: Arc<[BranchIx]>,
}

/// A pass, and what has come of it.
pub(super) struct Pass<'a> {
    pub(super) jobs: &'a Jobs,
    pub(super) job: &'a Job,
    pub(super) moved: u64,
    pub(super) staying: u64,
    /// Files that were not tried, as the job was to wait.
    pub(super) untried: u64,
    pub(super) named: Vec<Staying>,
    pub(super) hopes: HashSet<Hope>,
    /// Files that were moved, still held open: a request under way may have met one where it was, and looks again where it is
    /// open. Each before what the pool knows it by.
    pub(super) moved_away: Vec<(HeldFile, Met<'a>)>,
}

impl<'a> Pass<'a> {
    /// A pass that keeps `moved_away` of the last one open.
    pub(super) fn new(jobs: &'a Jobs, job: &'a Job, moved_away: Vec<(HeldFile, Met<'a>)>) -> Self {
        Self {
            jobs,
            job,
            moved: 0,
            staying: 0,
            untried: 0,
            named: Vec::new(),
            hopes: HashSet::new(),
            moved_away,
        }
    }

    /// Moves the files. Those of which the last one is answered with true have moved.
    pub(super) fn carry(&mut self, files: Vec<Leaving<'a>>, mut has_moved: impl FnMut(&MetFile<'a>)) {
        let (jobs, job) = (self.jobs, self.job);
        let mut held = Vec::with_capacity(files.len());
        for leaving in files {
            match jobs.moves.hold_for_move(&leaving.file.met.inode, leaving.from) {
                Ok(open) => held.push((open, leaving)),
                Err(error) if error.is_missing() => self.stays(leaving.file.path, CHANGED_NOW),
                Err(error) => self.stays(leaving.file.path, job_move::in_words(error)),
            }
        }
        if held.is_empty() {
            return;
        }
        if !jobs.changes.requests_ended() {
            for (open, leaving) in held {
                drop(open);
                self.stays(leaving.file.path, BUSY);
            }
            return;
        }
        self.moved_away.clear();
        let by_batch = self.carry_small(&held);
        for ((mut open, Leaving { file, from, targets }), is_away) in held.into_iter().zip(by_batch) {
            let how = (&targets, job.work.manner(), file.names.clone());
            let is_held_up = job.is_held_up();
            let began = Instant::now();
            let moved = match (is_away, is_held_up) {
                (true, _) => Ok(()),
                (false, true) => Err(None),
                (false, false) => {
                    jobs.moves.move_held(&mut open, from, how, |departure| job.moves(departure))
                }
            };
            match moved {
                Ok(()) => {
                    self.moved += 1;
                    job.progress.lock().moved.add(file.bytes);
                    has_moved(&file);
                }
                // Nothing is wrong with it.
                Err(_) if is_held_up || job.is_called_off() => {
                    self.untried += 1;
                    self.hopes.insert(Hope::Paused);
                }
                Err(why) => {
                    let (why, inode) = (why.unwrap_or(CHANGED_NOW), &file.met.inode);
                    let open = inode.open_file();
                    // A mapping without a handle ends unseen.
                    let is_only_mapped = why == MAPPED && !open.as_deref().is_some_and(awaited::is_kept);
                    if hope(why) == Hope::Waits && !is_only_mapped {
                        jobs.list.awaits(job, inode.id.ino, open.as_deref());
                    }
                    self.stays(file.path.clone(), why);
                }
            }
            self.moved_away.push((open, file.met));
            if !is_away && !is_held_up {
                jobs.stand_aside(job, std::iter::once(&from).chain(targets.iter()), began.elapsed());
            }
        }
    }

    /// Moves small files together, those of each branch: which have moved.
    fn carry_small(&self, held: &[(HeldFile, Leaving<'a>)]) -> Vec<bool> {
        let (job, mut moved) = (self.job, vec![false; held.len()]);
        let mut branches: Vec<BranchIx> = Vec::new();
        for (_, leaving) in held {
            if !branches.contains(&leaving.from) {
                branches.push(leaving.from);
            }
        }
        for from in branches.into_iter().filter(|_| !job.is_held_up()) {
            let is_in = |(_, (_, leaving)): &(usize, &(HeldFile, Leaving<'a>))| {
                leaving.from == from && leaving.file.bytes <= batch::LARGEST
            };
            let (ats, of_it): (Vec<usize>, Vec<_>) = held.iter().enumerate().filter(is_in).unzip();
            let files =
                of_it.into_iter().map(|(open, leaving)| (open, &leaving.file.names, &leaving.targets));
            let (manner, began) = (job.work.manner(), Instant::now());
            let away = self.jobs.moves.move_batch_held(files, from, manner, |departure| job.moves(departure));
            let targets: HashSet<BranchIx> =
                ats.iter().flat_map(|at| held[*at].1.targets.iter().copied()).collect();
            self.jobs.stand_aside(job, std::iter::once(&from).chain(&targets), began.elapsed());
            ats.into_iter().zip(away).for_each(|(at, away)| moved[at] = away);
        }
        moved
    }

    pub(super) fn stays(&mut self, path: Vec<u8>, why: &'static str) {
        self.staying += 1;
        self.hopes.insert(hope(why));
        if self.named.len() < NAMED {
            self.named.push(Staying { path, why });
        }
    }
}
