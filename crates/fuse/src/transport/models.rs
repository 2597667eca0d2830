//! Models of the roster of worker threads and of the gate before the device, run by `cargo xtask test --tier models`.

use std::time::Duration;

use fsstack_branch::health::reply_takeover::WorkerThread as _;
use fsstack_sync::atomic::{AtomicUsize, Ordering::SeqCst};
use fsstack_sync::{model, thread};

use super::gate::{Gate, Reading};
use super::workers::Workers;

/// Every thread is in one count at each moment (`Workers::check`), and one without a request is working: whatever looks,
/// takeovers and waits for other requests come together.
#[test]
fn a_thread_without_a_request_counts_as_working() {
    model::check(|| {
        let workers = Workers::new(1);
        let members: Vec<_> = (0..2).map(|number| workers.enter(number)).collect();
        let watcher = thread::spawn({
            let workers = workers.clone();
            move || {
                for _ in 0..3 {
                    model::pass_time(Duration::from_millis(200));
                    workers.look();
                }
            }
        });
        // Its request is answered by another thread meanwhile, which happens in the order of these two.
        let takeover = thread::spawn({
            let caught = members[0].worker().clone();
            move || {
                caught.is_stuck();
                caught.is_back();
            }
        });
        let served: Vec<_> = members
            .into_iter()
            .map(|member| {
                thread::spawn(move || {
                    let worker = member.worker();
                    for _ in 0..2 {
                        worker.begins();
                        if worker.steps_aside() {
                            worker.steps_back();
                        }
                        worker.ends();
                    }
                    member
                })
            })
            .collect();
        let members: Vec<_> = served.into_iter().map(|served| served.join().unwrap()).collect();
        watcher.join().unwrap();
        takeover.join().unwrap();
        assert_eq!(
            [workers.working(), workers.aside(), workers.resting()],
            [2, 0, 0],
            "a thread that has no request is counted as if it had one"
        );
        drop(members);
        assert_eq!(workers.working(), 0);
    });
}

/// The end waits for each thread that works, be it aside in between, and not for one that is stuck.
#[test]
fn the_end_waits_for_threads_at_work() {
    model::check(|| {
        let workers = Workers::new(1);
        let stuck = workers.enter(0);
        stuck.worker().is_stuck();
        let at_work = std::sync::Arc::new(AtomicUsize::new(2));
        let members: Vec<_> = (0..2)
            .map(|number| {
                let (member, at_work) = (workers.enter(number), at_work.clone());
                thread::spawn(move || {
                    let worker = member.worker();
                    worker.begins();
                    if worker.steps_aside() {
                        worker.steps_back();
                    }
                    worker.ends();
                    worker.rests();
                    worker.resumes();
                    at_work.fetch_sub(1, SeqCst);
                    drop(member);
                })
            })
            .collect();
        workers.wait_until_ended(Duration::from_secs(3600));
        assert_eq!(at_work.load(SeqCst), 0, "the transport ended below a request");
        members.into_iter().for_each(|member| member.join().unwrap());
        drop(stuck);
    });
}

/// The rest of the transport comes, whenever the threads are looked at.
#[test]
fn a_thread_at_the_closed_gate_does_not_count_as_reading() {
    model::check(|| {
        let shared = std::sync::Arc::new((Gate::default(), Reading::default()));
        let reader = thread::spawn({
            let shared = shared.clone();
            move || {
                let (gate, reading) = &*shared;
                for _ in 0..2 {
                    gate.pass(reading);
                    reading.is_over();
                }
            }
        });
        let (gate, reading) = &*shared;
        gate.close();
        while reading.wake() {
            thread::yield_now();
        }
        gate.open();
        reader.join().unwrap();
    });
}
