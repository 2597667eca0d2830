//! Tree lock: held shared to give a branch a directory that it lacks, exclusively to remove or rename a directory, on all
//! branches.
//!
//! A walk down to a directory holds nothing, so a rename above it can lead it astray. A name that it does not find is
//! looked up once more with the lock held: only a name that is missing then is gone. The same walk serves renames, so a
//! thread knows whether it holds the lock already.
//!
//! Where a branch is slow, shared holders follow each other without a gap. So a thread that has waited for a while for
//! exclusive access claims it: then no further thread shares the lock until the present holders are done. If a branch
//! hangs or stalls, a holder may be stuck there. The claim does not count then: threads on other branches go on.

use std::cell::Cell;
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::holder::ThreadInCalls;
use fsstack_branch::health::reply_takeover;
use fsstack_sync::atomic::{AtomicUsize, Ordering::SeqCst};
use fsstack_sync::ranked::{HeldRank, TREE};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::member::Member;
use crate::pool::Pool;

/// How long one attempt to have the tree lock alone lasts: it keeps others from sharing it.
const TREE_LOCK_ATTEMPT: Duration = Duration::from_millis(20);
/// Pause between two attempts to have the tree lock alone, in which others may share it.
const TREE_LOCK_PAUSE: Duration = Duration::from_millis(1);
/// How long one attempt to share the tree lock lasts. Its end only looks whether a holder is stuck: a waiter is woken when the lock
/// is free.
const TREE_SHARED_ATTEMPT: Duration = Duration::from_millis(250);
/// First and longest pause between two attempts; each is twice the one before. 200 threads that wait to share the lock for
/// seconds took 16 % of a CPU with the first one throughout, and attempts of 20 ms.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));
/// Timeout while a branch is out of reach: a holder may be stuck there.
const STUCK_HOLDER_TIMEOUT: Duration = Duration::from_millis(500);

/// How long further threads may share the tree lock while one waits for exclusive use.
const SHARED_FOR: Duration = Duration::from_millis(100);
/// How long a claim to the tree lock counts.
const CLAIM_VALID_FOR: Duration = Duration::from_secs(5);

fsstack_sync::thread_local! {
    static HELD_HERE: Cell<bool> = const { Cell::new(false) };
}

/// The lock. Order: before any inode's state; after an open file's place.
#[derive(Debug, Default)]
pub(crate) struct TreeLock {
    lock: RwLock<()>,
    /// Holders.
    holders: Mutex<Vec<ThreadInCalls>>,
    /// Threads that claim it.
    claims: AtomicUsize,
}

/// A claim to have the tree lock alone.
struct TreeLockClaim<'a>(&'a AtomicUsize);

impl<'a> TreeLockClaim<'a> {
    fn on(claims: &'a AtomicUsize) -> Self {
        claims.fetch_add(1, SeqCst);
        Self(claims)
    }
}

impl Drop for TreeLockClaim<'_> {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "a claim on the tree was given up that nobody had");
    }
}

/// Holder of the tree lock: until this drops, the tree stays as it is, or is this thread's to change.
#[must_use = "the tree lock is free again when this drops"]
pub(crate) struct TreeLockGuard<'a, G> {
    _guard: G,
    _rank: HeldRank<TREE>,
    tree_lock: &'a TreeLock,
}

impl TreeLock {
    /// Keeps it as it is. Not for a thread that holds it.
    ///
    /// # Errors
    /// EIO if the thread that changes it does not come back from a branch that hangs.
    pub(crate) fn read(&self, pool: &Pool) -> Result<TreeLockGuard<'_, RwLockReadGuard<'_, ()>>> {
        let rank = HeldRank::in_order();
        let share = || if self.is_claimed(pool) { None } else { self.lock.try_read() };
        let within =
            || if self.is_claimed(pool) { None } else { self.lock.try_read_for(TREE_SHARED_ATTEMPT) };
        let wait = || reply_takeover::aside(|| unless_stuck(pool, within, || self.is_stuck()));
        let shared = share().map_or_else(wait, Ok);
        shared.map(|guard| self.guard(guard, rank))
    }

    /// Takes it for a change. Not for a thread that holds it.
    ///
    /// # Errors
    /// EIO if a holder does not come back from a branch that hangs.
    pub(crate) fn write(&self, pool: &Pool) -> Result<TreeLockGuard<'_, RwLockWriteGuard<'_, ()>>> {
        let rank = HeldRank::in_order();
        if let Some(guard) = self.lock.try_write() {
            return Ok(self.guard(guard, rank));
        }
        let (came, claim) = (Instant::now(), Cell::new(None));
        let attempt = || {
            // A thread that waits for exclusive access keeps others from sharing it: only for a moment each time.
            let guard = self.lock.try_write_for(TREE_LOCK_ATTEMPT);
            let claims = guard.is_none() && (SHARED_FOR..CLAIM_VALID_FOR).contains(&came.elapsed());
            let before = claim.take();
            claim.set(claims.then(|| before.unwrap_or_else(|| TreeLockClaim::on(&self.claims))));
            guard
        };
        let alone = reply_takeover::aside(|| unless_stuck(pool, attempt, || self.is_stuck()));
        alone.map(|guard| self.guard(guard, rank))
    }

    /// Whether a thread is to have it exclusively next, and can: no shared holder may be stuck.
    fn is_claimed(&self, pool: &Pool) -> bool {
        let all_answer = || pool.branches.iter().all(|branch| branch.is_open() && !branch.stalls());
        self.claims.load(SeqCst) > 0 && !self.is_stuck() && all_answer()
    }

    /// Takes it exclusively, unless other threads keep it for longer than `timeout`, which is shorter than a claim counts. Not for
    /// a thread that holds it.
    pub(crate) fn try_write(&self, timeout: Duration) -> Option<TreeLockGuard<'_, RwLockWriteGuard<'_, ()>>> {
        let (came, rank) = (Instant::now(), HeldRank::in_order());
        let mut claim = None;
        loop {
            match self.lock.try_write_for(TREE_LOCK_ATTEMPT) {
                Some(guard) => return Some(self.guard(guard, rank)),
                None if came.elapsed() > timeout => return None,
                None if came.elapsed() > SHARED_FOR => {
                    claim.get_or_insert_with(|| TreeLockClaim::on(&self.claims));
                }
                None => {}
            }
            fsstack_sync::thread::sleep(TREE_LOCK_PAUSE);
        }
    }

    /// Whether the calling thread holds it.
    pub(crate) fn is_held_here() -> bool {
        HELD_HERE.get()
    }

    fn guard<G>(&self, guard: G, rank: HeldRank<TREE>) -> TreeLockGuard<'_, G> {
        HELD_HERE.set(true);
        self.holders.lock().push(ThreadInCalls::here());
        TreeLockGuard { _guard: guard, _rank: rank, tree_lock: self }
    }

    /// True if a thread that holds it may never return.
    fn is_stuck(&self) -> bool {
        self.holders.lock().iter().any(ThreadInCalls::is_stuck)
    }
}

impl<G> Drop for TreeLockGuard<'_, G> {
    fn drop(&mut self) {
        HELD_HERE.set(false);
        let (here, mut holders) = (ThreadInCalls::here(), self.tree_lock.holders.lock());
        if let Some(at) = holders.iter().position(|holder| holder.is(&here)) {
            holders.swap_remove(at);
        }
    }
}

/// Tries until it succeeds; aside, if not at once.
///
/// # Errors
/// EIO if a branch hangs, and the awaited thread may be in it, or if that thread `is_stuck` in a call that was given up,
/// even though all branches are in order again.
pub(crate) fn unless_stuck<G>(
    pool: &Pool,
    attempt: impl Fn() -> Option<G>,
    is_stuck: impl Fn() -> bool,
) -> Result<G> {
    if let Some(guard) = attempt() {
        return Ok(guard);
    }
    let (came, mut pause) = (Instant::now(), PAUSES.0);
    // No thread can be stuck in a branch that has no call inside.
    let hangs = |branch: &Arc<Member>| !branch.is_open() && branch.is_stuck();
    let may_be_stuck = || is_stuck() || pool.branches.iter().any(hangs);
    reply_takeover::aside(|| {
        loop {
            if let Some(guard) = attempt() {
                return Ok(guard);
            }
            if came.elapsed() > STUCK_HOLDER_TIMEOUT && may_be_stuck() {
                return Err(OpError::UNSURE);
            }
            fsstack_sync::thread::sleep(pause);
            pause = (2 * pause).min(PAUSES.1);
        }
    })
}

#[cfg(test)]
mod tests {
    use fsstack_sync::atomic::AtomicBool;
    use fsstack_sync::thread;
    use std::sync::Arc;

    use fsstack_pool::BranchSpec;

    use super::*;
    use crate::settings::Settings;

    fn pool_of(mount_root: &std::path::Path) -> Pool {
        let settings = Settings {
            recheck: Duration::ZERO,
            dir_fds: 64,
            listing_entries: 64,
            branch_timeout: Duration::ZERO,
            ..Settings::plain()
        };
        Pool::open(&[BranchSpec::new(mount_root.to_owned())], settings).unwrap()
    }

    /// Two share it in turn, and neither lets go before the other has come again, as long as that comes within a moment.
    #[test]
    fn exclusive_access_comes_though_others_share_the_lock_without_a_gap() {
        let mount_root = tempfile::tempdir().unwrap();
        let (pool, tree_lock) = (Arc::new(pool_of(mount_root.path())), Arc::new(TreeLock::default()));
        let (done, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let share = || {
            let (pool, tree_lock, done, came) = (pool.clone(), tree_lock.clone(), done.clone(), came.clone());
            thread::spawn(move || {
                while !done.load(SeqCst) {
                    let _held = tree_lock.read(&pool).unwrap();
                    let (number, since) = (came.fetch_add(1, SeqCst), Instant::now());
                    while came.load(SeqCst) == number + 1 && since.elapsed() < 8 * SHARED_FOR {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            })
        };
        let sharers = [share(), share()];
        while came.load(SeqCst) < 4 {
            thread::yield_now();
        }
        let (wanted, (tell, reported)) = (tree_lock.clone(), fsstack_sync::mpsc::channel());
        let claimant = thread::spawn(move || {
            let _alone = wanted.write(&pool).unwrap();
            tell.send(()).unwrap();
        });
        let had = reported.recv_timeout(Duration::from_secs(20));
        done.store(true, SeqCst);
        sharers.into_iter().for_each(|sharer| sharer.join().unwrap());
        claimant.join().unwrap();
        assert_eq!(had, Ok(()), "it waited for as long as others came");
    }
}
