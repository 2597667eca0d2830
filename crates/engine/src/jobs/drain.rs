//! Emptying a branch.
//!
//! First a walk counts: names that another branch's copy hides, and files that fit nowhere, are a reason not to begin.
//! Then the branch takes nothing new, and walks move what they find, until one finds nothing. What cannot move now is tried
//! again later, for as long as a file is in use, and a few times if it fails. When no file is left, the directories go, from
//! the leaves up, each once another branch shows the same.
//!
//! The walk goes through the pool, as the kernel does: what it meets is known by the pool's numbers while it is at work.

use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use fsstack_branch::error::{OpError, Result};
use fsstack_pool::{BranchIx, BranchMode, EntryName, Printable, Size};
use fsstack_sys::{Errno, Kind};

use super::plan::{Plan, Room};
use super::{Amount, Job, JobState, NAMED, Staying};
use crate::entries::Entries;
use crate::inode::Inode;
use crate::moves::reasons::{FROZEN, HIDES, LINKED, LOCKED, UNFIT};
use crate::moves::{self, HeldFile, directories};
use crate::open::{MAPPED, WRITTEN_PAST};
use crate::resolve::is_private;
use crate::union::Union;

/// Files that are held open for their move at a time.
const BATCH: usize = 128;
/// Walks without any move after which what fails stays.
const TRIES: u32 = 8;
/// Pauses between walks that move nothing.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Names in a refusal.
const SHOWN: usize = 5;

const HIDDEN: &str = "it is hidden by another branch's object of this name";
const CHANGED_NOW: &str = "it was just used or changed";
const MOUNTED: &str = "another file system is mounted there";
const BUSY: &str = "earlier requests to the pool have not ended";

/// An object that a walk has met: the pool knows it until this drops.
struct Met<'a> {
    union: &'a Union,
    inode: Arc<Inode>,
    counted: bool,
}

impl Drop for Met<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.union.forget(self.inode.id.ino, 1);
        }
    }
}

/// A file that a walk has met.
struct MetFile<'a> {
    met: Met<'a>,
    path: Vec<u8>,
    bytes: u64,
    links: u32,
}

/// A directory that a walk has met, its path, and whether its content was visited.
type MetDir<'a> = (Met<'a>, Vec<u8>, bool);

/// Purpose of a walk.
trait Visitor<'a> {
    /// Files of one directory.
    fn files(&mut self, files: Vec<MetFile<'a>>);
    /// An object that cannot be moved.
    fn stays(&mut self, path: Vec<u8>, why: &'static str);
    /// All below the directory was visited.
    fn dir(&mut self, dir: &Arc<Inode>);
}

/// Whether a reason to stay may pass, and what is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Hope {
    /// When the file is closed or unlocked.
    Waits,
    /// At another try.
    Tries,
    Never,
}

fn hope(why: &str) -> Hope {
    match why {
        WRITTEN_PAST | MAPPED | LOCKED => Hope::Waits,
        FROZEN | HIDES | LINKED | UNFIT | HIDDEN | MOUNTED | directories::DIFFERS => Hope::Never,
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
            if !hopes.contains(&Hope::Waits) && (!hopes.contains(&Hope::Tries) || idle >= TRIES) {
                return JobState::Incomplete;
            }
            job.is_now(JobState::Waiting);
            job.pause(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            job.is_now(JobState::Moving);
        }
    }

    /// Visits all that is on the branch, except the root itself.
    fn walk_branch<'a>(&'a self, job: &Job, visitor: &mut dyn Visitor<'a>) {
        let root = Met { union: self, inode: self.inodes.root().clone(), counted: false };
        // Its content is still to be visited, or was.
        let mut stack = vec![(root, Vec::new(), false)];
        while let Some((dir, path, visited)) = stack.pop() {
            if job.is_called_off() {
                return;
            }
            if visited {
                if !dir.inode.is_root() {
                    visitor.dir(&dir.inode);
                }
                continue;
            }
            let inode = dir.inode.clone();
            stack.push((dir, path.clone(), true));
            match self.names_on(&inode, job.order.from) {
                Ok(names) => {
                    for chunk in names.chunks(BATCH) {
                        let mut files = Vec::new();
                        for (name, kind) in chunk {
                            self.meet(job, &inode, (name, *kind), &path, (&mut files, &mut stack), visitor);
                        }
                        if job.is_called_off() {
                            return;
                        }
                        visitor.files(files);
                    }
                }
                Err(error) if error.is_missing() || error.errno() == Errno::STALE => {}
                Err(error) => visitor.stays(path, cannot_list(error)),
            }
        }
    }

    /// The names in the copy of `dir` on the branch `from`, and their kinds there.
    fn names_on(&self, dir: &Arc<Inode>, from: BranchIx) -> Result<Vec<(CString, Kind)>> {
        let pool = self.pool();
        if !dir.is_on(from) {
            return Ok(Vec::new());
        }
        let fd = self.dirfd(&pool, dir, from)?;
        let branch = pool.branch(from);
        let mut entries = Entries::of(branch, fd.as_fd())?;
        let mut names = Vec::new();
        while let Some(entry) = entries.next()? {
            if is_private(&pool, dir, &entry.name) {
                continue;
            }
            let kind = match entry.kind {
                Some(kind) => kind,
                None => branch.ask(|| fsstack_sys::at::stat(fd.as_fd(), &entry.name))?.kind(),
            };
            names.push((entry.name, kind));
        }
        Ok(names)
    }

    fn meet<'a>(
        &'a self,
        job: &Job,
        dir: &Arc<Inode>,
        (name, kind): (&CString, Kind),
        above: &[u8],
        (files, dirs): (&mut Vec<MetFile<'a>>, &mut Vec<MetDir<'a>>),
        visitor: &mut dyn Visitor<'a>,
    ) {
        let mut path = above.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        let Ok(entry_name) = EntryName::new(name) else {
            return visitor.stays(path, "its name cannot be used in the pool");
        };
        let entry = match self.lookup(dir.id.ino, entry_name) {
            Ok(entry) => entry,
            Err(error) if error.is_missing() => return, // removed since
            Err(error) => return visitor.stays(path, cannot_list(error)),
        };
        let Ok(inode) = self.inode(entry.ino) else { return };
        let met = Met { union: self, inode, counted: true };
        let inode = &met.inode;
        if inode.is_dir() != (kind == Kind::Dir) {
            visitor.stays(path, HIDDEN);
        } else if inode.is_dir() {
            // `fsck` makes this one for itself.
            let is_of_fsck = dir.is_root() && name.to_bytes() == b"lost+found";
            if !is_of_fsck || self.names_on(inode, job.order.from).is_ok_and(|names| !names.is_empty()) {
                dirs.push((met, path, false));
            }
        } else if inode.branch() == Some(job.order.from) {
            let stat = entry.attr.stat;
            files.push(MetFile { met, path, bytes: stat.blocks.saturating_mul(512), links: stat.nlink });
        } else {
            visitor.stays(path, HIDDEN);
        }
    }
}

fn cannot_list(error: OpError) -> &'static str {
    match error.errno() {
        Errno::XDEV => MOUNTED,
        Errno::ACCESS | Errno::PERM => "the branch does not let the daemon list it",
        _ => moves::in_words(error),
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
            if file.links > 1 && file.met.inode.kind == Kind::File {
                self.stays(file.path, LINKED);
                continue;
            }
            if let Some(why) = file
                .met
                .inode
                .name()
                .and_then(|name| self.union.why_not_from(&self.union.pool(), &name, self.job.order.from))
            {
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
                Err(error) => self.stays(file.path, moves::in_words(error)),
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
            let how = (&job.targets, job.order.rate);
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
