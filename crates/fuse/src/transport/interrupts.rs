//! Requests that wait, and that their callers may give up.
//!
//! Only a wait for a lock can be interrupted: everything else is run to its end. INTERRUPT may be read by one
//! thread in the moment between another one's reading of the request and its saying so here. So those that find nobody are
//! remembered for a while. A program sends as many as it likes: the oldest are forgotten where there are too many.

use std::collections::{HashMap, HashSet, VecDeque};

use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicBool, Ordering::SeqCst};
use fsstack_sync::time::{Duration, Instant};

/// How long an INTERRUPT is remembered that found nobody waiting.
const INTERRUPT_REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// So many are remembered. At a million a second the oldest has come 65 ms before.
const MOST_REMEMBERED: usize = 1 << 16;

/// Waiting requests and interrupted ones.
#[derive(Debug, Default)]
pub struct Interrupts {
    table: Mutex<InterruptTable>,
    /// Nobody goes on waiting: waits are put off.
    put_off: AtomicBool,
}

#[derive(Debug, Default)]
struct InterruptTable {
    /// Whether its caller has given it up, for each request that waits.
    waiting: HashMap<u64, bool>,
    /// INTERRUPTs that found nobody waiting: the request's number, and when the last one came.
    early: HashMap<u64, Instant>,
    /// The same in their order, with some that were taken since.
    order: VecDeque<(Instant, u64)>,
    /// Waits that ended only because all are put off.
    put_off: HashSet<u64>,
}

impl InterruptTable {
    /// Remembers an INTERRUPT of request `unique`.
    fn note_early(&mut self, unique: u64) {
        let now = Instant::now();
        while let Some((since, oldest)) = self.order.front().copied()
            && (MOST_REMEMBERED <= self.order.len() || INTERRUPT_REMEMBERED_FOR < now.duration_since(since))
        {
            self.order.pop_front();
            if self.early.get(&oldest) == Some(&since) {
                self.early.remove(&oldest);
            }
        }
        self.early.insert(unique, now);
        self.order.push_back((now, unique));
    }

    /// Whether an INTERRUPT of request `unique` came before it waited; forgets it.
    fn take_early(&mut self, unique: u64) -> bool {
        self.early.remove(&unique).is_some()
    }
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
        let mut state = self.table.lock();
        if let Some(interrupted) = state.waiting.get_mut(&unique) {
            *interrupted = true;
            return;
        }
        state.note_early(unique);
    }

    /// Request `unique` was read, and is about to wait.
    pub fn expect(&self, unique: u64) {
        let mut state = self.table.lock();
        let interrupted = state.take_early(unique);
        *state.waiting.entry(unique).or_default() |= interrupted;
    }

    /// All waits are put off from now on, or go on.
    pub fn put_all_off(&self, put_off: bool) {
        self.put_off.store(put_off, SeqCst);
    }

    /// Whether the wait of request `unique` ended only because it was put off; asked once.
    pub fn was_put_off(&self, unique: u64) -> bool {
        self.table.lock().put_off.remove(&unique)
    }

    /// Whether the caller of request `unique`, whose wait was put off, has given it up since; asked once.
    pub fn was_given_up(&self, unique: u64) -> bool {
        self.table.lock().take_early(unique)
    }

    /// Request `unique` does not wait after all.
    pub fn dismiss(&self, unique: u64) {
        let mut state = self.table.lock();
        let interrupted = state.waiting.remove(&unique).unwrap_or(false);
        // Given up in the moment since it was put off: remembered for its next wait.
        if interrupted && state.put_off.contains(&unique) {
            state.note_early(unique);
        }
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
        self.all.table.lock().waiting.get(&self.unique).is_none_or(|interrupted| *interrupted)
    }
}

impl Waiting<'_> {
    /// Whether to go on waiting.
    pub fn goes_on(&self) -> bool {
        !self.all.put_off.load(SeqCst) && !self.is_interrupted()
    }

    /// The wait has ended by [`Self::goes_on`]: unless its caller has given up, it is put off.
    pub fn has_ended(&self) {
        if !self.is_interrupted() {
            self.all.table.lock().put_off.insert(self.unique);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.all.dismiss(self.unique);
    }
}

#[cfg(test)]
mod tests {
    use super::{Interrupts, MOST_REMEMBERED};

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
    fn a_wait_that_is_put_off_is_told_from_one_that_was_given_up() {
        let all = Interrupts::default();
        let (first, second) = (all.watch(1), all.watch(2));
        assert!(first.goes_on() && second.goes_on());
        all.put_all_off(true);
        all.interrupt(2);
        assert!(!first.goes_on() && !second.goes_on());
        first.has_ended();
        second.has_ended();
        assert!(all.was_put_off(1) && !all.was_put_off(1) && !all.was_put_off(2));
        all.put_all_off(false);
        assert!(first.goes_on() && !second.goes_on());
    }

    #[test]
    fn an_interrupt_of_a_wait_that_is_put_off_is_not_lost() {
        let all = Interrupts::default();
        let (first, second, third) = (all.watch(1), all.watch(2), all.watch(3));
        all.put_all_off(true);
        for (wait, unique) in [(first, 1), (second, 2), (third, 3)] {
            wait.has_ended();
            if unique == 1 {
                all.interrupt(unique);
            }
            drop(wait);
            assert!(all.was_put_off(unique));
        }
        all.interrupt(2);
        assert!(all.was_given_up(1) && all.was_given_up(2) && !all.was_given_up(3));
        assert!(!all.was_given_up(1), "an interrupt counts once");
    }

    #[test]
    fn an_interrupt_is_remembered_though_many_others_come() {
        let all = Interrupts::default();
        (0..10_000).for_each(|unique| all.interrupt(unique));
        assert!(all.watch(0).is_interrupted());
    }

    #[test]
    fn so_many_interrupts_are_remembered_and_no_more() {
        let all = Interrupts::default();
        let more = MOST_REMEMBERED as u64 + 10;
        (0..more).for_each(|unique| all.interrupt(unique));
        all.interrupt(20);
        assert!(!all.watch(0).is_interrupted() && all.watch(20).is_interrupted());
        for _ in 0..more {
            all.interrupt(1);
            assert!(all.watch(1).is_interrupted());
        }
        let state = all.table.lock();
        assert!(state.order.len() <= MOST_REMEMBERED && state.early.len() <= MOST_REMEMBERED);
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
