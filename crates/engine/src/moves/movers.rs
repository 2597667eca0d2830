//! Threads that move files off full branches, and off those that a job empties.
//!
//! A move may take as long as the file is large, and longer where `relocate-speed` is set: no thread that answers the
//! kernel makes one. A few movers work at a time for each branch that files leave; further moves wait in a queue, and those
//! that requested them wait aside. A mover that hangs in a branch does not count: another one comes in its place.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fsstack_branch::thread;
use fsstack_pool::BranchIx;
use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicBool, Ordering::SeqCst};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::thread::IoClass;
use fsstack_sys::{self as sys, Stat};

use crate::files::OpenFile;
use crate::files::departure::{Departure, DepartureOutcome};
use crate::inode::Inode;
use crate::moves::Moves;
use crate::moves::batch::OrderedBatch;
use crate::moves::job_move::MoveCause;
use crate::moves::moving::Names;

/// Moves off one branch at a time.
const AT_ONCE: usize = 2;
/// How long movers are waited for when the daemon ends.
const QUEUED_MOVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two looks at movers that are waited for.
const MOVERS_LOOK_PAUSE: Duration = Duration::from_millis(2);
/// How long exchanges of names whose target takes no more moves are waited for.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);

/// A file that is to leave its branch.
#[derive(Debug)]
pub(crate) struct OrderedMove {
    pub(crate) inode: Arc<Inode>,
    pub(crate) file: Arc<OpenFile>,
    pub(crate) departure: Arc<Departure>,
    pub(crate) full: BranchIx,
    pub(crate) cause: MoveCause,
    /// Files that had left the branch when the move was ordered.
    left_before: u64,
    /// The inode counts a handle for the move: the file stays open until the move is over, even after its last close.
    kept: AtomicBool,
}

impl OrderedMove {
    pub(crate) fn new(
        inode: &Arc<Inode>,
        file: &Arc<OpenFile>,
        departure: Arc<Departure>,
        full: BranchIx,
        cause: MoveCause,
    ) -> Self {
        let kept = AtomicBool::new(inode.keep_open(file));
        Self { inode: inode.clone(), file: file.clone(), departure, full, cause, left_before: 0, kept }
    }

    /// The names that move: all that the job has found, if the file has as many links, else its only one.
    pub(crate) fn names(&self, stat: &Stat) -> Option<Names> {
        match self.cause.job().filter(|job| stat.nlink > 1 && job.names.len() == stat.nlink as usize) {
            Some(job) => Some(job.names.clone()),
            None => self.inode.name().map(|name| Names::from_iter([name])),
        }
    }

    pub(crate) fn let_go(&self) {
        if self.kept.swap(false, SeqCst)
            && let Some(last) = self.inode.close_handle()
        {
            OpenFile::dispose(last);
        }
    }
}

impl Drop for OrderedMove {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// The moves under way, and those that wait.
#[derive(Debug, Default)]
pub(crate) struct Movers(Mutex<MoversState>);

#[derive(Debug, Default)]
struct MoversState {
    lanes: HashMap<BranchIx, BranchMoves>,
    ended: bool,
}

#[derive(Debug, Default)]
struct BranchMoves {
    /// Files that have left the branch since the mount.
    left: u64,
    at_work: Vec<Arc<Departure>>,
    queue: VecDeque<Arc<Errand>>,
}

/// Work of a mover.
#[derive(Debug)]
enum Errand {
    One(OrderedMove),
    Batch(OrderedBatch),
}

impl Errand {
    fn departure(&self) -> &Arc<Departure> {
        match self {
            Self::One(order) => &order.departure,
            Self::Batch(batch) => &batch.departure,
        }
    }

    fn full(&self) -> BranchIx {
        match self {
            Self::One(order) => order.full,
            Self::Batch(batch) => batch.from,
        }
    }
}

impl BranchMoves {
    /// The next one of the queue, if another mover may work. Those that were called off are put into `over`: dropped under the
    /// lock, the last handle of a file would be closed under it, and its branch may hang.
    fn next(&mut self, over: &mut Vec<Arc<Errand>>) -> Option<Arc<Errand>> {
        let (going_on, called_off): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.queue).into_iter().partition(|errand| errand.departure().goes_on());
        self.queue = going_on;
        over.extend(called_off);
        if self.at_work.iter().filter(|departure| !departure.is_stuck()).count() >= AT_ONCE {
            return None;
        }
        let next = self.queue.pop_front()?;
        self.at_work.push(next.departure().clone());
        Some(next)
    }

    fn is_done(&mut self, departure: &Arc<Departure>) {
        self.at_work.retain(|other| !Arc::ptr_eq(other, departure));
    }
}

impl Movers {
    /// A file has left the branch `full`.
    pub(crate) fn one_has_left(&self, full: BranchIx) {
        self.0.lock().lanes.entry(full).or_default().left += 1;
    }

    /// Whether a file has left the branch since the move was ordered: the writer may find room where it is. Each file that
    /// leaves lets those that wait try once more, so they cannot try for ever.
    pub(crate) fn has_one_left_since(&self, order: &OrderedMove) -> bool {
        self.0.lock().lanes.get(&order.full).is_some_and(|lane| order.left_before < lane.left)
    }

    /// Whether a file is being moved, by a mover that does not hang.
    pub(crate) fn any_works(&self) -> bool {
        let state = self.0.lock();
        state.lanes.values().any(|lane| lane.at_work.iter().any(|departure| !departure.is_stuck()))
    }

    /// Whether no file is being moved, and none waits to be.
    pub(crate) fn are_idle(&self) -> bool {
        self.0.lock().lanes.values().all(|lane| lane.at_work.is_empty() && lane.queue.is_empty())
    }

    /// Nothing moves any more: what is under way is called off, and waited for unless it hangs.
    pub(crate) fn end(&self) {
        let (began, mut over) = (Instant::now(), Vec::new());
        loop {
            {
                let mut state = self.0.lock();
                state.ended = true;
                for lane in state.lanes.values_mut() {
                    lane.at_work.iter().for_each(|departure| departure.call_off(DepartureOutcome::Stays));
                    lane.queue.iter().for_each(|errand| errand.departure().call_off(DepartureOutcome::Stays));
                    over.extend(lane.queue.drain(..)); // closed with the lock given back
                    lane.at_work.retain(|departure| !departure.is_stuck());
                }
                if state.lanes.values().all(|lane| lane.at_work.is_empty()) {
                    return;
                }
            }
            if began.elapsed() > QUEUED_MOVE_TIMEOUT {
                return tracing::warn!(
                    "relocation still running at the daemon's end; the next mount clears the partial copy"
                );
            }
            fsstack_sync::thread::sleep(MOVERS_LOOK_PAUSE);
        }
    }
}

impl Moves {
    /// Has a mover carry `order` out; without a host for movers the calling thread does.
    pub(crate) fn have_moved(&self, mut order: OrderedMove) {
        let full = order.full;
        {
            let mut state = self.movers.0.lock();
            order.left_before = state.lanes.get(&full).map_or(0, |lane| lane.left);
            if self.hosted().is_some() {
                if state.ended {
                    return order.departure.call_off(DepartureOutcome::Stays);
                }
                state.lanes.entry(full).or_default().queue.push_back(Arc::new(Errand::One(order)));
                drop(state);
                return self.start_movers(full);
            }
        }
        self.carry_out_one(&order);
    }

    /// Has a mover carry out a batch, and waits for its end; `meanwhile` is done now and then. Without a host for movers the calling
    /// thread moves the files.
    pub(crate) fn have_batch_moved(&self, batch: OrderedBatch, meanwhile: impl Fn(&Departure)) {
        let (departure, from) = (batch.departure.clone(), batch.from);
        if self.hosted().is_none() {
            return self.carry_out(&Errand::Batch(batch));
        }
        {
            let mut state = self.movers.0.lock();
            if state.ended {
                return;
            }
            let lane = state.lanes.entry(from).or_default();
            lane.queue.push_back(Arc::new(Errand::Batch(batch)));
        }
        self.start_movers(from);
        let outcome = departure.wait(|| {
            self.start_movers(from);
            meanwhile(&departure);
        });
        if outcome == DepartureOutcome::Unknown {
            // Nobody waits for the rest of it, should its mover come back.
            departure.cut_short();
        }
    }

    /// Waits until the exchanges of names that are under way are over, for a branch that takes no more moves; not for one that
    /// hangs.
    pub(crate) fn exchanges_ended(&self) {
        if self.tree.tree_lock.try_write(EXCHANGE_TIMEOUT).is_none() {
            tracing::debug!("an exchange of names has not ended");
        }
    }

    /// Starts as many movers as there may be for those who wait to leave `full`.
    pub(crate) fn start_movers(&self, full: BranchIx) {
        let next = || {
            let mut over = Vec::new();
            self.movers.0.lock().lanes.get_mut(&full).and_then(|lane| lane.next(&mut over))
        };
        while let Some(errand) = next() {
            let Some(me) = self.hosted() else { return };
            let mover = fsstack_sync::thread::Builder::new().name("mover".into());
            let first = errand.clone();
            if let Err(error) = thread::start(mover, move || me.move_queued(first)) {
                tracing::warn!(%error, "relocation: cannot start a thread; the writer's own thread moves the file");
                self.move_queued(errand);
            }
        }
    }

    fn move_queued(&self, first: Arc<Errand>) {
        let mut next = Some(first);
        while let Some(errand) = next {
            self.carry_out(&errand);
            next = self.next_after(&errand);
        }
    }

    fn next_after(&self, done: &Errand) -> Option<Arc<Errand>> {
        let mut over = Vec::new();
        let mut state = self.movers.0.lock();
        let lane = state.lanes.get_mut(&done.full())?;
        lane.is_done(done.departure());
        lane.next(&mut over)
    }

    fn carry_out(&self, errand: &Errand) {
        match errand {
            Errand::One(order) => self.carry_out_one(order),
            Errand::Batch(batch) => {
                if batch.departure.begin() {
                    beside_others(|| self.move_batch(batch));
                }
                batch.end();
            }
        }
    }

    fn carry_out_one(&self, order: &OrderedMove) {
        let outcome = match order.departure.begin() {
            true if order.cause.job().is_some() => beside_others(|| self.move_file(order)),
            true => self.move_file(order),
            false => DepartureOutcome::Stays,
        };
        order.let_go();
        order.departure.end(outcome);
    }
}

/// Reads and writes with the idle I/O class: nobody waits for the move of a job.
fn beside_others<T>(moves: impl FnOnce() -> T) -> T {
    let set = |class| {
        if let Err(error) = sys::thread::set_io_class(class) {
            tracing::debug!(%error, "a mover keeps its I/O class");
        }
    };
    set(IoClass::Idle);
    let moved = moves();
    set(IoClass::Ordinary);
    moved
}
