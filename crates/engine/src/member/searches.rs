//! Walks through a branch for what is asked by number: whose turn it is, and what the last one saw (`handles/search.rs`).

use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::holder::ThreadInCalls;
use fsstack_identity::index::{KeptBy, Name};
use fsstack_pool::Ino;
use fsstack_sync::atomic::{AtomicU64, Ordering::SeqCst};
use fsstack_sync::ranked::{HeldRank, LINKS, Ranked, RankedGuard, WALK};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Member;

/// How long another thread's walk is waited for.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(20);

/// Interval at which a waiting thread checks that the branch answers.
const SEARCH_TURN_POLL: Duration = Duration::from_millis(50);

/// Walks through a branch.
#[derive(Debug, Default)]
pub(crate) struct Searches {
    /// Held by the walking thread, which takes none of the locks that others hold when they search. Order: before `still`.
    pub(crate) turn: Ranked<(), WALK>,
    /// Number of walks begun.
    pub(crate) begun: AtomicU64,
    /// Distinguishes the last walk that began from those of earlier mounts, too.
    pub(crate) stamp: AtomicU64,
    /// The last walk that saw everything.
    pub(crate) whole: Mutex<Option<CompleteSearch>>,
    /// Held shared by renames in directories that the branch has; exclusively where no rename may be half done.
    pub(crate) still: SearchLock,
    /// Held shared by threads that give a file another name; exclusively to count a file's links and remove one. Order:
    /// after `still`.
    pub(crate) links: SearchLock,
    /// Objects that were renamed and are not indexed by their new name.
    pub(crate) moved: AtomicU64,
    /// New names of files since the current walk began.
    pub(crate) renamed: Mutex<Option<Vec<(Ino, Name)>>>,
}

/// A walk that saw everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompleteSearch {
    pub(crate) look: u64,
    /// Index that keeps it.
    pub(crate) kept_by: KeptBy,
    /// `moved` when it began, and still when it was over.
    pub(crate) moved: u64,
}

impl Searches {
    /// Keeps files of the branch from getting another name until this drops. None: such a rename takes longer than `timeout`.
    pub(crate) fn exclusively(&self, timeout: Duration) -> Option<LockedAlone<'_, LINKS>> {
        alone(&self.links, timeout)
    }

    /// Right to walk `branch`, for one thread at a time.
    ///
    /// # Errors
    /// Another thread walks for longer than the limit, or is stuck in the branch, which does not answer.
    pub(crate) fn take_turn(&self, branch: &Member) -> Result<RankedGuard<'_, (), WALK>> {
        let began = Instant::now();
        loop {
            branch.check_open()?;
            if let Some(turn) = self.turn.try_lock_for(SEARCH_TURN_POLL) {
                return Ok(turn);
            }
            if began.elapsed() > SEARCH_TIMEOUT {
                return Err(OpError::UNSURE);
            }
        }
    }

    /// Index of the walk that began after the first `asked`, if one saw everything.
    pub(crate) fn seen_since(&self, asked: u64) -> Option<KeptBy> {
        let whole = self.whole.lock().filter(|whole| whole.look > asked);
        whole.filter(|whole| whole.moved == self.moved.load(SeqCst)).map(|whole| whole.kept_by)
    }
}

/// Lock that many threads share, or one has alone: that one may be stuck in a mount of the branch that was replaced.
#[derive(Debug, Default)]
pub(crate) struct SearchLock {
    lock: RwLock<()>,
    alone: Mutex<Option<ThreadInCalls>>,
}

impl SearchLock {
    /// Shares it, for at most `timeout` later. None: a thread has it alone.
    pub(crate) fn share(&self, timeout: Duration) -> Option<RwLockReadGuard<'_, ()>> {
        self.lock.try_read_for(timeout)
    }

    /// True if the thread that has it alone may never return.
    pub(crate) fn is_stuck(&self) -> bool {
        self.alone.lock().as_ref().is_some_and(ThreadInCalls::is_stuck)
    }
}

/// A lock of rank `RANK`, had alone. It was waited for briefly, so in any order; what is taken below it is of higher rank, as
/// threads that want to share it wait for as long as the branch is open and this thread is not stuck.
#[derive(Debug)]
pub(crate) struct LockedAlone<'a, const RANK: u8> {
    lock: &'a SearchLock,
    _guard: RwLockWriteGuard<'a, ()>,
    _rank: HeldRank<RANK>,
}

impl<const RANK: u8> Drop for LockedAlone<'_, RANK> {
    fn drop(&mut self) {
        *self.lock.alone.lock() = None;
    }
}

/// Takes `lock` alone. None: others share it for longer than `timeout`.
pub(crate) fn alone<const RANK: u8>(lock: &SearchLock, timeout: Duration) -> Option<LockedAlone<'_, RANK>> {
    let guard = lock.lock.try_write_for(timeout)?;
    *lock.alone.lock() = Some(ThreadInCalls::here());
    Some(LockedAlone { lock, _guard: guard, _rank: HeldRank::unordered() })
}
