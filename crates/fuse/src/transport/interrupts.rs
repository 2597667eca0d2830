//! Requests that wait, and that their callers may give up.
//!
//! Only a wait for a lock can be interrupted: everything else is run to its end. INTERRUPT may be read by one
//! thread in the moment between another one's reading of the request and its saying so here. So those that find nobody are
//! remembered for a while, however many there are.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long an INTERRUPT is remembered that found nobody waiting.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);

/// Waiting requests and interrupted ones.
#[derive(Debug, Default)]
pub struct Interrupts(Mutex<InterruptTable>);

#[derive(Debug, Default)]
struct InterruptTable {
    /// Whether its caller has given it up, for each request that waits.
    waiting: HashMap<u64, bool>,
    early: VecDeque<(Instant, u64)>,
}

/// A request that waits, until this is dropped.
#[derive(Debug)]
pub struct Waiting<'a> {
    all: &'a Interrupts,
    unique: u64,
}

impl Interrupts {
    /// The caller of request `unique` gives it up.
    pub fn interrupt(&self, unique: u64) {
        let mut state = self.0.lock();
        if let Some(interrupted) = state.waiting.get_mut(&unique) {
            *interrupted = true;
            return;
        }
        let now = Instant::now();
        while state.early.front().is_some_and(|(since, _)| REMEMBERED_FOR < now.duration_since(*since)) {
            state.early.pop_front();
        }
        state.early.push_back((now, unique));
    }

    /// Request `unique` was read, and is about to wait.
    pub fn expect(&self, unique: u64) {
        let mut state = self.0.lock();
        let early = state.early.iter().position(|(_, known)| *known == unique);
        let interrupted = early.and_then(|at| state.early.remove(at)).is_some();
        *state.waiting.entry(unique).or_default() |= interrupted;
    }

    /// Request `unique` does not wait after all.
    pub fn dismiss(&self, unique: u64) {
        self.0.lock().waiting.remove(&unique);
    }

    /// Request `unique` waits from now on.
    pub fn watch(&self, unique: u64) -> Waiting<'_> {
        self.expect(unique);
        Waiting { all: self, unique }
    }
}

impl Waiting<'_> {
    /// Whether the caller has given up.
    pub fn is_interrupted(&self) -> bool {
        self.all.0.lock().waiting.get(&self.unique).is_none_or(|interrupted| *interrupted)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.all.dismiss(self.unique);
    }
}

#[cfg(test)]
mod tests {
    use super::Interrupts;

    #[test]
    fn an_interrupt_finds_its_request_before_or_after_it_waits() {
        let all = Interrupts::default();
        let first = all.watch(1);
        assert!(!first.is_interrupted());
        all.interrupt(1);
        assert!(first.is_interrupted());
        all.interrupt(2);
        assert!(all.watch(2).is_interrupted());
        assert!(!all.watch(2).is_interrupted(), "an interrupt counts once");
    }

    #[test]
    fn an_interrupt_is_remembered_however_many_others_come() {
        let all = Interrupts::default();
        (0..10_000).for_each(|unique| all.interrupt(unique));
        assert!(all.watch(0).is_interrupted());
    }

    #[test]
    fn a_request_that_was_read_is_interrupted_before_it_waits() {
        let all = Interrupts::default();
        all.expect(1);
        all.expect(2);
        all.interrupt(1);
        all.interrupt(2);
        assert!(all.watch(1).is_interrupted());
        all.dismiss(2);
        assert!(!all.watch(2).is_interrupted());
    }
}
