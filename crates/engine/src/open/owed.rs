//! Write-back errors: errors of earlier writes, reported once to each handle of the file.
//!
//! A write is answered before its bytes are on disk. If they never get there, the branch reports it once to each open file
//! description (the kernel's errseq), and of a file the daemon has one for all its handles. So its errors are recorded here,
//! for each handle that was open by then, until an fsync by that handle has answered them. The close of a descriptor reports
//! them too; but one handle may have several descriptors, and a program may ignore the result of close.
//!
//! Of two concurrent calls one may get success because the other got the error: some file systems report a loss long before
//! they return. So a successful call waits for those that began before it returned. (A file that one program syncs at a time
//! waits for none.)

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fsstack_pool::Handle;
use fsstack_sys::SysError;
use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;

use super::{OpenFile, TRY};
use crate::error::{OpError, Result};
use crate::health::stand_in;

/// Errors that the branch reported of an open file.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    /// How many.
    told: AtomicU64,
    state: Mutex<State>,
    asked: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The last of them.
    last: Option<OpError>,
    /// How many of them handles have answered; those that are not here, as many as there were when they were opened.
    answered: HashMap<Handle, u64>,
    /// How often the branch was asked.
    begun: u64,
    /// Which of these times have not ended.
    under_way: SmallVec<[u64; 2]>,
}

/// Reader of the errors: a handle, and the number of errors when it was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    pub(crate) handle: Handle,
    pub(crate) since: u64,
}

/// Kind of call that asks about earlier writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    /// An fsync: its error is answered for good.
    Sync,
    /// The close of a descriptor, maybe by a process that only inherited it and ignores the result: the handle's fsync
    /// reports the error all the same.
    Close,
}

/// The branch is being asked.
struct Asking<'a> {
    owed: &'a Owed,
    turn: u64,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut state = self.owed.state.lock();
        state.under_way.retain(|turn| *turn != self.turn);
        drop(state);
        self.owed.asked.notify_all();
    }
}

impl Owed {
    /// Number of errors so far: a handle that is opened now does not get these.
    pub(crate) fn so_far(&self) -> u64 {
        self.told.load(Relaxed)
    }

    /// Asks the branch by `ask`: an error that `is_late`, about what others may have written, is owed to all other handles.
    ///
    /// # Errors
    /// What `ask` answers.
    pub(crate) fn ask<T>(
        &self,
        to: Option<To>,
        is_late: impl Fn(OpError) -> bool,
        ask: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let turn = {
            let mut state = self.state.lock();
            state.begun += 1;
            let turn = state.begun;
            state.under_way.push(turn);
            turn
        };
        let _asking = Asking { owed: self, turn };
        ask().inspect_err(|error| {
            if is_late(*error) {
                let mut state = self.state.lock();
                state.last = Some(*error);
                let told = self.told.fetch_add(1, Relaxed) + 1;
                if let Some(to) = to {
                    state.answered.insert(to.handle, told);
                }
            }
        })
    }

    /// Like [`Self::ask`], for the call `asks`: returns others' errors too.
    ///
    /// # Errors
    /// What `ask` answers; an error that is owed to the handle; what `patience` answers, which is asked every `piece` while others
    /// are waited for.
    pub(crate) fn settle(
        &self,
        (to, asks): (To, Asks),
        (piece, patience): (Duration, impl Fn() -> Result<()>),
        ask: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.ask(Some(to).filter(|_| asks == Asks::Sync), OpError::is_of_a_sync, ask)?;
        let mut state = self.state.lock();
        let until = state.begun;
        let waits = |state: &State| {
            self.owes(state, to).is_none() && state.under_way.iter().any(|turn| *turn <= until)
        };
        if waits(&state) {
            drop(state);
            state = stand_in::aside(|| {
                let mut state = self.state.lock();
                while waits(&state) {
                    if self.asked.wait_for(&mut state, piece).timed_out() {
                        MutexGuard::unlocked(&mut state, &patience)?;
                    }
                }
                Ok::<_, OpError>(state)
            })?;
        }
        let Some(error) = self.owes(&state, to) else { return Ok(()) };
        if asks == Asks::Sync {
            state.answered.insert(to.handle, self.so_far());
        }
        Err(error)
    }

    /// Pending error of a handle at the close of one of its descriptors, without a call to the branch.
    ///
    /// # Errors
    /// An error that is owed to it.
    pub(crate) fn tell(&self, to: To) -> Result<()> {
        if self.so_far() == to.since {
            return Ok(());
        }
        self.owes(&self.state.lock(), to).map_or(Ok(()), Err)
    }

    fn owes(&self, state: &State, to: To) -> Option<OpError> {
        let answered = state.answered.get(&to.handle).copied().unwrap_or(to.since);
        state.last.filter(|_| answered < self.so_far())
    }

    /// No further reports by this handle.
    pub(crate) fn closed(&self, handle: Handle) {
        if self.so_far() > 0 {
            self.state.lock().answered.remove(&handle);
        }
    }
}

impl OpenFile {
    /// Like [`Self::ask_patiently`], for calls that report on earlier writes.
    ///
    /// # Errors
    /// What the call answered, to this handle or to another one while this was open.
    pub(crate) fn settle(
        &self,
        who: (To, Asks),
        call: impl FnOnce(BorrowedFd<'_>) -> Result<(), SysError>,
    ) -> Result<()> {
        let came = Instant::now();
        let patience = || self.check_waiting(came);
        self.owed.settle(who, (TRY, patience), || self.ask_patiently(call))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use fsstack_sys::{Call, Errno, SysError};

    use super::*;

    const LOST: OpError = OpError::Branch {
        branch: fsstack_pool::BranchIx(0),
        sys: SysError { call: Call::Fsync, errno: Errno::IO },
    };

    fn to(handle: u64, since: u64) -> To {
        To { handle: Handle(handle), since }
    }

    fn sync(owed: &Owed, to: To, told: Result<()>) -> Result<(), Errno> {
        owed.settle((to, Asks::Sync), (Duration::from_secs(1), || Ok(())), || told).map_err(OpError::errno)
    }

    #[test]
    fn each_that_was_open_is_told_once() {
        let owed = Owed::default();
        let (one, two) = (to(1, 0), to(2, 0));
        assert_eq!(sync(&owed, one, Ok(())), Ok(()));
        assert_eq!(sync(&owed, one, Err(LOST)), Err(Errno::IO));
        let late = to(3, owed.so_far());
        assert_eq!(
            [one, two, late, two].map(|to| sync(&owed, to, Ok(()))),
            [Ok(()), Err(Errno::IO), Ok(()), Ok(())]
        );
        assert_eq!(sync(&owed, two, Err(LOST)), Err(Errno::IO));
        assert_eq!(
            [late, one, one].map(|to| sync(&owed, to, Ok(()))),
            [Err(Errno::IO), Err(Errno::IO), Ok(())]
        );
        owed.closed(Handle(1));
        // What is no word about what was written is nobody else's.
        let shut = OpError::UNSURE;
        assert_eq!(sync(&owed, two, Err(shut)), Err(Errno::IO));
        assert_eq!([two, late].map(|to| sync(&owed, to, Ok(()))), [Ok(()); 2]);
    }

    #[test]
    fn who_asks_at_the_same_time_is_told_too() {
        let owed = Owed::default();
        let (asks, is_asking) = channel();
        let (tell, told) = channel();
        let shared = &owed;
        thread::scope(move |scope| {
            let owed = shared;
            let first = scope.spawn(move || {
                let told = told;
                owed.settle((to(1, 0), Asks::Sync), (Duration::from_secs(1), || Ok(())), || {
                    asks.send(()).unwrap();
                    told.recv().unwrap()
                })
            });
            is_asking.recv().unwrap();
            // The branch answers success, having reported to the first, or being about to.
            let waits = || {
                let _once = tell.send(Err(LOST));
                Ok(())
            };
            let second = owed.settle((to(2, 0), Asks::Sync), (Duration::from_millis(1), waits), || Ok(()));
            assert_eq!(second.unwrap_err().errno(), Errno::IO);
            assert_eq!(first.join().unwrap().unwrap_err().errno(), Errno::IO);
        });
        assert_eq!(sync(&owed, to(2, 0), Ok(())), Ok(()));
    }
}
