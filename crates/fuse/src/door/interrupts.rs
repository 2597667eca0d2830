//! Requests that wait, and that their callers may give up.
//!
//! Only a wait for a lock can be interrupted: everything else is run to its end. INTERRUPT may be read by one
//! thread before another has begun the request that it is about, so the latest ones are remembered.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;

/// INTERRUPTs remembered that found nobody waiting.
const REMEMBERED: usize = 64;

/// Who waits, and who was interrupted.
#[derive(Debug, Default)]
pub struct Interrupts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: HashSet<u64>,
    interrupted: VecDeque<u64>,
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
        if !state.waiting.remove(&unique) {
            if state.interrupted.len() == REMEMBERED {
                state.interrupted.pop_front();
            }
            state.interrupted.push_back(unique);
        }
    }

    /// Request `unique` waits from now on.
    pub fn watch(&self, unique: u64) -> Waiting<'_> {
        let mut state = self.0.lock();
        match state.interrupted.iter().position(|known| *known == unique) {
            Some(at) => {
                state.interrupted.remove(at);
            }
            None => {
                state.waiting.insert(unique);
            }
        }
        Waiting { all: self, unique }
    }
}

impl Waiting<'_> {
    /// Whether the caller has given up.
    pub fn is_interrupted(&self) -> bool {
        !self.all.0.lock().waiting.contains(&self.unique)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.all.0.lock().waiting.remove(&self.unique);
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
}
