//! Closing descriptors on a remote branch.
//!
//! A close is a request to the server and waits for as long as the server hangs: 300 open files of a program would take
//! 300 threads. So at most three threads close files of one mount of a branch at a time: up to two worker threads and
//! up to two threads of the branch. Other descriptors wait in a queue. A replaced mount has a queue of its own: what
//! hangs there does not block the present mount, and no worker thread closes a file there.

use std::cell::Cell;
use std::collections::VecDeque;

use fsstack_sync::Mutex;

use super::inflight_limit::CallKind;
use crate::branch::Branch;
use crate::thread;

/// Threads of each kind that close files of one mount: worker threads, and threads of the branch.
const EACH: usize = 2;
/// Threads of both kinds that close files of one mount. The transport starts another thread for each worker that
/// closes, and a burst of closes may start one more: four in all while the branch hangs.
const MOST: usize = 3;
/// Maximum queue length on a branch that answers; beyond it, the owner closes its descriptor itself.
const QUEUED: usize = 1024;

type CloseJob = Box<dyn FnOnce() + Send>;

fsstack_sync::thread_local! {
    /// The thread may close descriptors now: with a permit, or as a thread of the branch.
    static CLOSES_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread may close descriptors of a remote branch now.
pub(crate) fn closes_here() -> bool {
    // A thread that is ending serves no request.
    CLOSES_HERE.try_with(Cell::get).unwrap_or(true)
}

/// Runs `close` with the right to close descriptors.
fn closing_here<T>(close: impl FnOnce() -> T) -> T {
    let before = CLOSES_HERE.replace(true);
    let done = close();
    CLOSES_HERE.set(before);
    done
}

/// Descriptors of a branch that are queued or being closed.
#[derive(Default)]
pub(super) struct Closers(Mutex<Vec<CloseQueue>>);

/// The same for one mount; kept while there are any.
#[derive(Default)]
struct CloseQueue {
    generation: u32,
    /// Worker threads that close a file.
    callers: usize,
    /// Threads of the branch.
    closers: usize,
    queue: VecDeque<CloseJob>,
    /// Starting a thread for the queue failed.
    lacks_thread: bool,
}

impl std::fmt::Debug for Closers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lanes = self.0.lock();
        let queued = lanes.iter().map(|lane| lane.queue.len()).sum::<usize>();
        f.debug_struct("Closers").field("mounts", &lanes.len()).field("queued", &queued).finish()
    }
}

impl Closers {
    fn with<T>(&self, generation: u32, work: impl FnOnce(&mut CloseQueue) -> T) -> T {
        let mut lanes = self.0.lock();
        let at = lanes.iter().position(|lane| lane.generation == generation).unwrap_or_else(|| {
            lanes.push(CloseQueue { generation, ..CloseQueue::default() });
            lanes.len() - 1
        });
        let done = work(&mut lanes[at]);
        if lanes[at].callers + lanes[at].closers == 0 && lanes[at].queue.is_empty() {
            lanes.swap_remove(at);
        }
        done
    }

    /// True if a worker thread may close a file itself; counts it.
    fn begin(&self, generation: u32) -> bool {
        self.with(generation, |lane| {
            let has_room = lane.callers < EACH && lane.callers + lane.closers < MOST;
            let may = has_room || QUEUED <= lane.queue.len();
            lane.callers += usize::from(may);
            may
        })
    }

    fn end(&self, generation: u32) {
        self.with(generation, |lane| lane.callers -= 1);
    }

    /// Takes the next descriptor from the queue. `None`: the calling closer is done.
    fn next(&self, generation: u32) -> Option<CloseJob> {
        self.with(generation, |lane| {
            lane.lacks_thread = false;
            let next = lane.queue.pop_front();
            lane.closers -= usize::from(next.is_none());
            next
        })
    }

    /// True if another closer is to be started; counts it.
    fn wants_closer(&self, generation: u32) -> bool {
        self.with(generation, |lane| {
            let most = MOST.saturating_sub(lane.callers).clamp(1, EACH);
            let wants = lane.closers < most.min(lane.queue.len());
            lane.closers += usize::from(wants);
            wants
        })
    }

    /// True if files are queued or being closed.
    pub(super) fn are_busy(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// Number of files of all mounts that are queued or being closed.
    pub(super) fn len(&self) -> usize {
        self.0.lock().iter().map(|lane| lane.callers + lane.closers + lane.queue.len()).sum()
    }

    /// Number of files of the mount `generation` that are queued or being closed.
    fn of(&self, generation: u32) -> usize {
        let lanes = self.0.lock();
        let lane = lanes.iter().find(|lane| lane.generation == generation);
        lane.map_or(0, |lane| lane.callers + lane.closers + lane.queue.len())
    }

    /// True if starting a closer failed.
    pub(super) fn lack_thread(&self) -> bool {
        self.0.lock().iter().any(|lane| lane.lacks_thread)
    }
}

impl Branch {
    /// Drops `thing`, which holds descriptors on the mount `generation` of this branch.
    pub fn dispose(&self, generation: u32, thing: impl Send + 'static) {
        let closers = &self.health.closers;
        if self.health.inflight_limit.is_none() {
            return drop(thing);
        }
        if generation == self.mount_generation() && closers.begin(generation) {
            let inside = self.come_in(CallKind::Short);
            if inside.is_ok() {
                closing_here(|| drop(thing));
                drop(inside);
                return closers.end(generation);
            }
            closers.end(generation);
        }
        self.have_closed(generation, move || drop(thing));
    }

    /// Like [`Self::dispose`], but at once if the branch answers: the close releases a lock that others wait for.
    pub fn dispose_now(&self, generation: u32, thing: impl Send + 'static) {
        if self.health.inflight_limit.is_none() {
            return drop(thing);
        }
        if generation == self.mount_generation()
            && let Ok(_inside) = self.come_in(CallKind::Short)
        {
            return closing_here(|| drop(thing));
        }
        self.have_closed(generation, move || drop(thing));
    }

    /// Queues `thing`, which holds descriptors on the mount `generation`, for the threads of the branch. Where these do not keep
    /// up, it is disposed of here: programs that have such descriptors made would fill the table of descriptors otherwise.
    pub(crate) fn queue(&self, generation: u32, thing: impl Send + 'static) {
        match self.health.closers.with(generation, |lane| QUEUED <= lane.queue.len()) {
            true => self.dispose(generation, thing),
            false => self.have_closed(generation, move || drop(thing)),
        }
    }

    /// Number of files queued or being closed, without those on a branch that hangs.
    pub fn closing(&self) -> usize {
        if self.is_open() { self.health.closers.of(self.mount_generation()) } else { 0 }
    }

    /// Runs `close`, which closes a descriptor on the mount `generation`, in a thread of the branch, in the queue's
    /// order.
    pub fn have_closed(&self, generation: u32, close: impl FnOnce() + Send + 'static) {
        self.health.closers.with(generation, |lane| lane.queue.push_back(Box::new(close)));
        self.start_closers(generation);
    }

    /// Starts closers for the queue where none could be started before.
    pub(super) fn start_all_closers(&self) {
        let lanes: Vec<u32> = self.health.closers.0.lock().iter().map(|lane| lane.generation).collect();
        lanes.into_iter().for_each(|generation| self.start_closers(generation));
    }

    fn start_closers(&self, generation: u32) {
        while self.health.closers.wants_closer(generation) {
            let health = self.health.clone();
            let closer =
                fsstack_sync::thread::Builder::new().name("branch-close".into()).stack_size(128 << 10);
            let started = thread::start(closer, move || {
                while let Some(close) = health.closers.next(generation) {
                    closing_here(close);
                }
            });
            let Err(error) = started else { continue };
            let is_news = self.health.closers.with(generation, |lane| {
                lane.closers -= 1;
                lane.closers == 0 && !std::mem::replace(&mut lane.lacks_thread, true)
            });
            if is_news {
                tracing::warn!(%error, branch = %self.path.display(), "close of files: cannot start a thread; they stay open on the branch until one starts");
                self.wake_monitor();
            }
            return;
        }
    }
}
