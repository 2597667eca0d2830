//! A pass over files that a job moves: a batch of them is held open, requests that began before have ended, and then each
//! moves, or stays for a reason.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;

use fsstack_pool::BranchIx;
use fsstack_sync::time::{Duration, Instant};
use smallvec::SmallVec;

use super::Jobs;
use super::failed_tries::FailedTries;
use super::walk::{CONTROL, HIDDEN, MOUNTED, Met, MetFile};
use super::{Job, NAMED, Staying, awaited};
use crate::files::departure::Departure;
use crate::files::{MAPPED, WRITTEN_PAST};
use crate::moves::batch;
use crate::moves::directories;
use crate::moves::hidden::{HIDDEN_DIFFERS, HIDDEN_DIR, HIDDEN_OPEN, HIDDEN_READ_ONLY, HIDDEN_REMOTE};
use crate::moves::job_move::{self, HeldFile};
use crate::moves::reasons::{
    FROZEN, HIDES, LINKED, LINKED_TOO_OFTEN, LOCKED, MANY_LINKED, OTHERS_LINKED, RESTRICTED, RULED, UNFIT,
};

pub(super) const CHANGED_NOW: &str = "it was just used or changed";
/// Reason for the branch to stay while such a file is open.
pub(super) const UNNAMED: &str =
    "it was made without a name (O_TMPFILE), and may get one there until it is closed";
/// Like [`UNNAMED`], where the branch does not tell.
pub(super) const UNSURE: &str = "whether a file that is open there has a name was not to be found out";
const BUSY: &str = "earlier requests to the pool have not ended";
/// Like [`BUSY`], while a mover is at work that does not hang: the move of a large file takes as long as it takes.
const OTHERS_MOVE: &str = "other files are being moved";

/// Files larger than those that move in batches that are held open at a time: the space of one that is removed meanwhile is in use
/// until its turn has come.
const LARGE_TOGETHER: usize = 8;
/// Work on one file after which the job looks whether it is to stand aside.
const ASIDE_EVERY: Duration = Duration::from_secs(1);

/// Whether a reason to stay may pass, and what is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Hope {
    /// When the file is closed or unlocked.
    Waits,
    /// When the job goes on: nothing was tried, as it paused, or another file is being moved.
    Paused,
    /// At another try.
    Tries,
    /// At another walk, if it was just changed.
    Once,
    Never,
}

pub(super) fn hope(why: &str) -> Hope {
    match why {
        WRITTEN_PAST | MAPPED | LOCKED | HIDDEN_OPEN | UNNAMED => Hope::Waits,
        LINKED | MANY_LINKED => Hope::Once,
        OTHERS_MOVE | OTHERS_LINKED => Hope::Paused,
        FROZEN
        | LINKED_TOO_OFTEN
        | HIDES
        | RULED
        | UNFIT
        | RESTRICTED
        | HIDDEN
        | HIDDEN_DIR
        | HIDDEN_DIFFERS
        | HIDDEN_READ_ONLY
        | HIDDEN_REMOTE
        | CONTROL
        | MOUNTED
        | directories::DIFFERS => Hope::Never,
        _ => Hope::Tries,
    }
}

impl Jobs {
    /// Why earlier requests have not ended.
    pub(super) fn why_not_ended(&self) -> &'static str {
        if self.moves.movers.any_works() { OTHERS_MOVE } else { BUSY }
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
    /// Names that were not there any more when they were looked up.
    pub(super) went: u64,
    pub(super) staying: u64,
    /// Files that were not tried, as the job was to wait.
    pub(super) untried: u64,
    pub(super) named: Vec<Staying>,
    pub(super) hopes: HashSet<Hope>,
    /// Files that were moved, still held open: a request under way may have met one where it was, and looks again where it is
    /// open. Each before what the pool knows it by.
    pub(super) moved_away: Vec<(HeldFile, Met<'a>)>,
    /// Those of earlier passes too.
    pub(super) tries: FailedTries,
}

impl<'a> Pass<'a> {
    /// A pass that keeps `moved_away` of the last one open, and leaves out what failed too often in the `tries` before.
    pub(super) fn new(
        jobs: &'a Jobs,
        job: &'a Job,
        moved_away: Vec<(HeldFile, Met<'a>)>,
        tries: FailedTries,
    ) -> Self {
        Self {
            jobs,
            job,
            moved: 0,
            went: 0,
            staying: 0,
            untried: 0,
            named: Vec::new(),
            hopes: HashSet::new(),
            moved_away,
            tries,
        }
    }

    /// Moves the files, in their order. `has_moved` is given those that have moved.
    pub(super) fn carry(&mut self, files: Vec<Leaving<'a>>, mut has_moved: impl FnMut(&MetFile<'a>)) {
        let (mut together, mut large) = (Vec::new(), 0);
        for leaving in files {
            large += usize::from(leaving.file.bytes > batch::LARGEST);
            together.push(leaving);
            if large == LARGE_TOGETHER {
                self.carry_together(std::mem::take(&mut together), &mut has_moved);
                large = 0;
            }
        }
        self.carry_together(together, &mut has_moved);
        // A file that is held open keeps its space, and its branch in the pool, for as long as the job pauses.
        if self.job.is_held_up() && self.jobs.changes.requests_ended() {
            self.moved_away.clear();
        }
    }

    fn carry_together(&mut self, files: Vec<Leaving<'a>>, has_moved: &mut impl FnMut(&MetFile<'a>)) {
        let jobs = self.jobs;
        let mut held = Vec::with_capacity(files.len());
        for leaving in files {
            if let Some(why) = self.tries.why_not_again(leaving.file.met.inode.id.ino) {
                self.stays(leaving.file.path, why);
                continue;
            }
            match jobs.moves.hold_for_move(&leaving.file.met.inode, leaving.from) {
                Ok(open) => match open.why_past_us() {
                    None => held.push((open, leaving)),
                    Some(why) => {
                        // Held any longer, it would keep its write path beyond the last close of the programs.
                        drop(open);
                        self.cannot_leave(&leaving.file, why);
                    }
                },
                Err(error) if error.is_missing() => self.stays(leaving.file.path, CHANGED_NOW),
                Err(error) => self.stays(leaving.file.path, job_move::in_words(error)),
            }
        }
        if held.is_empty() {
            return;
        }
        if !jobs.changes.requests_ended() {
            let why = jobs.why_not_ended();
            for (open, leaving) in held {
                drop(open);
                self.stays(leaving.file.path, why);
            }
            return;
        }
        self.moved_away.clear();
        let by_batch = self.carry_small(&held);
        for ((open, leaving), is_away) in held.into_iter().zip(by_batch) {
            self.carry_one(open, leaving, is_away, has_moved);
        }
    }

    /// Moves a file that is not `is_away` yet.
    fn carry_one(
        &mut self,
        mut open: HeldFile,
        Leaving { file, from, targets }: Leaving<'a>,
        is_away: bool,
        has_moved: &mut impl FnMut(&MetFile<'a>),
    ) {
        let (jobs, job) = (self.jobs, self.job);
        let is_held_up = job.is_held_up();
        let since = Cell::new(Instant::now());
        let branches: SmallVec<[BranchIx; 4]> =
            std::iter::once(from).chain(targets.iter().copied()).collect();
        let meanwhile = |departure: &Departure| {
            job.keeps_to_window(departure);
            self.gives_way(departure, &branches, &since);
        };
        let how = (&targets, job.work.manner(), file.names.clone());
        let tell = |departure: &Arc<Departure>| job.moves(departure);
        let moved = match (is_away, is_held_up) {
            (true, _) => Ok(()),
            (false, true) => Err(None),
            (false, false) => jobs.moves.move_held(&mut open, from, how, tell, meanwhile),
        };
        match moved {
            Ok(()) => {
                self.moved += 1;
                job.progress.lock().moved.add(file.bytes);
                jobs.moves.files.making_way.has_moved(file.met.inode.id.ino);
                has_moved(&file);
                self.moved_away.push((open, file.met));
            }
            // Nothing is wrong with it.
            Err(why) if is_held_up || job.is_called_off() || why.is_none() && job.is_held_up() => {
                self.is_untried();
            }
            Err(why) => {
                let why = why.unwrap_or(CHANGED_NOW);
                // Held any longer, it would not be closed by its last user. A move that hangs may have moved it.
                let open = (hope(why) != Hope::Waits).then_some(open);
                if hope(why) == Hope::Tries {
                    self.tries.add(file.met.inode.id.ino, why);
                }
                self.cannot_leave(&file, why);
                self.moved_away.extend(open.map(|open| (open, file.met)));
            }
        }
        if !is_away && !is_held_up {
            jobs.stand_aside(job, branches.iter(), since.get().elapsed(), |_| {});
        }
    }

    /// A move is under way: it stands still while the job is to stand aside. `since` is when the job last did.
    fn gives_way(&self, departure: &Departure, branches: &[BranchIx], since: &Cell<Instant>) {
        let worked = since.get().elapsed();
        if worked >= ASIDE_EVERY {
            self.jobs.stand_aside(self.job, branches.iter(), worked, |still| departure.hold_copy(still));
            since.set(Instant::now());
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
            let targets: HashSet<BranchIx> =
                ats.iter().flat_map(|at| held[*at].1.targets.iter().copied()).collect();
            let branches: Vec<BranchIx> = std::iter::once(from).chain(targets).collect();
            let since = Cell::new(Instant::now());
            let tell = |departure: &Arc<Departure>| job.moves(departure);
            let meanwhile = |departure: &Departure| {
                job.keeps_batch_to_window(departure);
                self.gives_way(departure, &branches, &since);
            };
            let away = self.jobs.moves.move_batch_held(files, from, job.work.manner(), tell, meanwhile);
            self.jobs.stand_aside(job, branches.iter(), since.get().elapsed(), |_| {});
            ats.into_iter().zip(away).for_each(|(at, away)| moved[at] = away);
        }
        moved
    }

    /// An object is not tried while the job is held up.
    pub(super) fn is_untried(&mut self) {
        self.untried += 1;
        self.hopes.insert(Hope::Paused);
    }

    /// The file stays for now; if it is in use, its close is waited for.
    fn cannot_leave(&mut self, file: &MetFile<'a>, why: &'static str) {
        let (jobs, job, inode) = (self.jobs, self.job, &file.met.inode);
        let open = inode.open_file();
        // A mapping without a handle ends unseen.
        let is_only_mapped = why == MAPPED && !open.as_deref().is_some_and(awaited::is_kept);
        if job.work.manner().make_way && matches!(why, WRITTEN_PAST | MAPPED) {
            jobs.moves.files.making_way.asks(job.id, inode.id.ino);
        }
        if hope(why) == Hope::Waits && !is_only_mapped {
            jobs.list.awaits(job, inode.id.ino, || open.as_deref().is_some_and(awaited::is_kept));
        }
        self.stays(file.path.clone(), why);
    }

    pub(super) fn stays(&mut self, path: Vec<u8>, why: &'static str) {
        self.staying += 1;
        self.hopes.insert(hope(why));
        if self.named.len() < NAMED {
            self.named.push(Staying { path, why });
        }
    }
}
