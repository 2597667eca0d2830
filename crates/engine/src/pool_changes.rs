//! Changes of the pool while requests use it: the snapshot of later requests is replaced, and earlier requests are waited for.

use std::fmt::{self, Debug, Formatter};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

use fsstack_branch::health::ThreadsInside;
use fsstack_pool::{BranchIx, BranchMode};
use fsstack_sync::ranked::{CHANGES, Ranked, RankedGuard};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Mutex, MutexGuard};

use crate::bad_change::BadChange;
use crate::moves::Moves;
use crate::pool::Pool;
use crate::tree::Tree;

/// How long requests that began before a change are waited for: one may hang.
pub const CHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two looks whether requests that began before a change have ended.
const EARLIER_REQUESTS_PAUSE: Duration = Duration::from_micros(200);

/// Changes that were made, for the next one.
#[derive(Debug, Default)]
pub(crate) struct MembershipChanges {
    /// Slots that nothing remembers.
    pub(crate) vacant: Vec<BranchIx>,
    /// Earlier snapshots that requests may still hold.
    pub(crate) past: Vec<Weak<Pool>>,
    /// Snapshots whose wait timed out. They are not waited for again: the removal of a hung branch waits for its hung calls once,
    /// not at every step.
    pub(crate) overdue: Vec<Weak<Pool>>,
    /// Branches that were removed while threads were inside, with their paths.
    pub(crate) removed: Vec<(PathBuf, ThreadsInside)>,
}

impl MembershipChanges {
    /// Path of a removed branch that a thread is still inside.
    pub(crate) fn stuck_in_removed(&mut self) -> Option<&Path> {
        self.removed.retain(|(_, threads)| threads.is_any());
        self.removed.first().map(|(path, _)| path.as_path())
    }

    /// Nothing remembers these slots.
    pub(crate) fn leave_vacant(&mut self, slots: Vec<BranchIx>) {
        self.vacant = slots;
    }
}

/// Requests that began before a moment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EarlierRequests {
    Ended,
    /// Some have not ended in time now.
    Overdue,
    /// Some were overdue before, and have not ended yet.
    Hanging,
}

/// Changes of the pool's snapshot, one at a time.
#[derive(Debug)]
pub(crate) struct PoolChanges {
    tree: Arc<Tree>,
    moves: Arc<Moves>,
    /// Held while a branch is added or removed, also while a disk is asked that may hang. Order: before `changes`.
    membership: Mutex<()>,
    /// Held while a snapshot is published, and during the wait for requests that use the last one.
    changes: Ranked<MembershipChanges, CHANGES>,
    /// Called after a change of a branch's mode, when a tier's job begins, and when a job ends.
    changed: OnceLock<ChangeHook>,
}

/// Call that is to follow a change.
struct ChangeHook(Box<dyn Fn() + Send + Sync>);

impl Debug for ChangeHook {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("ChangeHook")
    }
}

impl PoolChanges {
    /// Changes of the pool of `tree`; after one, what could not be moved is tried again by `moves`.
    pub(crate) fn new(tree: Arc<Tree>, moves: Arc<Moves>) -> Self {
        Self {
            tree,
            moves,
            membership: Mutex::default(),
            changes: Ranked::default(),
            changed: OnceLock::new(),
        }
    }

    /// `call` follows each change of a branch's mode, by whomever, the beginning of a tier's job, and each job's end; the first one stays.
    pub(crate) fn after_change(&self, call: Box<dyn Fn() + Send + Sync>) {
        self.changed.get_or_init(|| ChangeHook(call));
    }

    /// Calls what is to follow a change.
    pub(crate) fn tell_change(&self) {
        if let Some(ChangeHook(call)) = self.changed.get() {
            call();
        }
    }

    /// Keeps others from publishing a snapshot until the guard drops.
    pub(crate) fn lock(&self) -> RankedGuard<'_, MembershipChanges, CHANGES> {
        self.changes.lock()
    }

    /// Keeps others from adding or removing a branch until the guard drops.
    ///
    /// # Errors
    /// Another thread does, and is waiting for a disk that may hang.
    pub(crate) fn change_branches(&self) -> Result<MutexGuard<'_, ()>, BadChange> {
        self.membership.try_lock_for(CHANGE_TIMEOUT).ok_or(BadChange::Busy)
    }

    /// Makes the changed `pool` the snapshot of later requests.
    pub(crate) fn publish(&self, changes: &mut MembershipChanges, pool: Pool) {
        self.replace(changes, pool);
        self.moves.refusals.forget_all();
    }

    fn replace(&self, changes: &mut MembershipChanges, pool: Pool) {
        let past = self.tree.pool.swap(Arc::new(pool));
        changes.past.push(Arc::downgrade(&past));
    }

    /// Waits for all requests that began before, for a job; the caller holds no snapshot of the pool. False: some have not ended.
    pub(crate) fn requests_ended(&self) -> bool {
        let ended = self.wait_for_requests(&mut self.lock());
        if ended == EarlierRequests::Overdue {
            tracing::warn!(
                "job: earlier requests have not ended after 5 s; files that they may use stay for now"
            );
        }
        ended == EarlierRequests::Ended
    }

    /// Waits for all requests that began before a change of branches. False: some have not ended, and may be hanging.
    pub(crate) fn settle(&self, changes: &mut MembershipChanges) -> bool {
        let ended = self.wait_for_requests(changes);
        if ended == EarlierRequests::Overdue {
            tracing::warn!(
                "change of branches: earlier requests have not ended after 5 s; going on without them"
            );
        }
        ended == EarlierRequests::Ended
    }

    fn wait_for_requests(&self, changes: &mut MembershipChanges) -> EarlierRequests {
        // Jobs wait all the time: with the same settings and branches a move that was refused is refused again.
        let same = Pool::clone(&self.tree.pool.load());
        self.replace(changes, same);
        let began = Instant::now();
        loop {
            changes.past.retain(|past| past.strong_count() > 0);
            if changes.past.is_empty() {
                changes.overdue.retain(|past| past.strong_count() > 0);
                return if changes.overdue.is_empty() {
                    EarlierRequests::Ended
                } else {
                    EarlierRequests::Hanging
                };
            }
            if began.elapsed() > CHANGE_TIMEOUT {
                changes.overdue.append(&mut changes.past);
                return EarlierRequests::Overdue;
            }
            fsstack_sync::thread::sleep(EARLIER_REQUESTS_PAUSE);
        }
    }

    /// The branch `ix` may be changed as `mode` says, from the next request on; files that are open for writing stay so.
    ///
    /// # Errors
    /// There is no such branch.
    pub(crate) fn set_branch_mode(&self, ix: BranchIx, mode: BranchMode) -> Result<(), BadChange> {
        let pool = self.tree.pool.load();
        let branch = pool.live(ix).ok_or(BadChange::NoBranch(ix))?;
        branch.set_mode(mode);
        tracing::info!(branch = %branch.path.display(), %mode, "branch mode changed");
        drop(pool);
        self.tell_change();
        Ok(())
    }
}
