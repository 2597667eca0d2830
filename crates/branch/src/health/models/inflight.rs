//! The in-flight limit: permits, the queue, and generations of the mount.

use std::sync::Arc;

use fsstack_sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use fsstack_sync::time::Duration;
use fsstack_sync::{Condvar, Mutex, model, thread};

use super::super::inflight_limit::{CallKind, InflightLimit};

use super::TIMEOUT;

/// An event that threads wait for.
#[derive(Debug, Default)]
struct Event(Mutex<bool>, Condvar);

impl Event {
    fn happens(&self) {
        *self.0.lock() = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        self.1.wait_while(&mut self.0.lock(), |happened| !*happened);
    }
}

/// No more calls are inside than there are permits, each caller in the queue gets an answer, and all permits come back.
#[test]
fn calls_are_limited_and_no_caller_is_forgotten() {
    model::check(|| {
        const LIMIT: usize = 2;
        let inflight_limit = Arc::new(InflightLimit::new(Duration::ZERO, LIMIT));
        let inside = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..4)
            .map(|_| {
                let (inflight_limit, inside) = (inflight_limit.clone(), inside.clone());
                thread::spawn(move || {
                    let permit = inflight_limit.enter(CallKind::Short, || true).unwrap();
                    assert!(inside.fetch_add(1, SeqCst) < LIMIT, "more calls inside than permits");
                    thread::yield_now();
                    inside.fetch_sub(1, SeqCst);
                    drop(permit);
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!((inflight_limit.inside(), inflight_limit.entered()), (0, 4));
        // All are free: as many as before enter at once.
        let all: Vec<_> =
            (0..LIMIT).map(|_| inflight_limit.enter(CallKind::Short, || true).unwrap()).collect();
        assert_eq!(inflight_limit.inside(), all.len());
    });
}

/// A branch that closes refuses those that wait, and lets nobody in that has not seen it.
#[test]
fn a_branch_that_closes_leaves_nobody_in_its_queue() {
    model::check(|| {
        let inflight_limit = Arc::new(InflightLimit::new(Duration::ZERO, 1));
        let is_open = Arc::new(AtomicBool::new(true));
        let stuck = inflight_limit.enter(CallKind::Short, || true).unwrap();
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let (inflight_limit, is_open) = (inflight_limit.clone(), is_open.clone());
                thread::spawn(move || {
                    let entered = inflight_limit.enter(CallKind::Short, || is_open.load(SeqCst));
                    assert!(entered.is_err(), "the one permit is held by a call that does not return");
                })
            })
            .collect();
        is_open.store(false, SeqCst);
        inflight_limit.refuse_waiting();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        drop(stuck);
        assert_eq!(inflight_limit.inside(), 0);
    });
}

/// Calls that are stuck in a mount that is gone take no permit of the next one, and are given up once.
#[test]
fn a_new_mount_has_all_its_permits_and_stuck_calls_are_given_up_once() {
    model::check(|| {
        let inflight_limit = Arc::new(InflightLimit::new(TIMEOUT, 1));
        let (released, ended) = (Arc::new(Event::default()), Arc::new(AtomicBool::new(false)));
        let is_inside = Arc::new(Event::default());
        let stuck = {
            let (inflight_limit, released, is_inside) =
                (inflight_limit.clone(), released.clone(), is_inside.clone());
            thread::spawn(move || {
                let permit = inflight_limit.enter(CallKind::Short, || true).unwrap();
                is_inside.happens();
                released.wait();
                drop(permit);
                assert!(!crate::health::holder::ThreadInCalls::here().is_stuck(), "it is back");
            })
        };
        let monitor = {
            let (inflight_limit, ended) = (inflight_limit.clone(), ended.clone());
            thread::spawn(move || {
                while !ended.load(SeqCst) {
                    inflight_limit.look(false, || ());
                    thread::sleep(inflight_limit.pause());
                }
            })
        };
        is_inside.wait();
        inflight_limit.renew(1);
        for _ in 0..2 {
            let permit = inflight_limit.enter(CallKind::Short, || true);
            assert!(permit.is_ok(), "a permit of the new mount is held in the old one");
        }
        released.happens();
        stuck.join().unwrap();
        assert_eq!(inflight_limit.inside(), 0);
        ended.store(true, SeqCst);
        monitor.join().unwrap();
    });
}

/// A call that is given up at the moment of its return leaves no mark on its thread, which others would not wait for.
#[test]
fn a_thread_that_is_back_does_not_count_as_stuck() {
    model::check(|| {
        let inflight_limit = Arc::new(InflightLimit::new(Duration::from_millis(1), 1));
        let called = inflight_limit.clone();
        let caller = thread::spawn(move || {
            for _ in 0..2 {
                // Refused while the first call counts as lost.
                let permit = called.enter(CallKind::Short, || true);
                thread::yield_now();
                drop(permit);
                assert!(!crate::health::holder::ThreadInCalls::here().is_stuck(), "it is back");
            }
        });
        for _ in 0..3 {
            thread::sleep(inflight_limit.pause());
            inflight_limit.look(false, || ());
        }
        caller.join().unwrap();
        assert_eq!(inflight_limit.inside(), 0);
    });
}
