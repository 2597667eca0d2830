//! Emptying a branch.
//!
//! First a walk counts: names that another branch's copy hides, and files that fit nowhere, are a reason not to begin.
//! Then the branch takes nothing new, and walks move what they find, until one finds nothing. What cannot move now is tried
//! again later, for as long as a file is in use, and a few times if it fails. When no file is left, the directories go, from
//! the leaves up, each once another branch shows the same.

use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_pool::{BranchIx, BranchMode};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys as sys;

use super::Jobs;
use super::failed_tries::FailedTries;
use super::pass::{self, Hope, Leaving, Pass, UNNAMED, UNSURE};
use super::planning::room::Room;
use super::walk::{HIDDEN, MetFile, Visitor};
use super::{HiddenCopies, Job, JobState, Work};
use crate::inode::{Inode, InodeName};
use crate::moves::hidden::HiddenName;
use crate::moves::set_aside::keeps_objects;
use crate::recovery::recover::has_waiting_records;

/// Walks without any move after which what fails stays.
const TRIES: u32 = 8;
/// First pause between walks of a drain that move nothing.
const SHORTEST_DRAIN_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause between walks of a drain that move nothing.
const LONGEST_DRAIN_PAUSE: Duration = Duration::from_secs(60);
/// Least pause after a close that the job waited for, in durations of a walk.
const WALKS_APART: u32 = 4;
/// Files that are met before some are moved.
const TOGETHER: usize = 256;

impl Jobs {
    /// Like [`Self::drain`], of a drain that an earlier daemon began: nobody waits for its answer, so a refusal is logged.
    pub(super) fn drain_again(&self, job: &Job, from: BranchIx, targets: &Arc<[BranchIx]>) -> JobState {
        let state = self.drain(job, from, targets);
        if state == JobState::Refused {
            let error = job.view().refusal.unwrap_or_default();
            tracing::warn!(%error, branch = %job.subject, "drain not resumed; start it with fsstack branch drain");
        }
        state
    }

    pub(super) fn drain(&self, job: &Job, from: BranchIx, targets: &Arc<[BranchIx]>) -> JobState {
        let refuse = |why: String| {
            job.progress.lock().refusal = Some(why);
            JobState::Refused
        };
        if let Err(why) = self.moves.check_root_without(from) {
            return refuse(format!("{}: the pool's root: {why}", job.subject));
        }
        if let Err(why) = self.check_room(job, from, targets) {
            return refuse(why);
        }
        if job.is_called_off() {
            return JobState::Cancelled;
        }
        if job.work.manner().dry_run {
            return JobState::Planned;
        }
        if let Work::Drain(order) = &job.work
            && let Err(error) = self.remember_drain(order)
        {
            tracing::warn!(%error, branch = %job.subject, "job: the branch cannot store that it is being drained; the drain ends with the mount");
        }
        if self.changes.set_branch_mode(from, BranchMode::NoCreate).is_err() {
            return refuse(format!("{}: no branch of the pool any more", job.subject));
        }
        // Those that ranked it before put their objects there.
        let ended = self.changes.requests_ended();
        self.moves.exchanges_ended();
        job.is_now(JobState::Moving);
        self.empty(job, (from, ended), targets)
    }

    /// Adds the open files of the branch that were made without a name, and may get one there; no others are made meanwhile.
    fn wait_for_unnamed(&self, pass: &mut Pass<'_>, from: BranchIx) {
        let pool = self.pool();
        let branch = pool.branch(from);
        if branch.open_files() == 0 {
            return;
        }
        for inode in self.tree.inodes.all() {
            let is_there = inode.branch() == Some(from) && !inode.never_gets_name();
            let Some(file) = inode.open_file().filter(|_| is_there) else { continue };
            match file.ask_inside(|fd| sys::at::unnamed_below(branch.root().as_fd(), fd)) {
                Ok(None) => {}
                Ok(Some(path)) => {
                    self.list.awaits(pass.job, inode.id.ino, || inode.open_file().is_some());
                    pass.stays([b"/", path.as_slice()].concat(), UNNAMED);
                }
                Err(_) => pass.stays(b"/".to_vec(), UNSURE),
            }
        }
    }

    /// Room on the branches that may take files.
    pub(crate) fn rooms(&self, targets: &[BranchIx]) -> Vec<Room> {
        let pool = self.pool();
        let room = |at: &BranchIx| {
            let branch = pool.live(*at).filter(|branch| branch.takes_moves())?;
            branch.distrust_space();
            let space = branch.space().ok()?;
            let floor = branch.floor().unwrap_or(pool.settings.floor).bytes_of(space.total);
            let least = branch.min_inodes().unwrap_or(pool.settings.min_inodes);
            let inodes = match space.inodes_total {
                0 => u64::MAX, // not counted
                _ => space.inodes_free.saturating_sub(least),
            };
            let bytes = space.available.saturating_sub(floor);
            Some(Room { branch: *at, dev: branch.dev(), bytes, inodes })
        };
        targets.iter().filter_map(room).collect()
    }

    /// Whether a branch may still take files: the operator may take them away, or their modes.
    fn has_target(&self, targets: &[BranchIx]) -> bool {
        let pool = self.pool();
        targets.iter().any(|at| pool.live(*at).is_some_and(|at| at.takes_moves()))
    }

    /// Checks that the branch keeps no objects that were set aside, nor records that wait for another branch: its removal would take
    /// them along.
    ///
    /// # Errors
    /// It does, or cannot tell, in a sentence.
    pub(super) fn check_keeps_none(&self, job: &Job, from: BranchIx) -> Result<(), String> {
        let pool = self.pool();
        let branch = pool.branch(from);
        if branch.ask(|| has_waiting_records(branch)).unwrap_or(false) {
            return Err(format!(
                "{}: it has records of interrupted changes that are not settled, and would take them along: mount the branch that \
                 they wait for, or give that up (fsstack branch forget)",
                job.subject
            ));
        }
        match keeps_objects(branch) {
            Ok(false) => Ok(()),
            Ok(true) => Err(format!(
                "{}: it keeps objects that were set aside, and would take them along: fsstack check --prune removes those that \
                 are the same as what the pool shows, and names the others",
                job.subject
            )),
            Err(error) => {
                Err(format!("{}: whether it keeps objects that were set aside: {error}", job.subject))
            }
        }
    }

    /// The last walk has found nothing. Its directories' times are on the other branches; so are the root's now.
    fn drained(&self, job: &Job, from: BranchIx) -> JobState {
        match self.check_keeps_none(job, from) {
            Ok(()) if self.moves.root_shows_without(from).is_ok() => JobState::Done,
            Ok(()) => JobState::Incomplete,
            Err(why) => {
                job.progress.lock().refusal = Some(why);
                JobState::Incomplete
            }
        }
    }

    /// Empties the branch; `ended` if no earlier request makes anything there any more.
    fn empty(&self, job: &Job, (from, mut ended): (BranchIx, bool), targets: &Arc<[BranchIx]>) -> JobState {
        let (mut idle, mut pause, mut moved_away) = (0, SHORTEST_DRAIN_PAUSE, Vec::new());
        let mut tries = FailedTries::new(TRIES);
        loop {
            if !self.has_target(targets) {
                return end_without_target(job);
            }
            self.list.awaits_none(job);
            let began = Instant::now();
            let mut pass = Pass::new(self, job, std::mem::take(&mut moved_away), tries);
            // Before the walk, which finds those that have got their names.
            self.wait_for_unnamed(&mut pass, from);
            let had_ended = ended;
            let mut walk = DrainWalk { pass, from, targets, met: Vec::new() };
            self.walk_branch(job, from, &mut walk);
            walk.move_met();
            if walk.pass.staying + walk.pass.untried == 0 && !job.is_called_off() {
                let mut dirs = Directories(&mut walk);
                self.walk_branch(job, from, &mut dirs);
            }
            let Pass { moved, went, staying, untried, named, mut hopes, .. } = walk.pass;
            (moved_away, tries) = (walk.pass.moved_away, walk.pass.tries);
            ended = self.changes.requests_ended();
            if ended {
                moved_away.clear();
            }
            match (had_ended, ended) {
                (true, true) => {}
                // One more walk, and none of those that are counted.
                (false, true) => _ = hopes.insert(Hope::Paused),
                (_, false) => _ = hopes.insert(pass::hope(self.why_not_ended())),
            }
            {
                let mut progress = job.progress.lock();
                (progress.staying, progress.untried, progress.named) = (staying, untried, named);
            }
            if job.is_called_off() {
                return JobState::Cancelled;
            }
            // A request that has not ended may have put an object there after the walk, or made a file that gets its name later.
            if had_ended && ended && staying + untried + moved + went == 0 {
                return self.drained(job, from);
            }
            if moved > 0 {
                (idle, pause) = (0, SHORTEST_DRAIN_PAUSE);
                tries.forget();
                continue;
            }
            idle += u32::from(!hopes.contains(&Hope::Paused));
            if !hopes.iter().any(|hope| goes_on(*hope, idle)) {
                return JobState::Incomplete;
            }
            job.is_now(JobState::Waiting);
            // A file that is opened and closed again and again does not have the job walk all the time.
            let walk = began.elapsed();
            pause = match job.pause(pause) {
                true => {
                    job.rest(walk * WALKS_APART);
                    SHORTEST_DRAIN_PAUSE
                }
                false => (pause * 2).min(LONGEST_DRAIN_PAUSE),
            };
            job.is_now(JobState::Moving);
        }
    }
}

/// Whether a further walk may help after `idle` walks without any move.
fn goes_on(hope: Hope, idle: u32) -> bool {
    match hope {
        Hope::Waits | Hope::Paused => true,
        Hope::Tries => idle < TRIES,
        Hope::Once => idle < 2,
        Hope::Never => false,
    }
}

/// Ends the drain, as no branch takes its files any more.
fn end_without_target(job: &Job) -> JobState {
    job.progress.lock().refusal = Some(format!("{}: no branch is left that takes its files", job.subject));
    JobState::Incomplete
}

/// A walk that moves files, those of several small directories together.
struct DrainWalk<'a> {
    pass: Pass<'a>,
    from: BranchIx,
    targets: &'a Arc<[BranchIx]>,
    /// Files that were met and not tried.
    met: Vec<MetFile<'a>>,
}

impl<'a> Visitor<'a> for DrainWalk<'a> {
    fn files(&mut self, files: Vec<MetFile<'a>>) {
        self.met.extend(files);
        while self.met.len() >= TOGETHER {
            let later = self.met.split_off(TOGETHER);
            self.move_met();
            self.met = later;
        }
    }

    fn hidden(&mut self, hidden: &HiddenName<'_>) {
        if self.pass.job.is_held_up() {
            return self.pass.is_untried();
        }
        match self.clear(hidden, self.targets) {
            Ok(()) => self.pass.moved += 1,
            Err(why) => self.pass.stays(hidden.path.to_vec(), why),
        }
    }

    fn went(&mut self) {
        // It may be where the walk has been: the drain walks once more. (A server may list what is not there for good.)
        self.pass.went += 1;
        self.pass.hopes.insert(Hope::Once);
    }

    fn stays(&mut self, path: Vec<u8>, why: &'static str) {
        self.pass.stays(path, why);
    }

    fn dir(&mut self, _: &Arc<Inode>) {}
}

impl DrainWalk<'_> {
    fn move_met(&mut self) {
        let files = std::mem::take(&mut self.met);
        if self.pass.job.is_called_off() {
            return;
        }
        if self.pass.job.work.hidden() != HiddenCopies::Stop && !self.pass.job.is_held_up() {
            files.iter().for_each(|file| self.clear_what_it_hides(file));
        }
        let leaving = |file| Leaving { file, from: self.from, targets: self.targets.clone() };
        self.pass.carry(files.into_iter().map(leaving).collect(), |_| {});
    }

    /// Takes a hidden object away.
    fn clear(&self, hidden: &HiddenName<'_>, keepers: &[BranchIx]) -> Result<(), &'static str> {
        let (jobs, job) = (self.pass.jobs, self.pass.job);
        match job.work.hidden() {
            HiddenCopies::Stop => Err(HIDDEN),
            how => {
                let rooms = jobs.rooms(keepers).into_iter().filter(|room| room.inodes > 2);
                let keepers: Vec<(BranchIx, u64)> = rooms.map(|room| (room.branch, room.bytes)).collect();
                jobs.moves.clear_hidden(hidden, (how, job.work.manner()), &keepers, &|| !job.is_held_up())
            }
        }
    }

    /// Takes the objects away that the file hides on other branches, each of which keeps its own. If one stays, so does the file.
    fn clear_what_it_hides(&self, file: &MetFile<'_>) {
        let jobs = self.pass.jobs;
        for of @ InodeName { parent, name } in &file.names {
            let Ok(others) = jobs.tree.find_all(&jobs.pool(), parent, name, Some(self.from)) else {
                continue;
            };
            for (at, _) in others {
                let path = of.path().unwrap_or_else(|| file.path.clone());
                let hidden = HiddenName { dir: parent, name, at, path: &path };
                if let Err(why) = self.clear(&hidden, &[at]) {
                    tracing::debug!(why, "a hidden object stays");
                }
            }
        }
    }
}

/// A walk that removes empty directories.
struct Directories<'a, 'b>(&'a mut DrainWalk<'b>);

impl<'a> Visitor<'a> for Directories<'_, 'a> {
    fn files(&mut self, files: Vec<MetFile<'a>>) {
        // Come since: the next walk moves them.
        self.0.pass.moved += files.len() as u64;
    }

    fn hidden(&mut self, hidden: &HiddenName<'_>) {
        self.0.hidden(hidden);
    }

    fn went(&mut self) {
        self.0.went();
    }

    fn stays(&mut self, path: Vec<u8>, why: &'static str) {
        self.0.pass.stays(path, why);
    }

    fn dir(&mut self, dir: &Arc<Inode>) {
        let DrainWalk { pass, from, targets, .. } = &mut *self.0;
        match pass.jobs.moves.drop_copy_on(dir, *from, targets) {
            Ok(false) => {}
            Ok(true) => {
                pass.moved += 1;
                pass.job.progress.lock().dirs += 1;
            }
            Err(why) => pass.stays(dir.path().unwrap_or_default(), why),
        }
    }
}
