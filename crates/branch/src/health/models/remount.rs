//! Generations of a branch's mount, beside probes that end late.

use fsstack_sync::{Mutex, model, thread};
use std::sync::Arc;

use super::super::monitor::MonitorState;

/// One probe acts at a time, on the newest of what was found: a probe that was given up does not act.
#[test]
fn one_probe_acts_at_a_time() {
    model::check(|| {
        let state = Arc::new(Mutex::new(MonitorState::default()));
        let acting = Arc::new(Mutex::new(0_u64));
        let probes: Vec<_> = (0..2)
            .map(|_| {
                let (state, acting) = (state.clone(), acting.clone());
                thread::spawn(move || {
                    let number = {
                        let mut state = state.lock();
                        if state.is_probing() {
                            // It has not returned in time.
                            state.give_up();
                        }
                        if state.is_probing() {
                            return;
                        }
                        state.begin(fsstack_sync::time::Duration::ZERO)
                    };
                    if !state.lock().takes_turn(number) {
                        return;
                    }
                    // The branch goes to another mount: not one thread's act alone under the lock.
                    let before = std::mem::replace(&mut *acting.lock(), number);
                    assert_eq!(before, 0, "two probes act at once");
                    thread::yield_now();
                    *acting.lock() = 0;
                    state.lock().end();
                })
            })
            .collect();
        probes.into_iter().for_each(|probe| probe.join().unwrap());
    });
}
