//! The takeover of a reply: who answers a request, and what its thread knows of it.

use std::sync::Arc;

use fsstack_sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use fsstack_sync::time::Duration;
use fsstack_sync::{model, thread};

use super::super::inflight_limit::{CallKind, InflightLimit};
use super::super::reply_takeover::{self, ReplyTakeover, RequestAtHand};

/// Number of requests that the thread serves.
const REQUESTS: usize = 2;

/// A transport with one thread.
#[derive(Debug)]
struct OneThread {
    at_hand: RequestAtHand<usize>,
    /// Answers to each request.
    answers: [AtomicUsize; REQUESTS],
    /// No other thread can be had for the next takeover.
    has_none: AtomicBool,
}

impl OneThread {
    fn new(has_none: bool) -> Arc<Self> {
        let (at_hand, answers) = (RequestAtHand::default(), Default::default());
        Arc::new(Self { at_hand, answers, has_none: AtomicBool::new(has_none) })
    }

    fn answers(&self, request: usize) -> usize {
        self.answers[request].load(SeqCst)
    }

    /// Serves all requests, each by a call. A thread whose request was not given up by then goes on to change what the caller sees.
    fn serve(self: &Arc<Self>, inflight_limit: &InflightLimit) {
        let transport: Arc<dyn ReplyTakeover> = self.clone();
        for (request, id) in (0..REQUESTS).zip(1..) {
            self.at_hand.begin(id, request);
            let is_mine = reply_takeover::at(&transport, id, || {
                // Refused while an earlier call counts as lost.
                let permit = inflight_limit.enter(CallKind::Short, || true);
                thread::yield_now();
                drop(permit);
                !reply_takeover::is_given_up()
            });
            let answer = self.at_hand.end();
            assert!(!is_mine || answer.is_some(), "answered by another thread, which this one did not know");
            if let Some(request) = answer {
                self.answers[request].fetch_add(1, SeqCst);
            }
        }
    }
}

impl ReplyTakeover for OneThread {
    fn refuse(&self, id: u64) -> bool {
        self.at_hand.take_over(id, |request| {
            if self.has_none.swap(false, SeqCst) {
                return Err(request);
            }
            self.answers[request].fetch_add(1, SeqCst);
            Ok(())
        })
    }
}

fn check(has_none: bool) {
    model::check(move || {
        let inflight_limit = Arc::new(InflightLimit::new(Duration::from_millis(1), 1));
        let transport = OneThread::new(has_none);
        let server = thread::spawn({
            let (transport, inflight_limit) = (transport.clone(), inflight_limit.clone());
            move || transport.serve(&inflight_limit)
        });
        for _ in 0..4 {
            thread::sleep(inflight_limit.pause());
            inflight_limit.look(false, || ());
        }
        server.join().unwrap();
        let answers = [0, 1].map(|request| transport.answers(request));
        assert_eq!(answers, [1, 1], "each request has one answer");
    });
}

/// Each request is answered once, by its thread or by the one that takes it over, and that thread knows it at its next step.
#[test]
fn each_request_is_answered_once() {
    check(false);
}

/// The same where the first takeover finds no thread that could answer.
#[test]
fn a_request_that_could_not_be_taken_over_is_answered_once() {
    check(true);
}
