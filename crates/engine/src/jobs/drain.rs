//! Emptying a branch.
//!
//! First a walk counts: names that another branch's copy hides, and files that fit nowhere, are a reason not to begin.
//! Then the branch takes nothing new, and walks move what they find, until one finds nothing. What cannot move now is tried
//! again later, for as long as a file is in use, and a few times if it fails. When no file is left, the directories go, from
//! the leaves up, each once another branch shows the same.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fsstack_pool::{BranchIx, BranchMode, Printable, Size};

use super::plan::{Plan, Room};
use super::remembered;
use super::walk::{CONTROL, HIDDEN, MOUNTED, Met, MetFile, Visitor};
use super::{Amount, Job, JobState, NAMED, Staying};
use crate::files::{MAPPED, WRITTEN_PAST};
use crate::moves::directories;
use crate::moves::job_move::{self, HeldFile};
use crate::moves::reasons::{FROZEN, HIDES, LINKED, LOCKED, UNFIT};
use crate::tree::inode::Inode;
use crate::union::Union;

/// Walks without any move after which what fails stays.
const TRIES: u32 = 8;
/// Pauses between walks that move nothing.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Names in a refusal.
const SHOWN: usize = 5;

const CHANGED_NOW: &str = "it was just used or changed";
const BUSY: &str = "earlier requests to the pool have not ended";

/// Whether a reason to stay may pass, and what is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Hope {
    /// When the file is closed or unlocked.
    Waits,
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
        FROZEN | HIDES | UNFIT | HIDDEN | CONTROL | MOUNTED | directories::DIFFERS => Hope::Never,
        _ => Hope::Tries,
    }
}

impl Union {
    pub(super) fn drain(&self, job: &Job) -> JobState {
        let refuse = |why: String| {
            job.progress.lock().refusal = Some(why);
            JobState::Refused
        };
        let from = job.order.from;
        if let Err(why) = self.root_shows_without(from) {
            return refuse(format!("{}: the pool's root: {why}", job.path));
        }
        if let Err(why) = self.take_stock(job) {
            return refuse(why);
        }
        if job.is_called_off() {
            return JobState::Cancelled;
        }
        if job.order.dry_run {
            return JobState::Planned;
        }
        if let Err(error) = remembered::remember(&self.pool(), &job.order) {
            tracing::warn!(%error, branch = %job.path, "job: the branch does not keep that it is being emptied; the drain ends with the mount");
        }
        if self.set_branch_mode(from, BranchMode::NoCreate).is_err() {
            return refuse(format!("{}: no branch of the pool any more", job.path));
        }
        // Those that ranked it before put their objects there.
        self.requests_ended();
        job.is_now(JobState::Moving);
        self.empty(job)
    }

    /// Counts what is on the branch, and finds out whether it can leave.
    ///
    /// # Errors
    /// Why not, in a sentence.
    fn take_stock(&self, job: &Job) -> std::result::Result<(), String> {
        let mut count =
            Count { union: self, job, plan: Plan::new(self.rooms(job)), hidden: Vec::new(), hides: 0 };
        self.walk_branch(job, &mut count);
        let Count { plan, hidden, hides, .. } = count;
        job.progress.lock().shares = plan.shares().to_vec();
        if hides > 0 {
            let names: Vec<String> = hidden.iter().map(|path| Printable(path).to_string()).collect();
            let more = if hides > names.len() as u64 { ", ..." } else { "" };
            return Err(format!(
                "{}: {hides} of its objects are hidden by other branches' objects of the same name: {}{more}: move or remove \
                 them on the branch first",
                job.path,
                names.join(", ")
            ));
        }
        if plan.lacking() > 0 {
            return Err(format!(
                "{}: the other branches lack room for {} of it, above their floors",
                job.path,
                Size(plan.lacking()).approx()
            ));
        }
        Ok(())
    }

    /// Room on the branches that may take files.
    fn rooms(&self, job: &Job) -> Vec<Room> {
        let pool = self.pool();
        let room = |at: &BranchIx| {
            let branch = pool.live(*at)?;
            branch.distrust_space();
            let space = branch.space().ok()?;
            let floor = branch.floor().unwrap_or(pool.settings.floor).bytes_of(space.total);
            Some(Room { branch: *at, bytes: space.available.saturating_sub(floor) })
        };
        job.targets.iter().filter_map(room).collect()
    }

    /// Whether a branch may still take files: the operator may take them away, or their modes.
    fn has_target(&self, job: &Job) -> bool {
        let pool = self.pool();
        job.targets
            .iter()
            .any(|at| pool.live(*at).is_some_and(|at| at.mode() == BranchMode::ReadWrite && at.is_writable()))
    }

    fn empty(&self, job: &Job) -> JobState {
        let (mut idle, mut pause, mut moved_away) = (0, SHORTEST_PAUSE, Vec::new());
        loop {
            if !self.has_target(job) {
                job.progress.lock().refusal =
                    Some(format!("{}: no branch is left that takes its files", job.path));
                return JobState::Incomplete;
            }
            let mut pass = Pass {
                union: self,
                job,
                moved: 0,
                staying: 0,
                named: Vec::new(),
                hopes: HashSet::new(),
                moved_away: std::mem::take(&mut moved_away),
            };
            self.walk_branch(job, &mut pass);
            if pass.staying == 0 && !job.is_called_off() {
                let mut dirs = Directories(&mut pass);
                self.walk_branch(job, &mut dirs);
            }
            let Pass { moved, staying, named, hopes, moved_away: still_held, .. } = pass;
            moved_away = still_held;
            if self.requests_ended() {
                moved_away.clear();
            }
            {
                let mut progress = job.progress.lock();
                (progress.staying, progress.named) = (staying, named);
            }
            if job.is_called_off() {
                return JobState::Cancelled;
            }
            if staying == 0 && moved == 0 {
                // The last walk has found nothing. Its directories' times are on the other branches; so are the root's now.
                return match self.root_shows_without(job.order.from) {
                    Ok(()) => JobState::Done,
                    Err(_) => JobState::Incomplete,
                };
            }
            if moved > 0 {
                (idle, pause) = (0, SHORTEST_PAUSE);
                continue;
            }
            idle += 1;
            let goes_on = |hope: &Hope| match hope {
                Hope::Waits => true,
                Hope::Tries => idle < TRIES,
                Hope::Once => idle < 2,
                Hope::Never => false,
            };
            if !hopes.iter().any(goes_on) {
                return JobState::Incomplete;
            }
            job.is_now(JobState::Waiting);
            job.pause(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            job.is_now(JobState::Moving);
        }
    }
}

/// The first walk.
struct Count<'a> {
    union: &'a Union,
    job: &'a Job,
    plan: Plan,
    /// The first of the names that are hidden, and how many there are.
    hidden: Vec<Vec<u8>>,
    hides: u64,
}

impl<'a> Visitor<'a> for Count<'_> {
    fn files(&mut self, files: Vec<MetFile<'a>>) {
        let mut found = Amount::default();
        for file in files {
            let pool = self.union.pool();
            let why = |name| self.union.why_not_from(&pool, name, self.job.order.from);
            if let Some(why) = file.names.iter().find_map(why) {
                self.stays(file.path, why);
                continue;
            }
            self.plan.place(file.bytes);
            found.add(file.bytes);
        }
        let mut progress = self.job.progress.lock();
        progress.found.files += found.files;
        progress.found.bytes += found.bytes;
    }

    fn stays(&mut self, path: Vec<u8>, why: &'static str) {
        if why == HIDDEN {
            self.hides += 1;
            if self.hidden.len() < SHOWN {
                self.hidden.push(path.clone());
            }
        }
        let mut progress = self.job.progress.lock();
        progress.staying += 1;
        if progress.named.len() < NAMED {
            progress.named.push(Staying { path, why });
        }
    }

    fn dir(&mut self, _: &Arc<Inode>) {}
}

/// A walk that moves files.
struct Pass<'a> {
    union: &'a Union,
    job: &'a Job,
    moved: u64,
    staying: u64,
    named: Vec<Staying>,
    hopes: HashSet<Hope>,
    /// Files that were moved, still held open: a request under way may have met one where it was, and looks again where it is
    /// open. Each before what the pool knows it by.
    moved_away: Vec<(HeldFile, Met<'a>)>,
}

impl<'a> Visitor<'a> for Pass<'a> {
    fn files(&mut self, files: Vec<MetFile<'a>>) {
        let (union, job) = (self.union, self.job);
        let mut held = Vec::with_capacity(files.len());
        for file in files {
            match union.hold_for_move(&file.met.inode, job.order.from) {
                Ok(open) => held.push((open, file)),
                Err(error) if error.is_missing() => self.stays(file.path, CHANGED_NOW),
                Err(error) => self.stays(file.path, job_move::in_words(error)),
            }
        }
        if held.is_empty() {
            return;
        }
        if !union.requests_ended() {
            for (open, file) in held {
                drop(open);
                self.stays(file.path, BUSY);
            }
            return;
        }
        self.moved_away.clear();
        for (mut open, file) in held {
            let how = (&job.targets, job.order.rate, file.names.clone());
            let moved = match job.is_called_off() {
                true => Err(None),
                false => union.move_held(&mut open, job.order.from, how, |departure| job.moves(departure)),
            };
            self.moved_away.push((open, file.met));
            match moved {
                Ok(()) => {
                    self.moved += 1;
                    job.progress.lock().moved.add(file.bytes);
                }
                // Nothing is wrong with it.
                Err(_) if job.is_called_off() => self.staying += 1,
                Err(why) => self.stays(file.path, why.unwrap_or(CHANGED_NOW)),
            }
        }
    }

    fn stays(&mut self, path: Vec<u8>, why: &'static str) {
        self.staying += 1;
        self.hopes.insert(hope(why));
        if self.named.len() < NAMED {
            self.named.push(Staying { path, why });
        }
    }

    fn dir(&mut self, _: &Arc<Inode>) {}
}

/// A walk that removes empty directories.
struct Directories<'a, 'b>(&'a mut Pass<'b>);

impl<'a> Visitor<'a> for Directories<'_, 'a> {
    fn files(&mut self, files: Vec<MetFile<'a>>) {
        // Come since: the next walk moves them.
        self.0.moved += files.len() as u64;
    }

    fn stays(&mut self, path: Vec<u8>, why: &'static str) {
        self.0.stays(path, why);
    }

    fn dir(&mut self, dir: &Arc<Inode>) {
        let Pass { union, job, .. } = *self.0;
        match union.drop_copy_on(dir, job.order.from, &job.targets) {
            Ok(false) => {}
            Ok(true) => {
                self.0.moved += 1;
                job.progress.lock().dirs += 1;
            }
            Err(why) => self.0.stays(dir.path().unwrap_or_default(), why),
        }
    }
}
