//! A move of an open file to another branch, from its order to its end.
//!
//! While the copy is made the file's readers go on with the old one, and threads that change the file wait here. Removal of
//! a name of the file, a mover that hangs and the end of the daemon cancel the move. Until the copy gets the name, that
//! takes one step and waits for nothing. A thread that changes a file whose move is one of a batch cancels it instead of waiting.

use std::time::Duration;

use fsstack_branch::health::holder::ThreadInCalls;
use fsstack_sync::{Condvar, Mutex};

/// How often those that wait for a move look at the mover.
const MOVER_LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Result of a move, for the threads that waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DepartureOutcome {
    /// The file is on another branch, or is not as it was: worth another try.
    TryAgain,
    /// The file stays where it is.
    Stays,
    /// The mover hangs at the exchange of the names.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DepartureStage {
    Copying,
    Naming,
    Over(DepartureOutcome),
}

/// One move.
#[derive(Debug)]
pub(crate) struct Departure {
    yields: bool,
    state: Mutex<DepartureState>,
    changed: Condvar,
}

#[derive(Debug)]
struct DepartureState {
    stage: DepartureStage,
    /// The copy is to stand still, unless somebody besides its job waits for the move.
    is_held: bool,
    /// No copy of a further file of the batch begins.
    is_short: bool,
    waiters: u32,
    mover: Option<ThreadInCalls>,
}

impl Departure {
    /// A move that was ordered.
    pub(crate) fn ordered() -> Self {
        Self::new(false)
    }

    /// One in a batch: a thread that changes the file does not wait for the others, and calls it off.
    pub(crate) fn in_batch() -> Self {
        Self::new(true)
    }

    fn new(yields: bool) -> Self {
        let state = DepartureState {
            stage: DepartureStage::Copying,
            is_held: false,
            is_short: false,
            waiters: 0,
            mover: None,
        };
        Self { yields, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Called off, if it is one that waits for others.
    pub(crate) fn yields(&self) {
        if self.yields {
            self.call_off(DepartureOutcome::TryAgain);
        }
    }

    /// The calling thread is the mover. False: the move was called off.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.state.lock();
        state.mover = Some(ThreadInCalls::here());
        state.stage == DepartureStage::Copying
    }

    /// Whether the copy is still wanted.
    pub(crate) fn goes_on(&self) -> bool {
        self.state.lock().stage == DepartureStage::Copying
    }

    /// Has a batch end with the files whose copies have begun. One that no mover has begun is called off.
    pub(crate) fn cut_short(&self) {
        let mut state = self.state.lock();
        state.is_short = true;
        if state.mover.is_none() && state.stage == DepartureStage::Copying {
            state.stage = DepartureStage::Over(DepartureOutcome::TryAgain);
            self.changed.notify_all();
        }
    }

    /// Whether a batch ends with the files whose copies have begun.
    pub(crate) fn is_short(&self) -> bool {
        self.state.lock().is_short
    }

    /// Has the copy stand still, or go on. A thread that waits to change the file has it go on all the same.
    pub(crate) fn hold_copy(&self, is_held: bool) {
        self.state.lock().is_held = is_held;
        self.changed.notify_all();
    }

    /// Like [`Self::goes_on`], after waiting for as long as the copy is to stand still.
    pub(crate) fn goes_on_copying(&self) -> bool {
        let mut state = self.state.lock();
        while state.stage == DepartureStage::Copying && state.is_held && state.waiters <= 1 {
            self.changed.wait_for(&mut state, MOVER_LOOK_INTERVAL);
        }
        state.stage == DepartureStage::Copying
    }

    /// The names are exchanged next, which cannot be called off. False: the move was. The caller has the file's place alone.
    pub(crate) fn name(&self) -> bool {
        let mut state = self.state.lock();
        let goes_on = state.stage == DepartureStage::Copying;
        if goes_on {
            state.stage = DepartureStage::Naming;
        }
        goes_on
    }

    /// The names are as they were, and the next target is tried. Before the place is given back.
    pub(crate) fn copy_again(&self) {
        let mut state = self.state.lock();
        if state.stage == DepartureStage::Naming {
            state.stage = DepartureStage::Copying;
        }
    }

    /// The move does not happen, unless the names are being exchanged.
    pub(crate) fn call_off(&self, outcome: DepartureOutcome) {
        let mut state = self.state.lock();
        if state.stage == DepartureStage::Copying {
            state.stage = DepartureStage::Over(outcome);
            self.changed.notify_all();
        }
    }

    /// The mover is done.
    pub(crate) fn end(&self, outcome: DepartureOutcome) {
        let mut state = self.state.lock();
        if !matches!(state.stage, DepartureStage::Over(_)) {
            state.stage = DepartureStage::Over(outcome);
        }
        state.mover = None;
        self.changed.notify_all();
    }

    /// True if no thread needs to wait for it.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state.lock().stage, DepartureStage::Over(_))
    }

    /// Whether its mover may never come back.
    pub(crate) fn is_stuck(&self) -> bool {
        self.state.lock().mover.as_ref().is_some_and(ThreadInCalls::is_stuck)
    }

    /// Waits for the end; `meanwhile` is done at every look. A copy that hangs is called off.
    pub(crate) fn wait(&self, meanwhile: impl Fn()) -> DepartureOutcome {
        self.state.lock().waiters += 1;
        // A copy that stands still goes on for it.
        self.changed.notify_all();
        let outcome = self.wait_counted(meanwhile);
        self.state.lock().waiters -= 1;
        outcome
    }

    fn wait_counted(&self, meanwhile: impl Fn()) -> DepartureOutcome {
        loop {
            {
                let mut state = self.state.lock();
                if let DepartureStage::Over(outcome) = state.stage {
                    return outcome;
                }
                if state.mover.as_ref().is_some_and(ThreadInCalls::is_stuck) {
                    if state.stage == DepartureStage::Naming {
                        return DepartureOutcome::Unknown;
                    }
                    state.stage = DepartureStage::Over(DepartureOutcome::Stays);
                    self.changed.notify_all();
                    return DepartureOutcome::Stays;
                }
                self.changed.wait_for(&mut state, MOVER_LOOK_INTERVAL);
            }
            meanwhile();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_calls_off_the_move_of_a_file_in_a_batch_and_no_other() {
        let (single, batched) = (Departure::ordered(), Departure::in_batch());
        [&single, &batched].into_iter().for_each(Departure::yields);
        assert!(single.goes_on() && batched.is_over());
        assert_eq!(batched.wait(|| ()), DepartureOutcome::TryAgain);
        assert!(!batched.begin() && !batched.name(), "a move that was called off goes on");
    }

    #[test]
    fn a_held_copy_goes_on_when_it_is_released_called_off_or_waited_for_by_another_than_its_job() {
        let held = |waiters| {
            let departure = Departure::ordered();
            departure.hold_copy(true);
            departure.state.lock().waiters = waiters;
            departure
        };
        let released = held(1);
        released.hold_copy(false);
        assert!(released.goes_on_copying());
        let called_off = held(1);
        called_off.call_off(DepartureOutcome::TryAgain);
        assert!(!called_off.goes_on_copying());
        assert!(held(2).goes_on_copying(), "a writer waits for a copy that stands still");
    }

    #[test]
    fn a_batch_that_is_cut_short_ends_at_once_if_it_waits_and_goes_on_with_what_has_begun() {
        let waits = Departure::ordered();
        waits.cut_short();
        assert_eq!(waits.wait(|| ()), DepartureOutcome::TryAgain);
        assert!(!waits.begin());
        let begun = Departure::ordered();
        assert!(begun.begin() && !begun.is_short());
        begun.cut_short();
        assert!(begun.is_short() && begun.goes_on_copying() && begun.name());
    }

    #[test]
    fn an_exchange_of_names_is_waited_for_in_a_batch_too() {
        let batched = Departure::in_batch();
        assert!(batched.begin() && batched.name());
        batched.yields();
        assert!(!batched.is_over());
        batched.end(DepartureOutcome::TryAgain);
        assert!(batched.is_over());
    }
}
