//! Write-back errors: a branch reports a loss once, and each handle of that time is to learn it.

use std::sync::Arc;
use std::time::Duration;

use fsstack_branch::OpError;
use fsstack_pool::Handle;
use fsstack_sync::{Mutex, model, thread};
use fsstack_sys::{Call, Errno, SysError};

use super::X;
use crate::files::write_back_errors::{ReportTo, Reporter, WriteBackErrors};

const LOST: OpError = OpError::Branch { branch: X, sys: SysError { call: Call::Fsync, errno: Errno::IO } };

/// An open file on a branch that has lost what was written, and reports it to one fsync, long before that returns.
#[derive(Debug)]
struct LossyFile {
    is_unreported: Mutex<bool>,
    errors: WriteBackErrors,
}

impl LossyFile {
    fn sync(&self, to: ReportTo) -> Result<(), Errno> {
        let done = self.errors.settle((to, Reporter::Sync), (Duration::from_millis(20), || Ok(())), || {
            let is_lost = std::mem::take(&mut *self.is_unreported.lock());
            thread::yield_now();
            if is_lost { Err(LOST) } else { Ok(()) }
        });
        done.map_err(OpError::errno)
    }
}

/// No fsync that begins after a loss succeeds before its handle has learnt of it, and no handle learns of it twice.
#[test]
fn each_handle_learns_of_a_loss_once() {
    model::check(|| {
        let file =
            Arc::new(LossyFile { is_unreported: Mutex::new(true), errors: WriteBackErrors::default() });
        let handles: Vec<_> = (0..3)
            .map(|handle| {
                let file = file.clone();
                thread::spawn(move || {
                    let to = ReportTo { handle: Handle(handle), since: 0 };
                    assert_eq!(file.sync(to), Err(Errno::IO), "success, and what was written is lost");
                    assert_eq!(file.sync(to), Ok(()), "the same loss is reported again");
                })
            })
            .collect();
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        let late = ReportTo { handle: Handle(9), since: file.errors.so_far() };
        assert_eq!(file.sync(late), Ok(()), "it was opened after the loss");
    });
}
