//! Changing the pool's branches while it is mounted.
//!
//! A request works on the snapshot of the pool that it began with, and on the copies that inodes remember. So a change is
//! made in steps, and between two of them it waits for requests that may not know of the last one (`PoolChanges::settle`).
//!
//! A branch that is added becomes part of the snapshot first, then of the root's copies; then every directory that
//! the kernel knows learns of its copy there, and what was believed to be missing is asked for again.
//!
//! A branch that is being removed takes nothing new; requests about to place something there are waited for. Then it leaves
//! the snapshot and all directories, and requests still at work on it finish. Only then is it closed, in one step with the
//! check of its open files: if one was opened in between, the branch is put back as it was. Requests on other branches never
//! see any of this. A call that hangs on the branch is not waited for longer than [`CHANGE_TIMEOUT`], and may then find nothing
//! there.

use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_pool::{BranchId, BranchIx, BranchMode, BranchSpec, Floor};
use fsstack_sync::atomic::Ordering::Relaxed;
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys as sys;

use crate::inode::Inode;
use crate::jobs::remembered;
use crate::member::Member;
use crate::member::events::PoolHost as _;
use crate::pool::{MAX_BRANCHES, Pool, Stored, durable_id};
use crate::recovery::recover::has_waiting_records;
use crate::settings::WritePath;
use crate::tree::Tree;
use crate::union::Union;

pub use crate::bad_change::BadChange;
pub use crate::pool_changes::CHANGE_TIMEOUT;

/// Timeout of the tree lock: other requests wait for it meanwhile, and a holder may hang.
const TREE_LOCK_TIMEOUT: Duration = Duration::from_millis(200);

/// Interval of the check that a branch's files are closed.
const CLOSED_FILES_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit for a look at the records of a remote branch.
const RECORDS_TIMEOUT: Duration = Duration::from_secs(2);

/// Where a new branch comes in the pool's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// After all others.
    Last,
    /// Before this one.
    Before(BranchIx),
    /// After this one.
    After(BranchIx),
}

/// Handling of files that are open on a branch to be removed.
#[derive(Clone, Copy)]
pub enum Removal<'a> {
    /// The branch stays.
    IfIdle,
    /// It takes nothing new and goes when they are closed; `false` gives up, and all is as before.
    WhenIdle(&'a dyn Fn() -> bool),
}

impl Union {
    /// Adds the branch `spec` to the pool, and returns its slot. Leftovers of moves on it are cleared.
    ///
    /// # Errors
    /// The pool stays as it is then.
    pub fn add_branch(&self, spec: &BranchSpec, position: Position) -> Result<BranchIx, BadChange> {
        self.add_found_branch(spec, None, position)
    }

    /// Like [`Self::add_branch`], if the directory is the one that was found there: device and inode number.
    ///
    /// # Errors
    /// The pool stays as it is then.
    pub fn add_found_branch(
        &self,
        spec: &BranchSpec,
        found: Option<(u64, u64)>,
        position: Position,
    ) -> Result<BranchIx, BadChange> {
        let _membership = self.changes.change_branches()?;
        let pool = self.tree.pool.load_full();
        let before = index_of(&pool, position)?;
        if pool.branches.len() >= MAX_BRANCHES {
            return Err(BadChange::TooMany);
        }
        let vacant = self.changes.lock().vacant.last().copied();
        let ix = match vacant {
            Some(vacant) => vacant,
            None => BranchIx::at(pool.slots()).ok_or(BadChange::TooMany)?,
        };
        let branch = self.open_branch(&pool, spec, found, ix)?;
        let more = pool.with_branch(branch.clone(), before);
        drop(pool);
        if let Some(id) = self.id() {
            id.store(&branch);
        }
        self.tree.index.join(branch.marked());
        self.tree.index.admit(std::iter::once(&**branch.marked()));
        crate::recovery::recover::clear_added(&more, &self.tree.index, &branch);
        drop(more);
        self.changes.lock().vacant.retain(|vacant| *vacant != ix);
        self.join(&branch, before);
        tracing::info!(branch = %branch.path.display(), slot = %ix, "branch added");
        Ok(ix)
    }

    fn open_branch(
        &self,
        pool: &Pool,
        spec: &BranchSpec,
        found: Option<(u64, u64)>,
        ix: BranchIx,
    ) -> Result<Arc<Member>, BadChange> {
        let path = spec.path.display().to_string();
        let failed = |error| BadChange::Unopened { path: path.clone(), error };
        let root = sys::at::open_root(&spec.path).map_err(failed)?;
        let stat = sys::at::stat_now(root.as_fd()).map_err(failed)?;
        if found.is_some_and(|found| found != (stat.dev, stat.ino)) {
            return Err(BadChange::Replaced(path));
        }
        let same = |known: &&Arc<Member>| (known.dev(), known.root_ino) == (stat.dev, stat.ino);
        if let Some(known) = pool.branches.iter().find(same) {
            return Err(BadChange::Double { path, known: known.path.display().to_string() });
        }
        let taken: Vec<BranchId> = pool.branches.iter().map(|branch| branch.id).collect();
        let settings = &pool.settings;
        let Stored { id, proof, by_order } =
            durable_id(&spec.path, root.as_fd(), settings.privileged, &taken).map_err(failed)?;
        if by_order && settings.nfs_export {
            return Err(BadChange::SameId(path));
        }
        let branch = Member::open((ix, id), spec, root, proof, settings).map_err(failed)?;
        if settings.write_path == WritePath::Passthrough
            && let Err(why) = branch.try_passthrough(&*self.files.backings)
        {
            return Err(BadChange::NoPassthrough { path, why: why.to_string() });
        }
        Ok(branch)
    }

    /// Removes the branch `ix` from the pool. Names that only it holds are gone then; names that it hid show.
    ///
    /// # Errors
    /// The pool stays as it is then.
    pub fn remove_branch(&self, ix: BranchIx, how: Removal<'_>) -> Result<(), BadChange> {
        let branch = self.begin_removal(ix)?;
        // One that is still at work keeps the branch in use, which is reported.
        let _ended = self.jobs.list.end_yielding();
        let refused = |refusal| {
            branch.set_leaving(false);
            Err(refusal)
        };
        // Before the wait for its files, not only after it.
        if let Err(refusal) = check_awaits_none(&branch) {
            return refused(refusal);
        }
        loop {
            match (self.try_removal(&branch), how) {
                (Ok(()), _) => return Ok(()),
                (Err(BadChange::InUse { .. } | BadChange::Busy), Removal::WhenIdle(goes_on)) if goes_on() => {
                    fsstack_sync::thread::sleep(CLOSED_FILES_INTERVAL);
                }
                (Err(refusal), _) => return refused(refusal),
            }
        }
    }

    fn begin_removal(&self, ix: BranchIx) -> Result<Arc<Member>, BadChange> {
        let _membership = self.changes.change_branches()?;
        let mut changes = self.changes.lock();
        let branch = self.tree.pool.load().live(ix).cloned().ok_or(BadChange::NoBranch(ix))?;
        if branch.is_leaving() {
            return Err(BadChange::Leaving(branch.path.display().to_string()));
        }
        branch.set_leaving(true);
        check_not_last(&self.tree.pool.load()).inspect_err(|_| branch.set_leaving(false))?;
        // Requests that ranked it before put their objects there, and moves that were about to.
        self.changes.settle(&mut changes);
        self.moves.exchanges_ended();
        Ok(branch)
    }

    fn try_removal(&self, branch: &Arc<Member>) -> Result<(), BadChange> {
        let ix = branch.ix;
        let in_use = |open| BadChange::InUse { path: branch.path.display().to_string(), open };
        let open = branch.open_files() + branch.closing();
        if open > 0 {
            return Err(in_use(open));
        }
        check_awaits_none(branch)?;
        let _membership = self.changes.change_branches()?;
        let index = {
            let mut changes = self.changes.lock();
            let pool = self.tree.pool.load();
            check_not_last(&pool)?; // another may have gone meanwhile
            let index = pool.branches.iter().position(|known| known.ix == ix);
            self.changes.publish(&mut changes, pool.without(ix));
            index.ok_or(BadChange::NoBranch(ix))?
        };
        {
            // No thread is about to rename or remove a directory on all branches, unless it hangs.
            let _tree_lock = self.tree.tree_lock.try_write(TREE_LOCK_TIMEOUT);
            let pool = self.tree.pool.load();
            for inode in self.tree.inodes.all() {
                inode.leave(ix);
                if inode.is_dir() {
                    self.tree.keep_number(&pool, &inode, None);
                }
            }
        }
        let mut settled = self.changes.settle(&mut self.changes.lock());
        // In whatever pool it is next it is a branch like others. One without a mark may hang: not asked. Nor is one that is shut.
        self.jobs.list.end_waiting(ix);
        if self.jobs.list.take_drain_mark(ix) {
            let _reported = remembered::forget(branch);
        }
        if let Err(open) = branch.shut() {
            self.join(branch, index);
            return Err(in_use(open));
        }
        // A request at work may have cached something once more.
        for inode in self.tree.inodes.all() {
            if inode.leave(ix) {
                inode.lose();
            }
        }
        self.leave_listings(ix);
        self.branches_changed(None, Some(branch));
        branch.let_go();
        self.tree.index.admit(std::iter::empty());
        let mut changes = self.changes.lock();
        settled &= self.changes.settle(&mut changes);
        if settled {
            changes.vacant.push(ix);
        }
        let threads = branch.threads_inside();
        if threads.is_any() {
            changes.removed.push((branch.path.clone(), threads));
        }
        drop(changes);
        tracing::info!(branch = %branch.path.display(), slot = %ix, "branch removed");
        Ok(())
    }

    /// `branch` becomes a member of the pool, as the one number `index`.
    fn join(&self, branch: &Arc<Member>, index: usize) {
        branch.reports_to(&self.events);
        if !branch.kind.is_local() {
            self.may_hang.store(true, Relaxed);
        }
        {
            let mut changes = self.changes.lock();
            let pool = self.tree.pool.load().with_branch(branch.clone(), index);
            // They may have changed while its disk was asked.
            branch.limit_calls(pool.settings.branch_timeout, pool.settings.branch_inflight);
            self.changes.publish(&mut changes, pool);
            let pool = self.tree.pool.load_full();
            let root = self.tree.inodes.root();
            root.add_copy(branch.ix, branch.root_ino, Some(branch.root()), |at| pool.turn(at));
            drop(pool);
            self.changes.settle(&mut changes);
        }
        // With nothing held that a change of the settings waits for: the kernel and the tree are.
        self.tree.learn(&self.tree.pool.load(), branch);
        self.branches_changed(Some(branch), None);
    }

    fn leave_listings(&self, ix: BranchIx) {
        let open: Vec<_> = self.files.dirs.iter().map(|dir| dir.clone()).collect();
        let pool = self.tree.pool.load();
        let until = Instant::now() + CHANGE_TIMEOUT;
        for dir in open {
            // One that hangs on the branch has no next entry. All of them together are waited for once.
            let left = until.saturating_duration_since(Instant::now());
            if let Some(mut listing) = dir.listing.try_lock_for(left) {
                listing.leave(&self.tree, &pool, &dir.inode, ix);
            }
        }
    }
}

impl Tree {
    /// Looks for the objects that the kernel knows on `branch` too.
    fn learn(&self, pool: &Pool, branch: &Branch) {
        let mut dirs = Vec::new();
        self.forget_hints();
        for inode in self.inodes.all().into_iter().filter(|inode| inode.is_dir()) {
            inode.invalidate();
            if inode.name().is_some() {
                dirs.push((depth(&inode), inode));
            }
        }
        dirs.sort_by_key(|(depth, _)| *depth);
        for (_, dir) in dirs {
            let Ok(_tree_lock) = self.tree_lock.read(pool) else { continue };
            let Some(name) = dir.name().filter(|name| name.parent.is_on(branch.ix)) else { continue };
            // A name that is no directory there, or does not answer, is left to the next lookup.
            if let Ok(stat) = self.stat_in(pool, &name.parent, branch.ix, &name.name)
                && stat.is_dir()
            {
                dir.add_copy(branch.ix, stat.ino, None, |at| pool.turn(at));
                self.new_copy(pool, &name.parent, &name.name, dir.id, branch.ix, stat.ino);
            }
        }
    }

    /// Drops cached locations, except those of directories, which keep their numbers by them.
    pub(crate) fn forget_hints(&self) {
        self.seen.clear();
        for inode in self.inodes.all().into_iter().filter(|inode| inode.is_dir()) {
            if let Some(name) = inode.name() {
                self.seen.set(name.parent.id.ino, name.name.to_bytes(), inode.id.ino);
            }
        }
    }
}

fn index_of(pool: &Pool, position: Position) -> Result<usize, BadChange> {
    let index = |ix| {
        let at = pool.branches.iter().position(|branch| branch.ix == ix);
        at.ok_or(BadChange::NoBranch(ix))
    };
    Ok(match position {
        Position::Last => pool.branches.len(),
        Position::Before(ix) => index(ix)?,
        Position::After(ix) => index(ix)? + 1,
    })
}

/// Checks that the branch has no records that wait for another one. A branch that does not answer in time can still be removed.
fn check_awaits_none(branch: &Arc<Member>) -> Result<(), BadChange> {
    let ask = |branch: &Arc<Member>| branch.ask(|| has_waiting_records(branch)).unwrap_or(false);
    let awaits = if branch.is_remote() {
        let (asked, answer) = fsstack_sync::mpsc::channel();
        let thread = fsstack_sync::thread::Builder::new().name("branch-records".into());
        let of = branch.clone();
        let started = fsstack_branch::thread::start(thread, move || _ = asked.send(ask(&of)));
        started.is_ok_and(|_| answer.recv_timeout(RECORDS_TIMEOUT).unwrap_or(false))
    } else {
        ask(branch)
    };
    if awaits { Err(BadChange::Awaiting(branch.path.display().to_string())) } else { Ok(()) }
}

fn check_not_last(pool: &Pool) -> Result<(), BadChange> {
    let staying = pool.branches.iter().filter(|branch| !branch.is_leaving()).count();
    if pool.branches.len() > 1 && staying > 0 { Ok(()) } else { Err(BadChange::Last) }
}

fn depth(dir: &Arc<Inode>) -> usize {
    let mut depth = 0;
    let mut at = dir.name();
    while let Some(name) = at {
        depth += 1;
        at = name.parent.name();
    }
    depth
}

impl Union {
    /// The branch `ix` may be changed as `mode` says, from the next request on; files that are open for writing
    /// stay so. Where it could not be changed before, what was interrupted there is settled, or in the background if others keep the tree
    /// busy.
    ///
    /// # Errors
    /// There is no such branch.
    pub fn set_branch_mode(&self, ix: BranchIx, mode: BranchMode) -> Result<(), BadChange> {
        let pool = self.tree.pool.load_full();
        let branch = pool.live(ix).ok_or(BadChange::NoBranch(ix))?;
        let was_writable = branch.is_writable();
        self.changes.set_branch_mode(ix, mode)?;
        if !was_writable
            && branch.is_writable()
            && branch.is_open()
            && let Some(union) = self.hosted()
        {
            union.answered(branch);
        }
        Ok(())
    }

    /// `call` follows each change of a branch's mode, the beginning of a tier's job, and each job's end; the first one stays.
    pub fn after_change(&self, call: Box<dyn Fn() + Send + Sync>) {
        self.changes.after_change(call);
    }

    /// The branch keeps `floor` free, and `min_inodes` inodes; None: as much as the pool's settings say.
    ///
    /// # Errors
    /// There is no such branch.
    pub fn set_branch_floor(
        &self,
        ix: BranchIx,
        floor: Option<Floor>,
        min_inodes: Option<u64>,
    ) -> Result<(), BadChange> {
        let pool = self.tree.pool.load();
        let branch = pool.live(ix).ok_or(BadChange::NoBranch(ix))?;
        branch.set_limits(floor, min_inodes);
        tracing::info!(branch = %branch.path.display(), "branch floor changed");
        Ok(())
    }
}
