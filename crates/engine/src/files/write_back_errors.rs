//! Write-back errors: errors of earlier writes, reported once to each handle of the file.
//!
//! A write is answered before its bytes are on disk. If they never get there, the branch reports it once to each open file
//! description (the kernel's errseq), and the daemon has one for all handles of a file. So errors are recorded here for each
//! handle of that time, until an fsync by that handle has returned them. The close of a descriptor reports them too. But one
//! handle may have several descriptors, and a program may ignore the result of close.
//!
//! A call may succeed because a concurrent one got the error: some file systems report a loss long before they return. So a successful call waits for those that began before it returned. A file that one program syncs at a time waits
//! for none.

use std::collections::HashMap;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::reply_takeover;
use fsstack_pool::Handle;
use fsstack_sync::atomic::{AtomicU64, Ordering::Relaxed};
use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Condvar, Mutex, MutexGuard};
use fsstack_sys::SysError;
use smallvec::SmallVec;

use super::handed::ErrorsRow;
use super::{FILE_LOCK_ATTEMPT, OpenFile};

/// Errors that the branch reported of an open file.
#[derive(Debug, Default)]
pub(crate) struct WriteBackErrors {
    /// How many.
    reported: AtomicU64,
    state: Mutex<ReportedErrors>,
    asked: Condvar,
    /// Notes that outlive the daemon, if there are any.
    noted: OnceLock<Box<dyn OwedErrors>>,
}

/// Notes of which handles of a file have an error pending.
pub(crate) trait OwedErrors: Debug + Send + Sync {
    /// All handles of the file have one, but for `told`.
    fn owe(&self, told: Option<Handle>);

    /// All were reported to the handle.
    fn tell(&self, handle: Handle);
}

#[derive(Debug, Default)]
struct ReportedErrors {
    /// The last of them.
    last: Option<OpError>,
    /// Number of errors that each handle has returned; handles that are not here, as many as at their open.
    answered: HashMap<Handle, u64>,
    /// Number of calls that asked the branch.
    begun: u64,
    /// Those of them that have not ended.
    under_way: SmallVec<[u64; 2]>,
}

/// Reader of the errors: a handle, and the number of errors when it was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportTo {
    pub(crate) handle: Handle,
    pub(crate) since: u64,
}

/// Kind of call that asks about earlier writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reporter {
    /// An fsync: its error is final.
    Sync,
    /// The close of a descriptor, maybe by a process that only inherited it and ignores the result: the handle's fsync
    /// reports the error all the same.
    Close,
}

/// The branch is being asked.
struct SyncUnderWay<'a> {
    write_back_errors: &'a WriteBackErrors,
    round: u64,
}

impl Drop for SyncUnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.write_back_errors.state.lock();
        state.under_way.retain(|round| *round != self.round);
        drop(state);
        self.write_back_errors.asked.notify_all();
    }
}

impl WriteBackErrors {
    /// Number of errors so far: a handle that is opened now does not get these.
    pub(crate) fn so_far(&self) -> u64 {
        self.reported.load(Relaxed)
    }

    /// Asks the branch by `ask`: an error that `is_late`, about what others may have written, goes to all other handles too.
    ///
    /// # Errors
    /// The error of `ask`.
    pub(crate) fn ask<T>(
        &self,
        to: Option<ReportTo>,
        is_late: impl Fn(OpError) -> bool,
        ask: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let round = {
            let mut state = self.state.lock();
            state.begun += 1;
            let round = state.begun;
            state.under_way.push(round);
            round
        };
        let _asking = SyncUnderWay { write_back_errors: self, round };
        ask().inspect_err(|error| {
            if is_late(*error) {
                let mut state = self.state.lock();
                state.last = Some(*error);
                let reported = self.reported.fetch_add(1, Relaxed) + 1;
                if let Some(to) = to {
                    state.answered.insert(to.handle, reported);
                }
                if let Some(noted) = self.noted.get() {
                    noted.owe(to.map(|to| to.handle));
                }
            }
        })
    }

    /// Like [`Self::ask`], for the call `asks`: returns others' errors too.
    ///
    /// # Errors
    /// The error of `ask`; an error pending for the handle; the error of `timeout`, which is called every `piece` while others
    /// are waited for.
    pub(crate) fn settle(
        &self,
        (to, asks): (ReportTo, Reporter),
        (piece, timeout): (Duration, impl Fn() -> Result<()>),
        ask: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.ask(Some(to).filter(|_| asks == Reporter::Sync), OpError::is_of_a_sync, ask)?;
        let mut state = self.state.lock();
        let until = state.begun;
        let waits = |state: &ReportedErrors| {
            self.unreported(state, to).is_none() && state.under_way.iter().any(|round| *round <= until)
        };
        if waits(&state) {
            drop(state);
            state = reply_takeover::aside(|| {
                let mut state = self.state.lock();
                while waits(&state) {
                    if self.asked.wait_for(&mut state, piece).timed_out() {
                        MutexGuard::unlocked(&mut state, &timeout)?;
                    }
                }
                Ok::<_, OpError>(state)
            })?;
        }
        let Some(error) = self.unreported(&state, to) else { return Ok(()) };
        if asks == Reporter::Sync {
            state.answered.insert(to.handle, self.so_far());
            if let Some(noted) = self.noted.get() {
                noted.tell(to.handle);
            }
        }
        Err(error)
    }

    /// Pending error of a handle at the close of one of its descriptors, without a call to the branch.
    ///
    /// # Errors
    /// An error pending for it.
    pub(crate) fn tell(&self, to: ReportTo) -> Result<()> {
        if self.so_far() == to.since {
            return Ok(());
        }
        self.unreported(&self.state.lock(), to).map_or(Ok(()), Err)
    }

    fn unreported(&self, state: &ReportedErrors, to: ReportTo) -> Option<OpError> {
        let answered = state.answered.get(&to.handle).copied().unwrap_or(to.since);
        state.last.filter(|_| answered < self.so_far())
    }

    /// Notes pending errors in `noted` from now on; the first one stays.
    pub(crate) fn note_in(&self, noted: impl FnOnce() -> Box<dyn OwedErrors>) {
        self.noted.get_or_init(noted);
    }

    /// Some handles have `error` pending, from a daemon that has died. Returns [`ReportTo::since`] of those, and of the others.
    pub(crate) fn was_left(&self, error: OpError) -> (u64, u64) {
        self.state.lock().last = Some(error);
        self.reported.store(1, Relaxed);
        (0, 1)
    }

    /// Its row, for another program.
    pub(super) fn row(&self) -> ErrorsRow {
        let state = self.state.lock();
        ErrorsRow::of(self.so_far(), state.last, &state.answered)
    }

    /// Takes over what another program has recorded.
    pub(super) fn take_row(&self, row: &ErrorsRow) {
        let mut state = self.state.lock();
        self.reported.store(row.reported, Relaxed);
        state.last = row.last();
        state.answered = row.answered.iter().map(|(handle, count)| (Handle(*handle), *count)).collect();
    }

    /// Forgets this handle: it reports no more.
    pub(crate) fn closed(&self, handle: Handle) {
        if self.so_far() > 0 {
            self.state.lock().answered.remove(&handle);
        }
    }
}

impl OpenFile {
    /// Like [`Self::ask_long`], for calls that report on earlier writes.
    ///
    /// # Errors
    /// The call's error, reported to this handle or to another one while this was open.
    pub(crate) fn settle(
        &self,
        who: (ReportTo, Reporter),
        call: impl FnOnce(BorrowedFd<'_>) -> Result<(), SysError>,
    ) -> Result<()> {
        let came = Instant::now();
        let timeout = || self.check_waiting(came);
        self.write_back_errors.settle(who, (FILE_LOCK_ATTEMPT, timeout), || self.ask_long(call))
    }
}

#[cfg(test)]
mod tests {
    use fsstack_sync::mpsc::channel;
    use fsstack_sync::thread;

    use fsstack_sys::{Call, Errno, SysError};

    use super::*;

    const LOST: OpError = OpError::Branch {
        branch: fsstack_pool::BranchIx(0),
        sys: SysError { call: Call::Fsync, errno: Errno::IO },
    };

    fn to(handle: u64, since: u64) -> ReportTo {
        ReportTo { handle: Handle(handle), since }
    }

    fn sync(write_back_errors: &WriteBackErrors, to: ReportTo, reported: Result<()>) -> Result<(), Errno> {
        write_back_errors
            .settle((to, Reporter::Sync), (Duration::from_secs(1), || Ok(())), || reported)
            .map_err(OpError::errno)
    }

    #[test]
    fn each_that_was_open_gets_an_error_once() {
        let write_back_errors = WriteBackErrors::default();
        let (one, two) = (to(1, 0), to(2, 0));
        assert_eq!(sync(&write_back_errors, one, Ok(())), Ok(()));
        assert_eq!(sync(&write_back_errors, one, Err(LOST)), Err(Errno::IO));
        let late = to(3, write_back_errors.so_far());
        assert_eq!(
            [one, two, late, two].map(|to| sync(&write_back_errors, to, Ok(()))),
            [Ok(()), Err(Errno::IO), Ok(()), Ok(())]
        );
        assert_eq!(sync(&write_back_errors, two, Err(LOST)), Err(Errno::IO));
        assert_eq!(
            [late, one, one].map(|to| sync(&write_back_errors, to, Ok(()))),
            [Err(Errno::IO), Err(Errno::IO), Ok(())]
        );
        write_back_errors.closed(Handle(1));
        // An error that is not about earlier writes concerns no other handle.
        let shut = OpError::UNSURE;
        assert_eq!(sync(&write_back_errors, two, Err(shut)), Err(Errno::IO));
        assert_eq!([two, late].map(|to| sync(&write_back_errors, to, Ok(()))), [Ok(()); 2]);
    }

    #[test]
    fn concurrent_callers_get_the_error_too() {
        let write_back_errors = WriteBackErrors::default();
        let (asks, is_asking) = channel();
        let (tell, reported) = channel();
        let shared = &write_back_errors;
        thread::scope(move |scope| {
            let write_back_errors = shared;
            let first = scope.spawn(move || {
                let reported = reported;
                write_back_errors.settle(
                    (to(1, 0), Reporter::Sync),
                    (Duration::from_secs(1), || Ok(())),
                    || {
                        asks.send(()).unwrap();
                        reported.recv().unwrap()
                    },
                )
            });
            is_asking.recv().unwrap();
            // The branch answers success, as the first caller got the error, or is about to.
            let waits = || {
                let _once = tell.send(Err(LOST));
                Ok(())
            };
            let second = write_back_errors.settle(
                (to(2, 0), Reporter::Sync),
                (Duration::from_millis(1), waits),
                || Ok(()),
            );
            assert_eq!(second.unwrap_err().errno(), Errno::IO);
            assert_eq!(first.join().unwrap().unwrap_err().errno(), Errno::IO);
        });
        assert_eq!(sync(&write_back_errors, to(2, 0), Ok(())), Ok(()));
    }
}
