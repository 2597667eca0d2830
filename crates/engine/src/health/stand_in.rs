//! Answering for a thread that is stuck in a call.
//!
//! A worker thread runs a request to its end, and a branch may never let it come back. So while it serves a request that
//! another thread could answer in its place, it registers a responder here ([`at`]). A call into a branch takes that along,
//! and the branch's monitor uses it when the call has overstayed. The transport itself knows, under a lock of its own,
//! whether the request is still the same and not answered yet. A request that only reads is served again: by then the branch
//! is closed, and the answer comes from the other branches.
//!
//! A request may also have to wait for another one: for a place in a branch, or until the file that it is about has been
//! moved. So that not all threads come to wait like that, a door's thread steps aside meanwhile ([`of`], `aside`), and the
//! door may have another one in its place.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::sync::Arc;

/// Responder that a worker thread leaves behind while it serves.
pub trait StandIn: Send + Sync + Debug {
    /// Has the request `turn` of the thread served again by another thread, if it may be; else answers it with EIO. Not if
    /// it has been answered. False: it could not be, and is to be tried again.
    fn refuse(&self, turn: u64) -> bool;
}

/// A request that somebody else can answer.
#[derive(Clone, Debug)]
pub(crate) struct Desk {
    door: Arc<dyn StandIn>,
    turn: u64,
}

impl Desk {
    pub(crate) fn refuse(&self) -> bool {
        self.door.refuse(self.turn)
    }
}

thread_local! {
    static DESK: RefCell<Option<Desk>> = const { RefCell::new(None) };
}

/// Serves the request `turn` by `work`: meanwhile `door` can refuse it.
pub fn at<T>(door: &Arc<dyn StandIn>, turn: u64, work: impl FnOnce() -> T) -> T {
    /// Leaves the desk, also when `work` panics.
    struct Leaves;
    impl Drop for Leaves {
        fn drop(&mut self) {
            DESK.set(None);
        }
    }
    DESK.set(Some(Desk { door: door.clone(), turn }));
    let _leaves = Leaves;
    work()
}

/// The request that the calling thread serves, if another could answer it.
pub(crate) fn desk() -> Option<Desk> {
    DESK.with_borrow(Clone::clone)
}

/// Worker threads of a transport.
pub trait Crew: Send + Sync + Debug {
    /// The calling thread is going to wait for another request. True: it does not count as long as it does; false: there
    /// are so many already that it counts.
    fn steps_aside(&self) -> bool;
    /// It is back.
    fn steps_back(&self);
}

thread_local! {
    static CREW: RefCell<Option<Arc<dyn Crew>>> = const { RefCell::new(None) };
}

/// The calling thread is one of `crew` as long as it lives.
pub fn of(crew: Arc<dyn Crew>) {
    CREW.set(Some(crew));
}

thread_local! {
    static IS_ASIDE: Cell<bool> = const { Cell::new(false) };
}

/// Waits for another request by `wait`, or does long work. A thread that is aside already stays so.
pub(crate) fn aside<T>(wait: impl FnOnce() -> T) -> T {
    /// Steps back, also when `wait` panics.
    struct Back(Option<Arc<dyn Crew>>);
    impl Drop for Back {
        fn drop(&mut self) {
            if let Some(crew) = self.0.take() {
                IS_ASIDE.set(false);
                crew.steps_back();
            }
        }
    }
    let crew = if IS_ASIDE.get() { None } else { CREW.with_borrow(Clone::clone) };
    let back = Back(crew.filter(|crew| crew.steps_aside()));
    if back.0.is_some() {
        IS_ASIDE.set(true);
    }
    wait()
}
