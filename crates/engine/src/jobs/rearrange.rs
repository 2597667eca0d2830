//! Balancing branches, and gathering a directory on one branch: first a list of the files that are to move, then the moves.
//!
//! The list is complete before anything moves, so that a dry run tells what a run does. A file that is gone, changed or moved
//! when its turn comes is left out. What cannot move is tried again a few times, and then stays.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fsstack_branch::admin_state::OpenFileRef;
use fsstack_pool::{BranchIx, EntryName, Ino, Printable, Size};
use fsstack_sync::time::{Duration, Instant};

use super::Jobs;
use super::failed_tries::FailedTries;
use super::pass::{CHANGED_NOW, Hope, Leaving, Pass};
use super::planning::gather;
use super::planning::level::Load;
use super::planning::list::{ListedFile, MovingList, PlannedMove};
use super::planning::tier::LastUse;
use super::walk::{Met, MetFile, Visitor};
use super::{BadJob, BalanceOrder, ConsolidateOrder, Job, JobState, JobView, NAMED, PLANNED_SHOWN, Work};
use crate::inode::{Inode, InodeName};
use crate::moves::job_move;
use crate::moves::moving::Names;
use crate::moves::reasons::RULED;
use crate::tree::placement::placement_at;

/// Passes over the list.
const PASSES: u32 = 4;
/// Pause between two passes of a job over its list.
const PASS_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause of a job that waits for files to make way.
const LONGEST_PASS_PAUSE: Duration = Duration::from_secs(60);
/// How long a tier waits for files to make way after its last move.
const LONGEST_TIER_WAIT: Duration = Duration::from_secs(600);
/// Files that are held open for their move at a time.
const BATCH: usize = 128;
/// How long a file that a balance has moved stays where it is.
pub(super) const SETTLED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Files that are remembered so.
const SETTLED: usize = 1 << 20;

impl Jobs {
    /// Begins to make branches about as full as each other.
    ///
    /// # Errors
    /// It cannot begin.
    pub(crate) fn start_balance(self: &Arc<Self>, order: BalanceOrder) -> Result<JobView, BadJob> {
        let (subject, stay) = (self.subject(&order.dir)?, self.all_stay());
        let mine = order.clone();
        self.begin_job(Work::Balance(order), subject, stay, move |jobs, job| {
            let listed = jobs.list_for_balance(job, &mine);
            jobs.carry_out_list(job, listed, true)
        })
    }

    /// Begins to gather all files below a directory on one branch.
    ///
    /// # Errors
    /// It cannot begin.
    pub(crate) fn start_consolidate(self: &Arc<Self>, order: ConsolidateOrder) -> Result<JobView, BadJob> {
        if order.to.is_some_and(|to| !self.takes_moved(to)) {
            return Err(BadJob::NoTarget);
        }
        let (subject, stay) = (self.subject(&order.dir)?, self.all_stay());
        let mine = order.clone();
        self.begin_job(Work::Consolidate(order), subject, stay, move |jobs, job| {
            let listed = jobs.list_for_consolidate(job, &mine);
            jobs.carry_out_list(job, listed, false)
        })
    }

    /// The directory in words.
    pub(super) fn subject(&self, dir: &[u8]) -> Result<String, BadJob> {
        let shown = format!("/{}", Printable(dir));
        match self.meet_path(dir) {
            Ok(way) if way.last().is_some_and(|met| met.inode.is_dir()) => Ok(shown),
            Ok(_) => Err(BadJob::NoDirectory(format!("{shown}: not a directory"))),
            Err(error) if error.is_missing() => {
                Err(BadJob::NoDirectory(format!("{shown}: no such directory")))
            }
            Err(error) => Err(BadJob::NoDirectory(format!("{shown}: {error}"))),
        }
    }

    /// Keeps every branch in the pool.
    pub(super) fn all_stay(&self) -> Vec<OpenFileRef> {
        self.pool().branches.iter().filter_map(|branch| branch.acquire().ok()).collect()
    }

    fn takes_moved(&self, at: BranchIx) -> bool {
        self.pool().live(at).is_some_and(|at| at.takes_moves())
    }

    /// Branches by file system, the first of each, with their space.
    pub(super) fn loads(&self) -> Vec<Load> {
        let pool = self.pool();
        let mut seen = HashSet::new();
        let load = |ix: BranchIx| {
            let branch = pool.live(ix)?;
            branch.distrust_space();
            let space = branch.space().ok()?;
            let floor = branch.floor().unwrap_or(pool.settings.floor).bytes_of(space.total);
            let (takes, gives) = (branch.takes_moves(), branch.is_writable());
            Some(Load { branch: ix, total: space.total, available: space.available, floor, gives, takes })
        };
        let first = pool.branches.iter().filter(|branch| seen.insert(branch.dev())).map(|branch| branch.ix);
        first.filter_map(load).collect()
    }

    fn list_for_consolidate(&self, job: &Job, order: &ConsolidateOrder) -> Result<MovingList, String> {
        let mut found: Vec<(BranchIx, ListedFile)> = Vec::new();
        let branches: Vec<BranchIx> = self.pool().branches.iter().map(|branch| branch.ix).collect();
        for at in branches {
            let mut gather = Gather { jobs: self, job, from: at, found: Vec::new() };
            self.walk_dir(job, at, &order.dir, &mut gather)?;
            found.extend(gather.found.into_iter().map(|file| (at, file)));
        }
        let candidates: Vec<BranchIx> = match order.to {
            Some(to) => vec![to],
            None => self.loads().iter().map(|load| load.branch).filter(|at| self.takes_moved(*at)).collect(),
        };
        let files = found.iter().map(|(from, file)| (*from, file.bytes));
        let Some(to) = gather::target(files.clone(), &self.rooms(&candidates)) else {
            let all: u64 = files.map(|(_, bytes)| bytes).sum();
            return Err(format!(
                "{}: no branch that may take it has room for all of it, {}, above its floor",
                job.subject,
                Size(all).approx()
            ));
        };
        let mut list = MovingList::default();
        for (from, file) in found.into_iter().filter(|(from, _)| *from != to) {
            match self.is_forbidden(&file, to) {
                true => job.leaves_out(file.path(), RULED),
                false => list.plan(file, from, to),
            }
        }
        Ok(list)
    }

    /// Whether a strict placement rule keeps the file from the branch `to`.
    fn is_forbidden(&self, file: &ListedFile, to: BranchIx) -> bool {
        placement_at(&self.pool(), file.names.iter().map(|(dir, _)| &**dir)).forbids(to)
    }

    pub(super) fn walk_dir<'a>(
        &'a self,
        job: &Job,
        from: BranchIx,
        dir: &[u8],
        visitor: &mut dyn Visitor<'a>,
    ) -> Result<(), String> {
        let way = self.meet_path(dir).map_err(|error| format!("{}: {error}", job.subject))?;
        let mut way = way;
        if let Some(top) = way.pop() {
            self.walk_below(job, from, (top, dir.to_vec()), visitor);
        }
        Ok(())
    }

    /// Moves the files of the list, or keeps it to be shown. They stay where they are for a day if they are `settled` then.
    pub(super) fn carry_out_list(
        &self,
        job: &Job,
        listed: Result<MovingList, String>,
        settles: bool,
    ) -> JobState {
        let mut list = match listed {
            Ok(list) => list,
            Err(why) => {
                job.progress.lock().refusal = Some(why);
                return JobState::Refused;
            }
        };
        {
            let mut progress = job.progress.lock();
            (progress.found, progress.shares) = (list.amount(), list.shares());
            if job.work.manner().dry_run {
                list.keep_first(PLANNED_SHOWN);
                progress.planned = Some(Arc::new(std::mem::take(&mut list)));
            }
        }
        if job.is_called_off() {
            return JobState::Cancelled;
        }
        if job.work.manner().dry_run {
            return JobState::Planned;
        }
        job.is_now(JobState::Moving);
        self.move_listed(job, &list, settles)
    }

    /// Moves the files of the list: passes over those that are left, until none is or no further one helps.
    fn move_listed(&self, job: &Job, list: &MovingList, settles: bool) -> JobState {
        let left_out = {
            let progress = job.progress.lock();
            (progress.staying, progress.named.clone())
        };
        let mut left: Vec<&PlannedMove> = list.moves().iter().collect();
        let (mut tries, mut pause, mut moved_at) = (0, PASS_PAUSE, Instant::now());
        let mut failed = FailedTries::new(PASSES);
        loop {
            self.list.awaits_none(job);
            let before = left.len();
            let hopes = self.pass_over(job, list, (&mut left, &mut failed), settles);
            {
                let mut progress = job.progress.lock();
                progress.staying += left_out.0;
                let named = left_out.1.iter().chain(&progress.named).take(NAMED).cloned().collect();
                progress.named = named;
            }
            if job.is_called_off() {
                return JobState::Cancelled;
            }
            if left.len() < before {
                (pause, moved_at) = (PASS_PAUSE, Instant::now());
            }
            // A pass that a pause cuts short has not tried all.
            let is_cut = hopes.contains(&Hope::Paused);
            tries += u32::from(!is_cut);
            let more = is_cut || hopes.contains(&Hope::Tries) || hopes.contains(&Hope::Once);
            // A tier looks again, with a new plan.
            let waits = job.work.manner().make_way
                && hopes.contains(&Hope::Waits)
                && !(job.work.yields() && moved_at.elapsed() > LONGEST_TIER_WAIT);
            if left.is_empty() || !(waits || more && tries < PASSES) {
                break;
            }
            job.is_now(JobState::Waiting);
            pause = match job.pause(pause) {
                true => {
                    job.rest(PASS_PAUSE);
                    PASS_PAUSE
                }
                false if waits => (pause * 2).min(LONGEST_PASS_PAUSE),
                false => PASS_PAUSE,
            };
            job.is_now(JobState::Moving);
        }
        if job.progress.lock().staying == 0 { JobState::Done } else { JobState::Incomplete }
    }

    /// Moves what can be moved, and leaves the others in `left`. Returns what hope there is for them.
    fn pass_over(
        &self,
        job: &Job,
        list: &MovingList,
        (left, failed): (&mut Vec<&PlannedMove>, &mut FailedTries),
        settles: bool,
    ) -> HashSet<Hope> {
        let tries = std::mem::replace(failed, FailedTries::new(PASSES));
        let mut pass = Pass::new(self, job, Vec::new(), tries);
        let mut moved: HashSet<Ino> = HashSet::new();
        let mut gone: HashSet<Ino> = HashSet::new();
        for chunk in left.chunks(BATCH) {
            if !job.goes_on() {
                break;
            }
            let mut ways = HashMap::new();
            let mut leaving = Vec::with_capacity(chunk.len());
            for planned in chunk {
                match self.meet_planned(list, planned, &mut ways) {
                    Ok(Some(file)) => {
                        leaving.push(Leaving { file, from: planned.from, targets: Arc::new([planned.to]) });
                    }
                    Ok(None) => _ = gone.insert(planned.ino),
                    Err(why) => pass.stays(list.path(planned), why),
                }
            }
            pass.carry(leaving, |file| _ = moved.insert(file.met.inode.id.ino));
        }
        if settles {
            let mut jobs = self.list.state.lock();
            let room = SETTLED.saturating_sub(jobs.settled.len());
            let now = Instant::now();
            jobs.settled.extend(moved.iter().take(room).map(|ino| (*ino, now)));
        }
        left.retain(|planned| !moved.contains(&planned.ino) && !gone.contains(&planned.ino));
        let mut progress = job.progress.lock();
        (progress.staying, progress.untried, progress.named) = (pass.staying, pass.untried, pass.named);
        // The moved files stay open until the requests under way have ended, which may have met them on their old branch.
        drop(progress);
        self.changes.requests_ended();
        *failed = pass.tries;
        pass.hopes
    }

    /// A planned file, if it is as it was planned. The directories that lead to it are known for as long as `ways`.
    ///
    /// # Errors
    /// Why it cannot be asked for.
    fn meet_planned<'a>(
        &'a self,
        list: &MovingList,
        planned: &PlannedMove,
        ways: &mut HashMap<u32, Vec<Met<'a>>>,
    ) -> Result<Option<MetFile<'a>>, &'static str> {
        let mut names = Names::new();
        let (mut met, mut used) = (None, LastUse::default());
        for (dir, name) in &planned.names {
            let way = match ways.entry(*dir) {
                std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::hash_map::Entry::Vacant(new) => match self.meet_path(list.dir_of(*dir)) {
                    Ok(way) => new.insert(way),
                    Err(error) if error.is_missing() => return Ok(None),
                    Err(error) => return Err(job_move::in_words(error)),
                },
            };
            let Some(parent) = way.last().filter(|parent| parent.inode.is_dir()) else { return Ok(None) };
            let Ok(entry_name) = EntryName::new(name) else { return Ok(None) };
            let entry = match self.tree.lookup_in(&parent.inode, entry_name) {
                Ok(entry) => entry,
                Err(error) if error.is_missing() => return Ok(None),
                Err(error) => return Err(job_move::in_words(error)),
            };
            let Some(same) = self.met(entry.ino) else { return Err(CHANGED_NOW) };
            let is_same = entry.ino == planned.ino
                && same.inode.branch() == Some(planned.from)
                && entry.attr.stat.nlink as usize == planned.names.len();
            if !is_same {
                return Ok(None);
            }
            names.push(InodeName::new(&parent.inode, name));
            met = Some(same);
            used = LastUse { read: entry.attr.stat.atime, written: entry.attr.stat.mtime };
        }
        Ok(met.map(|met| MetFile {
            met,
            path: list.path(planned),
            bytes: planned.bytes,
            used,
            is_frozen: false,
            names,
        }))
    }
}

/// A walk that takes note of all files.
struct Gather<'a> {
    jobs: &'a Jobs,
    job: &'a Job,
    from: BranchIx,
    found: Vec<ListedFile>,
}

impl<'a> Visitor<'a> for Gather<'_> {
    fn files(&mut self, files: Vec<MetFile<'a>>) {
        let pool = self.jobs.pool();
        for file in files {
            let why = |name| self.jobs.tree.why_not_from(&pool, name, self.from);
            match file.names.iter().find_map(why).or(file.why_frozen()) {
                Some(why) => self.stays(file.path, why),
                None => self.found.push(file.listed()),
            }
        }
    }

    fn stays(&mut self, path: Vec<u8>, why: &'static str) {
        self.job.leaves_out(path, why);
    }

    fn dir(&mut self, _: &Arc<Inode>) {}
}
