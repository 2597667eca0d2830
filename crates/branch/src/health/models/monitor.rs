//! The monitor: when it sleeps, and which calls it gives up.

use std::sync::Arc;

use fsstack_sync::{Condvar, Mutex, model, thread};

use super::super::inflight_limit::CallKind;
use super::super::reply_takeover::{self, ReplyTakeover};
use crate::branch::Branch;

/// A request that is answered by another thread, which lets its call return.
#[derive(Debug, Default)]
struct Hangs {
    answered: Mutex<bool>,
    bell: Condvar,
}

impl ReplyTakeover for Hangs {
    fn refuse(&self, _: u64) -> bool {
        *self.answered.lock() = true;
        self.bell.notify_all();
        true
    }
}

/// Makes a call that does not return before its request was answered by the monitor.
fn hang(branch: &Branch) {
    let request = Arc::new(Hangs::default());
    let transport: Arc<dyn ReplyTakeover> = request.clone();
    reply_takeover::at(&transport, 1, || {
        let Ok(permit) = branch.come_in(CallKind::Short) else { return };
        request.bell.wait_while(&mut request.answered.lock(), |answered| !*answered);
        drop(permit);
    });
}

/// A call that hangs is answered by the monitor, be it the only one, and come while the monitor goes to sleep.
#[test]
fn a_call_that_hangs_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    model::check(move || {
        let branch = super::remote(&path, 2);
        let caller = branch.clone();
        let hangs = thread::spawn(move || hang(&caller));
        // Another one wakes the monitor, which goes to sleep again.
        drop(branch.come_in(CallKind::Short));
        hangs.join().unwrap();
        branch.health.end();
    });
}

/// A branch that was closed because a call hung is open again when its probe is good.
#[test]
fn a_branch_that_answers_again_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    model::check(move || {
        let branch = super::remote(&path, 1);
        let caller = branch.clone();
        let hangs = thread::spawn(move || hang(&caller));
        hangs.join().unwrap();
        while !branch.is_open() {
            thread::yield_now();
        }
        assert!(branch.come_in(CallKind::Short).is_ok());
        branch.health.end();
    });
}
