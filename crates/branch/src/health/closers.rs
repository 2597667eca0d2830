//! Closing descriptors on a branch that others serve.
//!
//! A close asks the server, and waits for as long as it hangs: 300 files that a program had open there would take 300
//! threads. So no more than three threads close files of one mount of a branch at a time, up to two of those that serve
//! requests and up to two of the branch's own; what else is to be closed waits in a queue. A mount that was replaced has a queue of its
//! own: what hangs there holds up nothing in the present one, and no thread that serves requests ever closes a file there.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::inflight_limit::CallKind;
use crate::branch::Branch;
use crate::thread;

/// Threads that close files of one mount: of those that serve requests, and of the branch's own.
const EACH: usize = 2;
/// Threads of both kinds that close files of one mount. In the place of each that serves requests its transport starts
/// another, and a burst of closes may have it start one more: four in all while the branch hangs.
const MOST: usize = 3;
/// Most descriptors that wait to be closed on a branch that answers; beyond, the owner of one closes it.
const QUEUED: usize = 1024;

type CloseJob = Box<dyn FnOnce() + Send>;

/// Descriptors of a branch that are being closed, and that are to be.
#[derive(Default)]
pub(super) struct Closers(Mutex<Vec<CloseQueue>>);

/// The same for one mount; it is here as long as there are any.
#[derive(Default)]
struct CloseQueue {
    generation: u32,
    /// Threads that serve requests, and close a file.
    callers: usize,
    /// Threads of the branch's own.
    closers: usize,
    queue: VecDeque<CloseJob>,
    /// No thread could be had for them.
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

    /// Whether a thread that serves requests may close a file itself.
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

    /// The next one to be closed. None: the calling closer is done.
    fn next(&self, generation: u32) -> Option<CloseJob> {
        self.with(generation, |lane| {
            lane.lacks_thread = false;
            let next = lane.queue.pop_front();
            lane.closers -= usize::from(next.is_none());
            next
        })
    }

    /// Whether one more closer is to be started: it is counted.
    fn wants_closer(&self, generation: u32) -> bool {
        self.with(generation, |lane| {
            let most = MOST.saturating_sub(lane.callers).clamp(1, EACH);
            let wants = lane.closers < most.min(lane.queue.len());
            lane.closers += usize::from(wants);
            wants
        })
    }

    /// Whether files are being closed, or are to be.
    pub(super) fn are_busy(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// Files of the mount `generation` that are being closed, or are to be.
    fn of(&self, generation: u32) -> usize {
        let lanes = self.0.lock();
        let lane = lanes.iter().find(|lane| lane.generation == generation);
        lane.map_or(0, |lane| lane.callers + lane.closers + lane.queue.len())
    }

    /// Whether there was no thread to close a file.
    pub(super) fn lack_thread(&self) -> bool {
        self.0.lock().iter().any(|lane| lane.lacks_thread)
    }
}

impl Branch {
    /// Lets `thing` go, which holds descriptors on the mount `generation` of this branch.
    pub fn dispose(&self, generation: u32, thing: impl Send + 'static) {
        let closers = &self.health.closers;
        if self.health.inflight_limit.is_none() {
            return drop(thing);
        }
        if generation == self.mount_generation() && closers.begin(generation) {
            let inside = self.come_in(CallKind::Short);
            if inside.is_ok() {
                drop((thing, inside));
                return closers.end(generation);
            }
            closers.end(generation);
        }
        self.have_closed(generation, move || drop(thing));
    }

    /// Like [`Self::dispose`], but at once if the branch answers: closing it releases a lock that others wait for.
    pub fn dispose_now(&self, generation: u32, thing: impl Send + 'static) {
        if self.health.inflight_limit.is_none() {
            return drop(thing);
        }
        if generation == self.mount_generation()
            && let Ok(_inside) = self.come_in(CallKind::Short)
        {
            return drop(thing);
        }
        self.have_closed(generation, move || drop(thing));
    }

    /// Files that are being closed on the branch, or are to be; not those that a branch which hangs keeps.
    pub fn closing(&self) -> usize {
        if self.is_open() { self.health.closers.of(self.mount_generation()) } else { 0 }
    }

    /// Has `close`, which closes a descriptor on the mount `generation`, done by a thread of its own, in its turn.
    pub fn have_closed(&self, generation: u32, close: impl FnOnce() + Send + 'static) {
        self.health.closers.with(generation, |lane| lane.queue.push_back(Box::new(close)));
        self.start_closers(generation);
    }

    /// Starts threads for what waits to be closed, where none could be had before.
    pub(super) fn start_all_closers(&self) {
        let lanes: Vec<u32> = self.health.closers.0.lock().iter().map(|lane| lane.generation).collect();
        lanes.into_iter().for_each(|generation| self.start_closers(generation));
    }

    fn start_closers(&self, generation: u32) {
        while self.health.closers.wants_closer(generation) {
            let health = self.health.clone();
            let closer = std::thread::Builder::new().name("branch-close".into()).stack_size(128 << 10);
            let started = thread::start(closer, move || {
                while let Some(close) = health.closers.next(generation) {
                    close();
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
